"""The guard process: waits for its program to die, kills what the program left running, then exits.

Run as `python -I -S guardian_main.py <pid> <start time>` with its end of a socket as standard input (see
`guardian`, which starts it). It reads lines:

    !<program id>                        whose guard this is: the first line. A secret, so not an argument
    +<group> <start time of its leader>  guard this process group
    -<group>                             no longer guard it
    *<pid> <start time>                  guard this process, started by other code, with all its descendants
    /<pid>                               no longer guard it
    =                                    forget all of them: a complete list follows

Two events report the program's death, and both are needed:

- **The end of the input**: no process has the other end open any more. If the program died while it was
  starting a child, this comes late, and rightly so: until that child has executed its command (and shows its
  mark) it holds a copy of that end. It also comes when the program replaces itself by exec.
- **The program's pidfd**: comes at once, even if a process that was forked behind Python's back keeps a copy
  of that end forever.

So killing begins with the first of them, and is finished when the input has ended and two scans in a row have
found nothing, or after `PATIENCE` seconds. With one exception: if the input ends before its second line while
the program lives, nothing is killed. The program was interrupted while it started us, and will start another
guard.

A process started by other code has no mark, and may exit as soon as its program has died, which orphans its
descendants. So killing begins with a walk down from it, by Linux's own lists of children; and the descendants
that it had when it was registered are remembered.
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
    # Isolated mode leaves this directory out of the path. Adding it there would let one of our modules hide
    # one of the standard library, and importing `quiesce` would load much more than is needed: so make a
    # package for this folder.
    kernel = sys.modules["kernel"] = type(sys)("kernel")
    kernel.__path__ = [os.path.dirname(__file__)]
    from kernel import descendants, procfs

PATIENCE = 5.0


class Registry:
    """The process groups, and the trees started by other code, as the program last reported them."""

    def __init__(self) -> None:
        self.groups: dict[int, int] = {}
        self.trees: dict[int, int] = {}
        self._descendants: dict[int, list[procfs.Proc]] = {}
        self.program = "?"  # matches no mark
        self.input_ended = False
        self.has_list = False
        self._partial_line = b""

    def read(self) -> None:
        """Take in the lines that have arrived, without waiting for more."""
        try:
            while data := os.read(0, 65536):
                *lines, self._partial_line = (self._partial_line + data).split(b"\n")
                for line in lines:
                    self._take(line)
        except BlockingIOError:
            return
        except OSError:
            pass
        self.input_ended = True

    def _take(self, line: bytes) -> None:
        if line.startswith(b"!"):
            self.program = line[1:].decode(errors="replace")
            return
        self.has_list = True
        try:
            if line.startswith(b"+"):
                group, start = line[1:].split()
                self.groups[int(group)] = int(start)
            elif line.startswith(b"-"):
                self.groups.pop(int(line[1:]), None)
            elif line.startswith(b"*"):
                pid, started = map(int, line[1:].split())
                self.trees[pid] = started
                self._descendants[pid] = _members_of({pid: started})
            elif line.startswith(b"/"):
                self.trees.pop(int(line[1:]), None)
                self._descendants.pop(int(line[1:]), None)
            elif line == b"=":
                self.groups.clear()
                self.trees.clear()
                self._descendants.clear()
        except ValueError:
            pass  # from a newer program, or cut in half: never a reason to stop guarding

    def members(self) -> set[procfs.Proc]:
        """The processes that are in a tree started by other code, or were when it was registered."""
        return {*_members_of(self.trees), *(proc for procs in self._descendants.values() for proc in procs)}


def _members_of(trees: dict[int, int]) -> list[procfs.Proc]:
    try:
        return descendants.below(procfs.living(trees))
    except OSError:  # no descriptors left
        return []


def wait_for_death(registry: Registry, parent: int) -> None:
    """Read lines until the program has died; see the top of this module for how that is known."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    try:
        poll.register(os.pidfd_open(parent), select.POLLIN)
    except (AttributeError, OSError):
        pass  # only the end of the input will report it
    os.set_blocking(0, False)
    # If `parent` is not our parent any more, the program died earlier, and the pidfd may name a stranger.
    while not registry.input_ended and os.getppid() == parent:
        poll.poll()
        registry.read()


def kill_all(registry: Registry, since: int) -> None:
    """SIGKILL everything that the program left running, until nothing is found or `PATIENCE` is over."""
    give_up_at = time.monotonic() + PATIENCE
    known = registry.members()
    quiet_scans = 0
    while quiet_scans < 2 or not registry.input_ended:
        registry.read()
        if registry.trees:
            known |= registry.members()
            since = 0  # their processes may be in the session that the program itself was started in
        known = set(procfs.sweep(registry.groups, registry.program, signal.SIGKILL, since=since, known=known))
        quiet_scans = 0 if known else quiet_scans + 1
        if time.monotonic() > give_up_at:
            return
        time.sleep(0.01)


def main(parent: int, since: int) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    try:
        with open("/proc/self/comm", "wb", buffering=0) as name:  # the name that `top` shows
            name.write(b"quiesce-guard")
    except OSError:
        pass
    registry = Registry()
    wait_for_death(registry, parent)
    if registry.has_list or os.getppid() != parent:
        kill_all(registry, since)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
