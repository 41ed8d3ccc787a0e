"""Which processes belong to a tree, read from /proc, and signals that cannot hit a stranger.

A process belongs to a tree if any of these holds:

- its session is the tree's (an ordinary child or grandchild);
- its environment carries the tree's mark (it called setsid, or was forked twice, but kept its environment);
- its parent belongs to the tree (it did both and cleared its environment, as sandboxes do, but its parent still lives);
- it belonged at an earlier look and still lives (`known`), so that it is not lost when that parent dies.

What gets away: a process in a session of its own, whose environment does not carry the mark (cleared, or overwritten by a program
that writes its title there), and whose parent was gone before anybody looked.

Invariants
- A process is its pid *and* its start time. A pid alone is never signalled: the signal goes through a pidfd whose start time was
  compared after it was opened, so the pid cannot have been given to another process in between.
- A group id is trusted while its leader is unreaped, or while it has members: the kernel gives neither number away. If a process
  with that pid but another start time is seen, the id was reused and matches nothing.
- One scan is not one moment: a process can fork and be gone before it is read, and one listing need not show its child (which got a
  lower number, when the numbers begin again). One that is on its way out, no zombie yet but without an environment, counts as gone. So the listing is repeated until two in a row showed nobody who was gone before it was
  read. It can still be outrun: stop in a loop.
- Being unable to look (no /proc, no descriptor left) is never taken for "nothing there": the groups themselves are asked instead,
  and stand in the answer as one `Proc` each, with no start time. And the answer says what it could not see (`Found.unseen`).

The guard process runs this file outside the package, where start-up time and memory count: import nothing of ours here, and of
the standard library only what is small.
"""

from __future__ import annotations

import errno
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

VARIABLE = "QUIESCE_TREE"
"""The environment variable with the marks, outermost first, joined by `;`. A mark is `<program>.<number>`."""

GUARD_TAG = "guard"
"""What guards carry instead of marks: they are children of the programs they guard, and part of nobody's tree."""

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM) if os.name == "posix" else ()
_LISTINGS = 100  # enough to catch up with any but a storm of forks, which no scan can
_PAUSES = (0.0001, 0.0002, 0.0004)
_PF_EXITING = 4  # of the kernel's flags
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Proc:
    """One process as the scan saw it. Equal if pid and start time are; `starttime` 0 stands for a whole process group."""

    __slots__ = ("comm", "exiting", "pgrp", "pid", "ppid", "session", "starttime", "state", "zombie")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name may hold spaces, parentheses and line ends; after the last parenthesis all is regular.
        opening, closing = stat.index(b"("), stat.rindex(b")")
        fields = stat[closing + 2 :].split(None, 20)
        self.pid = pid
        self.comm = stat[opening + 1 : closing].decode(errors="replace")
        self.state = fields[0].decode()
        self.ppid = int(fields[1])
        self.pgrp = int(fields[2])
        self.session = int(fields[3])
        self.starttime = int(fields[19])
        # A process whose main thread has ended while others run says "Z" too, but counts more than one thread.
        is_alone = int(fields[17]) <= 1
        self.zombie = fields[0] in b"ZXx" and is_alone
        self.exiting = (
            bool(int(fields[6]) & _PF_EXITING) and is_alone
        )  # no zombie yet, but its memory may be gone

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proc) and (self.pid, self.starttime) == (other.pid, other.starttime)

    def __hash__(self) -> int:
        return hash((self.pid, self.starttime))

    def __repr__(self) -> str:
        return f"<Proc {self.describe()}>"

    def describe(self) -> str:
        """Pid and command line for people to read, without secrets; the bare name once it is gone."""
        from quiesce._safe.printed import (
            printed_line,  # not at the top: the guard process runs this file alone
        )
        from quiesce._safe.secrets import command_without_secrets

        if not self.starttime:
            return f"process group {self.pgrp} ({self.comm})"
        try:
            command = _read(f"/proc/{self.pid}/cmdline") if still_alive(self) else b""
        except OSError:
            command = b""
        words = command.rstrip(b"\0").decode(errors="replace").split("\0") if command else [self.comm]
        text = printed_line(command_without_secrets(words))
        return f"pid {self.pid}: {text if len(text) <= 200 else text[:199] + '…'}"


class Found(list[Proc]):
    """The processes that a look has found, and why it may have found too few (`unseen`; empty if it saw all there are)."""

    __slots__ = ("unseen",)

    def __init__(self, procs: Iterable[Proc] = (), unseen: str = "") -> None:
        super().__init__(procs)
        self.unseen = unseen


def available() -> bool:
    """Whether /proc is there and shows our own pid namespace. Without it only process groups can be known."""
    return not unavailable()


def unavailable() -> str:
    """Why /proc cannot be used; empty if it can."""
    try:
        shown = os.readlink("/proc/self")
    except OSError:
        return "there is no /proc here"
    return "" if shown == str(os.getpid()) else "/proc shows another PID namespace"


def hidden() -> str:
    """Why /proc, where it can be used, does not show every process; empty if it does.

    With the mount option `hidepid` it shows us only those that we may trace: not those of other users, nor those of our own that have
    gained rights or cannot be read. So the first process of all is not shown to us, unless it is our own.
    """
    user = os.geteuid()
    if user not in _hidden:
        try:
            _read("/proc/1/stat")
            is_anothers = os.stat("/proc/1").st_uid != user
            visible = user == 0 or is_anothers or not _is_mounted_to_hide()
        except (FileNotFoundError, PermissionError):  # not for errors of the moment: what is noted lasts
            visible = False
        _hidden[user] = "" if visible else "/proc hides the processes of other users (hidepid)"
    return _hidden[user]


_hidden: dict[int, str] = {}  # by the user that we are


def _is_mounted_to_hide() -> bool:
    mounts = [line.split() for line in _read("/proc/mounts").splitlines()]
    return any(b"hidepid=" in mount[3] for mount in [mount for mount in mounts if mount[1] == b"/proc"][-1:])


def look_up(pid: int) -> Proc | None:
    try:
        return Proc(pid, _read(f"/proc/{pid}/stat"))
    except (OSError, ValueError, IndexError):
        return None


def start_time(pid: int) -> int:
    """The start time of a process, alive or zombie, in clock ticks since boot; 0 if it cannot be known."""
    proc = look_up(pid)
    return proc.starttime if proc else 0


def living(trees: Mapping[int, int]) -> set[Proc]:
    """Those of the processes, each given by pid and start time, that are still there."""
    found = [proc for pid, start in trees.items() if (proc := look_up(pid)) and proc.starttime == start]
    return {proc for proc in found if not proc.zombie}


def still_alive(proc: Proc) -> bool:
    if not proc.starttime:
        return _signal_group(proc.pgrp, 0)
    now = look_up(proc.pid)
    return now is not None and now == proc and not now.zombie


def _is_ending(proc: Proc) -> bool:
    now = look_up(proc.pid)
    return now is None or now != proc or now.zombie or now.exiting


def find(groups: Mapping[int, int], mark: str, *, since: int = 0, known: Collection[Proc] = ()) -> Found:
    """The living members of a tree: see the top of this module. Never our own process, never a zombie, never a guard.

    `groups` maps the ids of sessions, which are also those of their leaders' process groups, to the start time of the leader (0: not
    known). `mark` is one tree's mark, or a program's id for all of its trees. Nothing that started before `since` can belong, which
    spares reading about most of the machine.
    """
    if why := unavailable():
        return _groups_that_answer(groups, why)
    try:
        ours = {group for group, start in groups.items() if not start or start_time(group) in (0, start)}
        members = Found(unseen=hidden())
        others: dict[int, list[Proc]] = {}
        missed: list[Proc | str] = []
        for proc in _scan(since, missed):
            if proc.session in ours or proc in known:
                members.append(proc)
            elif not proc.zombie and proc.starttime >= since:
                environment = _environment(proc.pid)
                tags = _tags_in(environment)
                if not environment and _is_ending(proc):
                    missed.append(proc)
                elif mark in tags or any(tag.startswith(mark + ".") for tag in tags):
                    members.append(proc)
                elif GUARD_TAG not in tags:
                    others.setdefault(proc.ppid, []).append(proc)
    except OSError as error:
        return _groups_that_answer(groups, f"/proc could not be read: {error.strerror}")
    for parent in members:  # grows as it goes: children of children
        # A child is never older than its parent: if it is, the parent's pid was reused between two lines of the scan.
        members += [child for child in others.pop(parent.pid, ()) if child.starttime >= parent.starttime]
    if members.unseen:  # not even the leader need be shown
        members += _groups_that_answer([group for group in ours if look_up(group) is None], members.unseen)
    unseen = members.unseen or ("processes were started faster than they could be read" if missed else "")
    return Found([proc for proc in members if not proc.zombie], unseen)


def sweep(
    groups: Mapping[int, int], mark: str, sig: int, *, since: int = 0, known: Collection[Proc] = ()
) -> Found:
    """Send one signal to every member of a tree, and return those that were seen. Repeat until that is none.

    Groups are signalled as groups, for there the kernel leaves no gap through which a fork could slip.
    """
    # Look first: once a parent is dead, children that are known only by it cannot be found any more.
    members = find(groups, mark, since=since, known=known)
    for group in {proc.pgrp for proc in members if proc.pgrp in groups}:
        _signal_group(group, sig)
    for proc in members:
        if proc.pgrp not in groups:
            send_signal(proc, sig)
    if sig in _ENDING:
        # A stopped process would not act on it before it is continued.
        for proc in members:
            if not proc.starttime:
                _signal_group(proc.pgrp, signal.SIGCONT)
            elif proc.state == "T":
                send_signal(proc, signal.SIGCONT)
    return members


def send_signal(proc: Proc, sig: int) -> bool:
    """Signal exactly this process. False if it is gone or not ours to signal."""
    try:
        descriptor = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):  # an old kernel, a sandbox, or no descriptor left
        return still_alive(proc) and _delivered(os.kill, proc.pid, sig)
    try:
        # From here on the descriptor names one process; is it the one we mean?
        return still_alive(proc) and _delivered(signal.pidfd_send_signal, descriptor, sig)
    finally:
        os.close(descriptor)


def collect(proc: Proc) -> None:
    """Reap a dead process that has become our child: orphans do if we are the first process of a container, or a subreaper."""
    now = look_up(proc.pid)
    if now is not None and now == proc and now.zombie and now.ppid == os.getpid():
        try:
            os.waitpid(proc.pid, os.WNOHANG)
        except ChildProcessError:
            pass


def _delivered(send: Callable[[int, int], None], target: int, sig: int) -> bool:
    try:
        send(target, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_group(group: int, sig: int) -> bool:
    return _delivered(os.killpg, group, sig)


def _groups_that_answer(groups: Iterable[int], why: str) -> Found:
    # Signal 0 asks whether there is anybody. On macOS a group of zombies refuses; on Linux it answers, so this may err on the side of
    # "something is left".
    return Found([_whole_group(group, why) for group in groups if _signal_group(group, 0)], why)


def _whole_group(group: int, why: str) -> Proc:
    return Proc(group, b"%d (%s) ? 0 %d %d%s 0 0 0" % (group, why.encode(), group, group, b" 0" * 14))


def _scan(since: int = 0, missed: list[Proc | str] | None = None) -> Iterator[Proc]:
    """Every other process, save those in sessions that are older than `since`.

    `missed` are those of the last listing that were gone before they were read; who reads more about them adds to it. If there are any at
    the end, the scan was outrun.

    Nobody can join a session; one can only be born in it, or make a new one. So an old session has no member of a younger tree, and asking
    for the session is thirty times cheaper than reading about the process.
    """
    done = {str(os.getpid())}
    # Session 0 is that of the kernel's own threads, and any that was made outside our pid namespace. Such a one is older than
    # whatever we have started, but it may be our own: in a container our children are born in it.
    is_old = {0: since > 0}
    missed = [] if missed is None else missed
    calm = 0
    for _ in range(_LISTINGS):
        missed.clear()
        new = [name for name in os.listdir("/proc") if name.isdigit() and name not in done]
        done.update(new)
        for name in new:
            try:
                session = os.getsid(int(name))
            except OSError:
                missed.append(name)
                continue
            if session not in is_old:
                leader = look_up(session)
                is_old[session] = leader is not None and leader.starttime < since
            if is_old[session]:
                continue
            stat = _read_if_there(f"/proc/{name}/stat")
            proc = Proc(int(name), stat) if stat else None
            if proc is None or proc.zombie:  # which it may have become since it was listed
                missed.append(name)
            if proc is not None:
                yield proc
        calm = 0 if missed else calm + 1
        if calm == 2:
            return


def _tags(pid: int) -> list[str]:
    """The marks in a process's environment."""
    return _tags_in(_environment(pid))


def _tags_in(environment: bytes) -> list[str]:
    _, found, rest = (b"\0" + environment).partition(b"\0" + VARIABLE.encode() + b"=")
    return rest.partition(b"\0")[0].decode(errors="replace").split(";") if found else []


def _environment(pid: int) -> bytes:
    """Empty if it may not be read, or is gone. During exec it is empty for an instant: then look again."""
    for pause in (0, *_PAUSES):
        if pause:
            time.sleep(pause)
        environment = _read_if_there(f"/proc/{pid}/environ")
        if environment is None:
            break
        if environment:
            return environment
    return b""


def _read_if_there(path: str) -> bytes | None:
    """None if the process is gone meanwhile, or another user's."""
    try:
        return _read(path)
    except OSError as error:
        if error.errno in _OUT_OF_DESCRIPTORS:
            raise
        return None


def _read(path: str) -> bytes:
    # Half the price of open(), which matters some hundred times a scan.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while more := os.read(descriptor, 65536):  # a list of children comes a page at a time
            data += more
        return data
    finally:
        os.close(descriptor)
