"""The guard process: waits for its program to die, then kills what the program has left, then ends.

Run as `python -I -S guardian_main.py <pid> <start time>` with its end of a socket as standard input (see `guardian`, which starts
it). It reads lines:

    !<program id>                           whose guard this is: the first line. Not an argument, as everybody can read those
    +<group> <start time of its leader>     guard this process group
    -<group>                                no longer
    *<pid> <start time>                     guard this process, which others have started, with all that is below it
    /<pid>                                  no longer
    =                                       forget all of them: a complete list follows

Two things tell of the program's death, and both are needed:

- **The end of the input**: nobody holds the other end any more. This comes late, and rightly so, if the program died while it was starting
  a child: until that child has executed its command (and shows its mark) it holds a copy of that end. It also comes when the program
  replaces itself by exec.
- **The program's pidfd**: comes at once, even if some process that was forked behind Python's back keeps a copy of that end for ever.

So killing begins with the first of them, and is finished when the input has ended and two scans in a row have found nobody, or
after `PATIENCE` seconds. Only if the input ends before its second line while the program lives, nothing is killed: starting us was
interrupted there, and the next guard is on its way.

A process that others have started has no mark, and may end as soon as its program is gone, which orphans those below it. So the first
thing that is done is to walk down from it, by the kernel's own lists; who was below it when it was made known is remembered.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import descendants, procfs
else:
    # Isolated mode leaves this directory out of the path. Under a package of its own, so that none of its modules can hide one of the
    # standard library, and `quiesce` itself, which is large, is not imported.
    kernel = sys.modules["kernel"] = type(sys)("kernel")
    kernel.__path__ = [os.path.dirname(__file__)]
    from kernel import descendants, procfs

PATIENCE = 5.0


class Registry:
    """The groups, and the trees of others, as the program has last told us."""

    def __init__(self) -> None:
        self.groups: dict[int, int] = {}
        self.trees: dict[int, int] = {}
        self._below: dict[int, list[procfs.Proc]] = {}
        self.program = "?"  # what no mark is
        self.ended = False
        self.begun = False
        self._rest = b""

    def read(self) -> None:
        """Take in what has arrived, without waiting for more."""
        try:
            while data := os.read(0, 65536):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._obey(line)
        except BlockingIOError:
            return
        except OSError:
            pass
        self.ended = True

    def _obey(self, line: bytes) -> None:
        if line.startswith(b"!"):
            self.program = line[1:].decode(errors="replace")
            return
        self.begun = True
        try:
            if line.startswith(b"+"):
                group, start = line[1:].split()
                self.groups[int(group)] = int(start)
            elif line.startswith(b"-"):
                self.groups.pop(int(line[1:]), None)
            elif line.startswith(b"*"):
                pid, began = map(int, line[1:].split())
                self.trees[pid] = began
                self._below[pid] = _below({pid: began})
            elif line.startswith(b"/"):
                self.trees.pop(int(line[1:]), None)
                self._below.pop(int(line[1:]), None)
            elif line == b"=":
                self.groups.clear()
                self.trees.clear()
                self._below.clear()
        except ValueError:
            pass  # from a newer program, or cut in half: never a reason to stop guarding

    def members(self) -> set[procfs.Proc]:
        """Who is, or was, in a tree of others."""
        return {*_below(self.trees), *(proc for procs in self._below.values() for proc in procs)}


def _below(trees: dict[int, int]) -> list[procfs.Proc]:
    try:
        return descendants.below(procfs.living(trees))
    except OSError:  # no descriptor left
        return []


def wait_for_death(registry: Registry, parent: int) -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    try:
        poll.register(os.pidfd_open(parent), select.POLLIN)
    except (AttributeError, OSError):
        pass  # the input alone has to tell
    os.set_blocking(0, False)
    # Whoever is not our parent now has taken its number.
    while not registry.ended and os.getppid() == parent:
        poll.poll()
        registry.read()


def kill_all(registry: Registry, since: int) -> None:
    give_up_at = time.monotonic() + PATIENCE
    known = registry.members()
    quiet_scans = 0
    while quiet_scans < 2 or not registry.ended:
        registry.read()
        if registry.trees:
            known |= registry.members()
            since = 0  # they may be in the session that the program was started in
        known = set(procfs.sweep(registry.groups, registry.program, signal.SIGKILL, since=since, known=known))
        quiet_scans = 0 if known else quiet_scans + 1
        if time.monotonic() > give_up_at:
            return
        time.sleep(0.01)


def main(parent: int, since: int) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    try:
        with open("/proc/self/comm", "wb", buffering=0) as name:  # for whoever meets us in `top`
            name.write(b"quiesce-guard")
    except OSError:
        pass
    registry = Registry()
    wait_for_death(registry, parent)
    if registry.begun or os.getppid() != parent:
        kill_all(registry, since)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
