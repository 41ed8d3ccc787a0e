"""One guard process per program, which outlives it and kills the process trees that it left running.

A program can die without running any of its own code: SIGKILL, the default action of SIGTERM, `os._exit`, a
crash. So a second process (`guardian_main`) waits for that. It knows what to kill: the groups that were
registered, whatever carries the program's mark, and the processes of other code that an owner task contains,
each with its descendants.

Why not the obvious ways: PDEATHSIG follows the *thread* that started the child, and does not reach
grandchildren; preexec_fn is not safe in a program with threads; a supervisor would have to run before the
program does.

Invariants
- The guard runs before a child is started (`ensure`), and the child's environment carries the mark from its
  first instruction. A program that dies between the start and `register` leaves nothing that the guard cannot
  find.
- `forget` comes before the leader is reaped: from then on its group id can belong to a stranger. Processes of
  other code are reaped by that code: they are known by pid and start time, and never by the pid alone.
- Nothing here raises into the caller or waits for the guard. What could not be sent is sent again later
  (`_needs_full_list`); until then the mark is enough.
- All of it is re-entrant: it may run in a signal handler, in `__del__`, in another thread. Hence a re-entrant
  lock, and only around starting; every other step is one atomic operation. Our end of the socket keeps its
  number for life (the end to a new guard is moved onto it), or a thread about to write could hit a file that
  was opened in between.
- It is a socket rather than a pipe because a write to a dead guard must not raise SIGPIPE: not every program
  ignores that signal.
- The program's id is a secret: a process that knows it can put its mark on others, and have them killed. So
  it is only in environments, which the same user alone can read, and on no command line.
- A guard that is killed or stopped is replaced at once (`guardian_watch`). The old one is ended after the new
  one has started, so that there is always one, and before the old socket is closed, which it would take for
  our death.
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
_SHORTEST_LIFE = 1.0  # seconds: a guard that exits sooner than this after its start counts as a failed start
_LONGEST_START = 10.0  # seconds until a new guard must have read its list; a busy machine may need several
_MOST_FAILURES = 5
_LINES_PER_MESSAGE = 50  # short enough to be sent whole or not at all


class _Guardian:
    """What one program (one process, between forks) knows about its guard."""

    def __init__(self) -> None:
        self.program = os.urandom(16).hex()
        self._since = procfs.start_time(os.getpid())
        self.groups: dict[int, int] = {}
        self.trees: dict[int, int] = {}  # started by other code: pid and start time
        self._has_marks = False
        self.process: subprocess.Popen[bytes] | None = None
        self._old_guards: list[subprocess.Popen[bytes]] = []  # replaced, and still to be ended
        self.socket: socket.socket | None = None
        self._socket_identity: tuple[int, int] | None = None
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._ensuring_threads = set[int]()
        self._started_at = 0.0
        self._needs_full_list = False
        self._failures = 0
        self._is_disabled = False
        self._watcher: threading.Thread | None = None

    def new_mark(self) -> str:
        self._has_marks = True
        return f"{self.program}.{next(self._numbers)}"

    def ensure(self) -> None:
        thread = threading.get_ident()
        # In a signal handler or a finalizer that interrupted this very method: the interrupted call will
        # finish the job.
        if thread in self._ensuring_threads:
            return
        self._ensuring_threads.add(thread)
        try:
            with self._lock:
                if self._is_disabled:
                    return
                if not self._is_healthy():
                    if self.process is not None:
                        logger.info(
                            "the guard process %s exited or was stopped: it is replaced", self.process.pid
                        )
                    self._start()
                if self._needs_full_list:
                    self._send_full_list()
        except Exception:
            logger.warning("quiesce could not start its guard process; it will be tried again", exc_info=True)
        finally:
            self._ensuring_threads.discard(thread)

    def register(self, group: int) -> None:
        # Noted before it is sent: if the guard is replaced in between, the new one's list has this group too.
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

    def _is_healthy(self) -> bool:
        if self.process is None or not self._owns_socket():
            return False
        age = time.monotonic() - self._started_at
        if self.process.poll() is not None or guardian_watch.has_stopped(self.process.pid):
            self._failures = self._failures + 1 if age < _SHORTEST_LIFE else 0
            return False
        if self._needs_full_list:
            self._send_full_list()
        return not self._needs_full_list or age < _LONGEST_START

    def _owns_socket(self) -> bool:
        # A program that closes all descriptors, as daemons do, may have a file of its own under this number.
        return self.socket is not None and _identity(self.socket) == self._socket_identity

    def _start(self) -> None:
        python = _interpreter()
        if python is None or self._failures >= _MOST_FAILURES:
            self._is_disabled = True
            why = f"{python} does not run it" if python else "no Python interpreter was found to run it"
            logger.warning(
                "quiesce has no guard process (%s): if this program is killed, its child processes live on",
                why,
            )
            return
        self._needs_full_list = True
        ours, theirs = socket.socketpair()
        # A signal handler may raise between any two steps. So our end and the new process are always either
        # taken over or undone, the process first: a guard whose input ends takes that for our death.
        with contextlib.ExitStack() as unless_moved, contextlib.ExitStack() as unless_started:
            unless_moved.callback(ours.close)
            with theirs:
                ours.setblocking(False)
                # Sent before it runs: so the guard knows the mark from its first moment.
                ours.send(f"!{self.program}\n".encode())
                started = subprocess.Popen(
                    [python, "-I", "-S", "-B", _MAIN, str(os.getpid()), str(self._since)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={**os.environ, procfs.VARIABLE: procfs.GUARD_TAG},
                    start_new_session=True,
                )
            unless_started.callback(_end, started)
            self._send_all(ours)
            if self.process is not None:
                self._old_guards.append(self.process)
            self.process, self._started_at = started, time.monotonic()
            unless_started.pop_all()
            self._end_old_guards()
            identity = _identity(ours)
            if self.socket is not None and self._owns_socket():
                os.dup2(ours.fileno(), self.socket.fileno(), inheritable=False)
            else:
                if self.socket is not None:
                    self.socket.detach()  # its number may be a file of the program's by now
                self.socket = ours
                unless_moved.pop_all()
            self._socket_identity = identity
        if self._watcher is None or not self._watcher.is_alive():
            self._watcher = guardian_watch.watch(self._guard_pid, self._replace_guard)

    def _end_old_guards(self) -> None:
        # Taken off the list only when it has ended: a signal handler may raise in between.
        while self._old_guards:
            _end(self._old_guards[-1])
            self._old_guards.pop()

    def _guard_pid(self) -> int | None:
        process = self.process
        return process.pid if process is not None and not self._is_disabled else None

    def _replace_guard(self) -> None:
        with self._lock:
            if self.process is not None:  # else the program is exiting and has dismissed it
                self.ensure()

    def _send_full_list(self) -> None:
        self._needs_full_list = False
        try:
            self._send_all(self.socket)
        except BaseException:  # raised by a signal handler, half way through
            self._needs_full_list = True
            raise

    def _send_all(self, end: socket.socket | None) -> None:
        self._send("=\n", end)
        # Copied after that line is sent: a group that is registered later sends its own line behind it.
        groups, trees = list(self.groups), dict(self.trees)
        for pid, start in trees.items():
            self._send(f"*{pid} {start}\n", end)
        for first in range(0, len(groups), _LINES_PER_MESSAGE):
            self._send("".join(map(self._line, groups[first : first + _LINES_PER_MESSAGE])), end)
        # A group that was forgotten meanwhile sent its line before ours, without effect: send it again.
        for group in groups:
            if group not in self.groups:
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
        except OSError:  # the guard is dead, or does not read: the next `ensure` handles that
            sent = 0
        if sent < len(data):
            self._needs_full_list = True

    def find(self) -> list[procfs.Proc]:
        if not self._has_any():
            return []
        known = procfs.living(self.trees.copy())
        return procfs.find(self.groups.copy(), self.program, since=self._oldest_session(), known=known)

    def sweep(self, sig: int, known: list[procfs.Proc]) -> list[procfs.Proc]:
        if not self._has_any():
            return []
        known_now = procfs.living(self.trees.copy()) | set(known)
        groups, since = self.groups.copy(), self._oldest_session()
        return procfs.sweep(groups, self.program, sig, since=since, known=known_now)

    def _has_any(self) -> bool:
        return self._has_marks or bool(self.groups) or bool(self.trees)

    def _oldest_session(self) -> int:
        """Sessions older than this are not scanned."""
        # Processes of other code may be in the session that this program was started in.
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
        """End the guard if nothing is left for it to kill; otherwise let it kill what we could not."""
        process, self.process = self.process, None
        if process is not None:
            self._old_guards.append(process)
        if nothing_left:
            self._end_old_guards()
        for process in self._old_guards:
            process.returncode = process.returncode or 0  # or Popen would warn that it still runs
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
    process.returncode = process.returncode or 0  # or Popen would warn that it still runs


def _interpreter() -> str | None:
    """A Python that can run the guard, or None."""
    # In a frozen program, or one that embeds Python, `sys.executable` is that program: do not start it again.
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
    """The guard's process id; None if it was not started."""
    return _current.process.pid if _current.process is not None else None


def fd() -> int | None:
    """Our end of the socket to the guard; None if it was not started."""
    return _current.socket.fileno() if _current.socket is not None else None


def program_id() -> str:
    """The random id that begins every mark of this program."""
    return _current.program


def new_mark() -> str:
    """A new mark for one tree. Put it into the child's environment with `marked`."""
    return _current.new_mark()


def marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """A copy of an environment that carries this mark, after the marks that this program itself inherited."""
    outer = os.environ.get(procfs.VARIABLE)
    return {**environment, procfs.VARIABLE: f"{outer};{mark}" if outer else mark}


def ensure() -> None:
    """Start the guard if it is not running. Call this before starting a child."""
    _current.ensure()


def register(group: int) -> None:
    """Have this process group killed if this program dies."""
    _current.register(group)


def forget(group: int) -> None:
    """No longer guard this group. Call this before its leader is reaped."""
    _current.forget(group)


def register_tree(proc: procfs.Proc) -> None:
    """Have this process, started by other code, killed with its descendants if this program dies."""
    _current.register_tree(proc.pid, proc.starttime)


def forget_tree(proc: procfs.Proc) -> None:
    """No longer guard this process, whether it still runs or not."""
    _current.forget_tree(proc.pid, proc.starttime)


def find_all() -> list[procfs.Proc]:
    """All living processes of all trees of this program."""
    return _current.find()


def kill_all_now(within: float = 0.5) -> list[procfs.Proc]:
    """Send SIGKILL to all trees of this program until they have exited, for `within` seconds at most.

    Returns what is left. For use just before `os._exit`.
    """
    return _current.kill_all(within, [])


def stop_all(grace: float = 0.5, within: float = 1.0) -> list[procfs.Proc]:
    """Send SIGTERM to all trees of this program, after `grace` seconds SIGKILL; all in `within` seconds.

    Returns what is left.
    """
    return _current.kill_all(within - grace, _current.terminate_all(grace))


def _at_exit() -> None:
    nothing_left = not kill_all_now(within=0.1)
    with _current._lock:  # its watcher may be replacing the guard right now
        _current.dismiss(nothing_left=nothing_left)


def _after_fork_in_child() -> None:
    global _current
    # The guard is our parent's and must not be ended: we only drop our copies of what leads to it.
    _current.dismiss(nothing_left=False)
    _current = _Guardian()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
