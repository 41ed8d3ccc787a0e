"""Which processes belong to a tree, read from /proc, and signals that cannot hit a stranger.

A process belongs to a tree if any of these holds:

- its session is the tree's (an ordinary child or grandchild);
- its environment carries the tree's mark (it called setsid, or was forked twice, but kept its environment);
- its parent belongs to the tree (it did both and cleared its environment, as sandboxes do, but its parent
  still lives);
- it belonged at an earlier scan and still lives (`known`), so that it is not lost when that parent dies.

Not found: a process in a session of its own whose environment does not carry the mark (it was cleared, or
overwritten by a program that writes its title there) and whose parent exited before the first scan.

Invariants
- A process is its pid *and* its start time. A pid alone is never signalled: the signal goes through a pidfd
  whose start time is compared after it was opened, so the pid cannot have been reused in between.
- A group id is trusted while its leader is unreaped, or while the group has members: Linux reuses neither
  number until then. If a process with that pid but another start time is seen, the id was reused and matches
  nothing.
- A scan is not an instant. A process can fork and exit before it is read, and the same listing need not show
  its child, which gets a lower number when the numbers wrap around. A process that is exiting (not a zombie
  yet, but without an environment) counts as gone. So /proc is listed again until two listings in a row
  contained no process that was gone before it was read. A fast fork chain can still outrun this: callers stop
  a tree in a loop.
- Being unable to look (no /proc, no file descriptors left) never counts as "nothing there". Instead each
  group is probed, and one that answers is returned as a single `Proc` without a start time.
  `ScanResult.unseen` says what could not be seen.

The guard process runs this file outside the package, where start-up time and memory count: import nothing of
ours here, and only small modules of the standard library.
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
"""What guard processes carry instead of a mark: a guard is its program's child, but in no tree."""

_ENDING_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM) if os.name == "posix" else ()
_LISTINGS = 100  # enough for anything but a fork storm, which no scan can keep up with
_EXEC_PAUSES = (0.0001, 0.0002, 0.0004)  # seconds between two reads of an environment that exec is replacing
_PF_EXITING = 4  # a process flag of the Linux kernel
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Proc:
    """One process as a scan saw it, known by pid and start time; `starttime` 0 means a whole group."""

    __slots__ = ("comm", "exiting", "pgrp", "pid", "ppid", "session", "starttime", "state", "zombie")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name may contain spaces, parentheses and newlines: split only what follows the last parenthesis.
        opening, closing = stat.index(b"("), stat.rindex(b")")
        fields = stat[closing + 2 :].split(None, 20)
        self.pid = pid
        self.comm = stat[opening + 1 : closing].decode(errors="replace")
        self.state = fields[0].decode()
        self.ppid = int(fields[1])
        self.pgrp = int(fields[2])
        self.session = int(fields[3])
        self.starttime = int(fields[19])
        # A process whose main thread has ended while others run is in state "Z" too, but counts all of them.
        is_alone = int(fields[17]) <= 1
        self.zombie = fields[0] in b"ZXx" and is_alone
        # Not a zombie yet, but its memory, and with it the environment, may be freed already.
        self.exiting = bool(int(fields[6]) & _PF_EXITING) and is_alone

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proc) and (self.pid, self.starttime) == (other.pid, other.starttime)

    def __hash__(self) -> int:
        return hash((self.pid, self.starttime))

    def __repr__(self) -> str:
        return f"<Proc {self.describe()}>"

    def describe(self) -> str:
        """Pid and command line for people to read, without secrets; the bare name once it has exited."""
        # Imported here: the guard process runs this file without the package.
        from quiesce._safe.printed import printed_line
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


class ScanResult(list[Proc]):
    """The processes that a scan found, and why there may be more (`unseen`; empty if it saw all of them)."""

    __slots__ = ("unseen",)

    def __init__(self, procs: Iterable[Proc] = (), unseen: str = "") -> None:
        super().__init__(procs)
        self.unseen = unseen


def describe_all(procs: Collection[Proc]) -> str:
    """The processes and their states, for people to read; `"exiting"` if there are none."""
    return "; ".join(f"{proc.describe()} (state {proc.state})" for proc in procs) or "exiting"


def available() -> bool:
    """Whether /proc exists and shows our own pid namespace. Without it only process groups can be known."""
    return not unavailable()


def unavailable() -> str:
    """Why /proc cannot be used; empty if it can."""
    try:
        shown = os.readlink("/proc/self")
    except OSError:
        return "there is no /proc here"
    return "" if shown == str(os.getpid()) else "/proc shows another PID namespace"


def hidden() -> str:
    """Why a usable /proc does not show every process; empty if it does.

    With the mount option `hidepid` it shows only processes that we may trace: not those of other users, nor
    our own processes that have gained privileges or are unreadable. Pid 1 is the test: it is hidden unless it
    is ours.
    """
    user = os.geteuid()
    if user not in _hidden:
        try:
            _read("/proc/1/stat")
            is_anothers = os.stat("/proc/1").st_uid != user
            visible = user == 0 or is_anothers or not _is_mounted_to_hide()
        # Only these two errors mean that it is hidden. A passing one (no descriptors) must not be cached.
        except (FileNotFoundError, PermissionError):
            visible = False
        _hidden[user] = "" if visible else "/proc hides the processes of other users (hidepid)"
    return _hidden[user]


_hidden: dict[int, str] = {}  # by effective user id: a program may drop its privileges


def _is_mounted_to_hide() -> bool:
    mounts = [line.split() for line in _read("/proc/mounts").splitlines()]
    return any(b"hidepid=" in mount[3] for mount in [mount for mount in mounts if mount[1] == b"/proc"][-1:])


def look_up(pid: int) -> Proc | None:
    """The process with this pid, alive or zombie; None if it cannot be read, for whatever reason."""
    try:
        return Proc(pid, _read(f"/proc/{pid}/stat"))
    except (OSError, ValueError, IndexError):
        return None


def start_time(pid: int) -> int:
    """The start time of a process, alive or zombie, in clock ticks since boot; 0 if it cannot be known."""
    proc = look_up(pid)
    return proc.starttime if proc else 0


def living(trees: Mapping[int, int]) -> set[Proc]:
    """Those of the processes, each given by pid and start time, that are still alive."""
    found = [proc for pid, start in trees.items() if (proc := look_up(pid)) and proc.starttime == start]
    return {proc for proc in found if not proc.zombie}


def still_alive(proc: Proc) -> bool:
    """Whether this very process still runs; for a whole group, whether it has any member."""
    if not proc.starttime:
        return signal_group(proc.pgrp, 0)
    now = look_up(proc.pid)
    return now is not None and now == proc and not now.zombie


def blocks_signal(proc: Proc, number: int) -> bool:
    """Whether every thread of this process blocks this signal now, so that it does not act on it yet."""
    try:
        threads = [
            _read(f"/proc/{proc.pid}/task/{thread}/status") for thread in os.listdir(f"/proc/{proc.pid}/task")
        ]
    except OSError:  # it has exited, or one of its threads has
        return False
    masks = [line for status in threads for line in status.splitlines() if line.startswith(b"SigBlk:")]
    return all(int(mask.split()[1], 16) >> (number - 1) & 1 for mask in masks) and still_alive(proc)


def _is_ending(proc: Proc) -> bool:
    now = look_up(proc.pid)
    return now is None or now != proc or now.zombie or now.exiting


def find(groups: Mapping[int, int], mark: str, *, since: int = 0, known: Collection[Proc] = ()) -> ScanResult:
    """The living members of a tree: see the top of this module. Never our own process, a zombie, or a guard.

    `groups` maps the id of each session, which is also its leader's process group, to the start time of the
    leader (0: unknown). `mark` is one tree's mark, or a program's id for all of its trees. Nothing that
    started before `since` can belong, which saves reading most of the machine's processes.
    """
    if why := unavailable():
        return _groups_that_answer(groups, why)
    try:
        ours = {group for group, start in groups.items() if not start or start_time(group) in (0, start)}
        members = ScanResult(unseen=hidden())
        others: dict[int, list[Proc]] = {}
        missed: list[Proc | str] = []
        for proc in scan(since, missed):
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
    for parent in members:  # the list grows in the loop: children of children
        # A child that is older than its parent is none: the parent's pid was reused during the scan.
        members += [child for child in others.pop(parent.pid, ()) if child.starttime >= parent.starttime]
    # With hidepid even the leader may be hidden from us, so its group is probed.
    if members.unseen:
        members += _groups_that_answer([group for group in ours if look_up(group) is None], members.unseen)
    unseen = members.unseen or ("processes were started faster than they could be read" if missed else "")
    return ScanResult([proc for proc in members if not proc.zombie], unseen)


def sweep(
    groups: Mapping[int, int], mark: str, sig: int, *, since: int = 0, known: Collection[Proc] = ()
) -> ScanResult:
    """Send one signal to every member of a tree, and return those that were seen. Repeat until that is none.

    Groups are signalled as groups: the kernel does that in one step, so a process that is forking cannot
    escape it.
    """
    # Scan before signalling: once a parent is dead, children that only it leads to cannot be found any more.
    members = find(groups, mark, since=since, known=known)
    for group in {proc.pgrp for proc in members if proc.pgrp in groups}:
        signal_group(group, sig)
    for proc in members:
        if proc.pgrp not in groups:
            send_signal(proc, sig)
    if sig in _ENDING_SIGNALS:
        # A stopped process does not act on such a signal until it is continued.
        for proc in members:
            if not proc.starttime:
                signal_group(proc.pgrp, signal.SIGCONT)
            elif proc.state == "T":
                send_signal(proc, signal.SIGCONT)
    return members


def send_signal(proc: Proc, sig: int) -> bool:
    """Signal exactly this process. False if it has exited, or we have no right to signal it."""
    try:
        descriptor = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):  # an old Linux, a sandbox, or no descriptors left
        return still_alive(proc) and _deliver(os.kill, proc.pid, sig)
    try:
        # From here on the descriptor names one process for good. Check that it is the one we mean.
        return still_alive(proc) and _deliver(signal.pidfd_send_signal, descriptor, sig)
    finally:
        os.close(descriptor)


def signal_group(group: int, sig: int) -> bool:
    """Signal a process group. False if it has no member, or none that we may signal."""
    return _deliver(os.killpg, group, sig)


def collect(proc: Proc) -> None:
    """Reap a zombie that has become our child: orphans do if we are pid 1 of a container, or a subreaper."""
    now = look_up(proc.pid)
    if now is not None and now == proc and now.zombie and now.ppid == os.getpid():
        try:
            os.waitpid(proc.pid, os.WNOHANG)
        except ChildProcessError:
            pass


def _deliver(send: Callable[[int, int], None], target: int, sig: int) -> bool:
    try:
        send(target, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _groups_that_answer(groups: Iterable[int], why: str) -> ScanResult:
    # Signal 0 asks whether a group has members. On macOS a group of zombies refuses it, on Linux it accepts
    # it: this errs on the side of "something is left".
    return ScanResult([_whole_group(group, why) for group in groups if signal_group(group, 0)], why)


def _whole_group(group: int, why: str) -> Proc:
    return Proc(group, b"%d (%s) ? 0 %d %d%s 0 0 0" % (group, why.encode(), group, group, b" 0" * 14))


def scan(since: int = 0, missed: list[Proc | str] | None = None) -> Iterator[Proc]:
    """Every other process, except those in sessions older than `since`. Raises OSError without descriptors.

    `missed` collects the processes of the last listing that were gone before they were read; the caller adds
    those that it could not examine further. If it is not empty at the end, the scan was outrun.

    No process can join an existing session: it is born in one, or makes a new one. So an old session has no
    member of a younger tree, and asking for the session is thirty times cheaper than reading the process.
    """
    done = {str(os.getpid())}
    # Linux reports session 0 for its own threads, and for every session made outside our pid namespace. Such
    # a session is older than anything we started. But it may be ours: in a container our children are born in
    # it. So skip it only if the caller has a limit at all.
    is_old = {0: since > 0}
    missed = [] if missed is None else missed
    quiet_listings = 0
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
            proc = read_process(int(name))
            # A zombie may have been alive when it was listed, and have forked since: it counts as missed too.
            if proc is None or proc.zombie:
                missed.append(name)
            if proc is not None:
                yield proc
        quiet_listings = 0 if missed else quiet_listings + 1
        if quiet_listings == 2:
            return


def tags_of(pid: int) -> list[str]:
    """The marks in a process's environment."""
    return _tags_in(_environment(pid))


def _tags_in(environment: bytes) -> list[str]:
    _, found, rest = (b"\0" + environment).partition(b"\0" + VARIABLE.encode() + b"=")
    return rest.partition(b"\0")[0].decode(errors="replace").split(";") if found else []


def _environment(pid: int) -> bytes:
    """Empty if the process has exited or may not be read."""
    # Linux shows an empty environment for an instant during exec. Taken at its word, a child that is just
    # being started would have no mark and get away; so read it a few times.
    for pause in (0, *_EXEC_PAUSES):
        if pause:
            time.sleep(pause)
        environment = read_if_there(f"/proc/{pid}/environ")
        if environment is None:
            break
        if environment:
            return environment
    return b""


def read_process(pid: int) -> Proc | None:
    """As `look_up`, but raises OSError where no descriptor is left, which says nothing about the process."""
    stat = read_if_there(f"/proc/{pid}/stat")
    return Proc(pid, stat) if stat else None


def read_if_there(path: str) -> bytes | None:
    """The file's content; None if the process has exited, or belongs to another user."""
    try:
        return _read(path)
    except OSError as error:
        if error.errno in _OUT_OF_DESCRIPTORS:
            raise
        return None


def _read(path: str) -> bytes:
    # Not `open()`: this costs half as much, and one scan reads hundreds of files.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while more := os.read(descriptor, 65536):  # a list of children comes one page at a time
            data += more
        return data
    finally:
        os.close(descriptor)
