"""One guard process a program, which survives it and kills the process trees it has left.

A program can end in ways that run none of its code: SIGKILL, the default action of SIGTERM, `os._exit`, a crash. So a second process
(`guardian_main`) waits for that, and knows what to kill: the groups it was told of, and whatever carries the program's mark; and those
processes, started by others, that were found in something held, each with all that is below it.

Why not the obvious ones: PDEATHSIG follows the *thread* that started the child and does not reach grandchildren; preexec_fn is not safe
in a program with threads; a supervisor in front of the program would have to be there before it starts.

Invariants
- The guard runs before a child is started (`ensure`), and the mark is in the child's environment from its first instruction. A program
  that dies between the start and `register` leaves nothing unseen.
- `forget` comes before the leader is reaped: from then on its group id can belong to a stranger. Processes of others are reaped by
  others: they are known by pid and start time, and never by the pid alone.
- Nothing here raises into the caller or waits for the guard. What it was not told is told it again later (`_behind`), and meanwhile
  the mark does.
- All of it may run again inside itself: in a signal handler, in `__del__`, in another thread. Hence a re-entrant lock, only round
  starting; every other step is one atomic operation. Our end of the socket keeps its number for life (a new guard's is moved onto it), or
  a thread about to write could hit a file that was opened in between.
- It is a socket rather than a pipe because a write to a dead guard must not raise SIGPIPE: not every program ignores that.
- The program's id is a secret: whoever knows it can give processes its mark, and have them killed. So it is in environments, which only
  the same user can read, and on no command line.
- It is watched (`guardian_watch`): killed or stopped, it is replaced at once. The old one is ended when the new one runs, so that
  there is no moment without one, and before its end of the socket is closed, which it would take for our death.
- A forked child starts afresh: another program id, no groups, no guard, and our end of the socket closed.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from quiesce._safe.printed import logger

from . import guardian_watch, procfs

_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guardian_main.py")
_SOON = 1.0  # a guard that dies sooner than this after its start was never well
_STUCK = (
    10.0  # one that has not read for so long after its start; a busy machine may need seconds to start it
)
_TRIES = 5
_LINES_A_MESSAGE = 50  # short enough to be sent whole or not at all


class _Guardian:
    """What one program (one process, between forks) knows of its guard."""

    def __init__(self) -> None:
        self.program = os.urandom(16).hex()
        self._since = procfs.start_time(os.getpid())
        self.groups: dict[int, int] = {}
        self.trees: dict[int, int] = {}  # others': pid and start time
        self.marks_given = False
        self.process: subprocess.Popen[bytes] | None = None
        self._replaced: list[subprocess.Popen[bytes]] = []  # to be ended
        self.socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._ensuring = set[int]()  # threads
        self._started_at = 0.0
        self._behind = False
        self._failures = 0
        self._given_up = False
        self._watcher: threading.Thread | None = None

    def new_mark(self) -> str:
        self.marks_given = True
        return f"{self.program}.{next(self._numbers)}"

    def ensure(self) -> None:
        thread = threading.get_ident()
        if thread in self._ensuring:
            return  # we are in a signal handler or a finalizer: what it interrupts goes on with it
        self._ensuring.add(thread)
        try:
            with self._lock:
                if self._given_up:
                    return
                if not self._is_well():
                    if self.process is not None:
                        logger.info(
                            "the guard process %s ended or was stopped: another one takes its place",
                            self.process.pid,
                        )
                    self._start()
                if self._behind:
                    self._tell_all()
        except Exception:
            logger.warning("quiesce could not start its guard process; it will be tried again", exc_info=True)
        finally:
            self._ensuring.discard(thread)

    def register(self, group: int) -> None:
        # Noted before it is sent: whoever restarts the guard in between tells it of this group too.
        self.groups[group] = procfs.start_time(group)
        self.ensure()
        self._send(self._line(group), self.socket)

    def forget(self, group: int) -> None:
        if self.groups.pop(group, None) is not None:
            self._send(f"-{group}\n", self.socket)

    def register_tree(self, pid: int, start: int) -> None:
        self.trees[pid] = start
        self.ensure()
        self._send(f"*{pid} {start}\n", self.socket)

    def forget_tree(self, pid: int, start: int) -> None:
        if self.trees.get(pid) == start:
            del self.trees[pid]
            self._send(f"/{pid}\n", self.socket)

    def _line(self, group: int) -> str:
        return f"+{group} {self.groups.get(group, 0)}\n"

    def _is_well(self) -> bool:
        if self.process is None or not self._owns_socket():
            return False
        age = time.monotonic() - self._started_at
        if self.process.poll() is not None or guardian_watch.has_stopped(self.process.pid):
            self._failures = self._failures + 1 if age < _SOON else 0
            return False
        if self._behind:
            self._tell_all()
        return not self._behind or age < _STUCK

    def _owns_socket(self) -> bool:
        # A program that closes all descriptors, as daemons do, may since have opened its own file under this number.
        return self.socket is not None and _identity(self.socket) == self._identity

    def _start(self) -> None:
        python = _interpreter()
        if python is None or self._failures >= _TRIES:
            self._given_up = True
            why = f"{python} does not run it" if python else "no Python interpreter was found to run it"
            logger.warning(
                "quiesce has no guard process (%s): if this program is killed, its child processes live on",
                why,
            )
            return
        self._behind = True
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as unless_moved, contextlib.ExitStack() as unless_started:
            unless_moved.callback(ours.close)
            with theirs:
                ours.setblocking(False)
                ours.send(
                    f"!{self.program}\n".encode()
                )  # it waits there: from its first moment the guard knows the mark
                started = subprocess.Popen(
                    [python, "-I", "-S", "-B", _MAIN, str(os.getpid()), str(self._since)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={**os.environ, procfs.VARIABLE: procfs.GUARD_TAG},
                    start_new_session=True,
                )
            unless_started.callback(_end, started)  # before `ours` is closed
            self._send_all(ours)
            if self.process is not None:
                self._replaced.append(self.process)
            self.process, self._started_at = started, time.monotonic()
            unless_started.pop_all()
            self._end_replaced()
            identity = _identity(ours)
            if self.socket is not None and self._owns_socket():
                os.dup2(ours.fileno(), self.socket.fileno(), inheritable=False)
            else:
                if self.socket is not None:
                    self.socket.detach()  # closing it would close somebody else's file
                self.socket = ours
                unless_moved.pop_all()
            self._identity = identity
        if self._watcher is None or not self._watcher.is_alive():
            self._watcher = guardian_watch.watch(self._watched, self._mend)

    def _end_replaced(self) -> None:
        """Each is taken off the list when it has ended: a signal handler may raise in between."""
        while self._replaced:
            _end(self._replaced[-1])
            self._replaced.pop()

    def _watched(self) -> int | None:
        process = self.process
        return process.pid if process is not None and not self._given_up else None

    def _mend(self) -> None:
        with self._lock:
            if self.process is not None:  # else it was dismissed
                self.ensure()

    def _tell_all(self) -> None:
        self._behind = False
        try:
            self._send_all(self.socket)
        except BaseException:  # a signal handler's
            self._behind = True
            raise

    def _send_all(self, end: socket.socket | None) -> None:
        self._send("=\n", end)
        # Read after that line is out: a group noted later sends its own line after it.
        groups, trees = list(self.groups), dict(self.trees)
        for pid, start in trees.items():
            self._send(f"*{pid} {start}\n", end)
        for first in range(0, len(groups), _LINES_A_MESSAGE):
            self._send("".join(map(self._line, groups[first : first + _LINES_A_MESSAGE])), end)
        for group in groups:
            if group not in self.groups:  # forgotten while we told it
                self._send(f"-{group}\n", end)
        for pid, start in trees.items():
            if self.trees.get(pid) != start:
                self._send(f"/{pid}\n", end)

    def _send(self, lines: str, end: socket.socket | None) -> None:
        if end is None:
            return
        data = lines.encode()
        try:
            is_ours = end is not self.socket or self._owns_socket()
            sent = end.send(data, getattr(socket, "MSG_NOSIGNAL", 0)) if is_ours else 0
        except OSError:  # it is dead, or does not read: the next `ensure` sees to it
            sent = 0
        if sent < len(data):
            self._behind = True

    def find(self) -> list[procfs.Proc]:
        if not self._has_any():
            return []
        known = procfs.living(self.trees.copy())
        return procfs.find(self.groups.copy(), self.program, since=self._oldest(), known=known)

    def sweep(self, sig: int, known: list[procfs.Proc]) -> list[procfs.Proc]:
        if not self._has_any():
            return []
        known_now = procfs.living(self.trees.copy()) | set(known)
        return procfs.sweep(self.groups.copy(), self.program, sig, since=self._oldest(), known=known_now)

    def _has_any(self) -> bool:
        return self.marks_given or bool(self.groups) or bool(self.trees)

    def _oldest(self) -> int:
        """Since when sessions count: others' processes may be in the one that we were started in."""
        return 0 if self.trees else self._since

    def kill_all(self, within: float, known: list[procfs.Proc]) -> list[procfs.Proc]:
        give_up_at = time.monotonic() + within
        while known := self.sweep(signal.SIGKILL, known):
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.005)
        return known

    def terminate_all(self, grace: float) -> list[procfs.Proc]:
        left = self.sweep(signal.SIGTERM, [])
        kill_at = time.monotonic() + grace
        while left and time.monotonic() < kill_at:
            time.sleep(0.005)
            left = [proc for proc in left if procfs.still_alive(proc)]
        return left

    def dismiss(self, *, nothing_left: bool) -> None:
        """End the guard, which has nothing to do; or let it go, to do what we could not."""
        process, self.process = self.process, None
        if process is not None:
            self._replaced.append(process)
        if nothing_left:
            self._end_replaced()
        for process in self._replaced:
            process.returncode = process.returncode or 0
        if self.socket is not None:
            if self._owns_socket():
                self.socket.close()
            else:
                self.socket.detach()
            self.socket = None


def _identity(end: socket.socket) -> tuple[int, int] | None:
    try:
        status = os.fstat(end.fileno())
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.returncode = process.returncode or 0


def _interpreter() -> str | None:
    """A Python to run the guard. In a frozen or embedding program `sys.executable` is that program, which must not be started."""
    if getattr(sys, "frozen", False) or not os.path.isfile(_MAIN):
        return None
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, os.path.join(sys.base_exec_prefix, "bin", version)):
        if (
            path
            and os.path.basename(path).lower().startswith(("python", "pypy"))
            and os.access(path, os.X_OK)
        ):
            return path
    return None


_current = _Guardian()


def pid() -> int | None:
    """The guard's process id, if it was started."""
    return _current.process.pid if _current.process is not None else None


def fd() -> int | None:
    """Our end of the socket to the guard, if it was started."""
    return _current.socket.fileno() if _current.socket is not None else None


def program_id() -> str:
    """The random id that begins every mark of this program."""
    return _current.program


def new_mark() -> str:
    """A mark for one tree. Put it into the child's environment with `marked`."""
    return _current.new_mark()


def marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """A copy of an environment that carries this mark, after those that this program itself inherited."""
    outer = os.environ.get(procfs.VARIABLE)
    return {**environment, procfs.VARIABLE: f"{outer};{mark}" if outer else mark}


def ensure() -> None:
    """Start the guard if it does not run. Call it before starting a child."""
    _current.ensure()


def register(group: int) -> None:
    """Have this process group killed if we die."""
    _current.register(group)


def forget(group: int) -> None:
    """No longer guard this group. Call it before its leader is reaped."""
    _current.forget(group)


def register_tree(proc: procfs.Proc) -> None:
    """Have this process, which others have started, killed with all that is below it if we die."""
    _current.register_tree(proc.pid, proc.starttime)


def forget_tree(proc: procfs.Proc) -> None:
    """No longer guard it. Whether it still runs does not matter."""
    _current.forget_tree(proc.pid, proc.starttime)


def find_all() -> list[procfs.Proc]:
    """All living processes of all trees of this program."""
    return _current.find()


def kill_all_now(within: float = 0.5) -> list[procfs.Proc]:
    """SIGKILL to all trees of this program, and wait that long for them to go. Returns what is left; for use just before `os._exit`."""
    return _current.kill_all(within, [])


def stop_all(grace: float = 0.5, within: float = 1.0) -> list[procfs.Proc]:
    """SIGTERM to all trees of this program, `grace` seconds, then SIGKILL; all in `within` seconds. Returns what is left."""
    return _current.kill_all(within - grace, _current.terminate_all(grace))


def _at_exit() -> None:
    nothing_left = not kill_all_now(within=0.1)
    with _current._lock:  # not while the guard is being replaced
        _current.dismiss(nothing_left=nothing_left)


def _after_fork_in_child() -> None:
    global _current
    # The guard is the parent's, and not to be ended by us; only our copies of what leads to it go.
    _current.dismiss(nothing_left=False)
    _current = _Guardian()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
