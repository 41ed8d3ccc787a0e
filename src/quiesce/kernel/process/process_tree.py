"""A child process with all its descendants: started, signalled, watched and reaped as one.

The child becomes the leader of a new session and carries a mark in its environment (see `procfs` for which
processes belong to the tree, `guardian` for what happens to it if this program dies). Everything here is
synchronous and returns at once; waiting is for the layer above.

Invariants
- The leader's exit becomes known without reaping it. A zombie keeps its pid, and with it the group id, so
  that a signal to the group cannot hit a stranger. `reap` is the last step, when no process of the tree is
  left to signal.
- Other code may still reap it: a program that ignores SIGCHLD, or waits for any child. Then the exit is known
  but not the status (`UNKNOWN_STATUS`), and the members are found by start time, session and mark.
- A tree is in `_live` from its start until it is reaped: if its owner drops it, it is still ended at exit.
- "No members" is true only at the moment of the scan: a process may have forked behind its back. Stop a tree
  in a loop: `signal`, then `members`, until that is empty.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final

from quiesce._safe.printed import logger

from . import guardian, procfs

UNKNOWN_STATUS: Final = 511
"""The exit status of a leader that other code has reaped.

No process can return it; passed on to `sys.exit`, it still means failure.
"""

_live: dict[str, Tree] = {}

Stdio = int | IO[bytes] | None


class Tree:
    """A running command and its descendants. Raises OSError, with what to do about it, if it cannot start.

    `stdin`, `stdout` and `stderr` are as for `subprocess.Popen`. Pipes are unbuffered, and the caller closes
    them.
    """

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        stdin: Stdio = None,
        stdout: Stdio = None,
        stderr: Stdio = None,
    ) -> None:
        if os.name != "posix":
            raise NotImplementedError(
                "process trees need POSIX sessions and signals, which this platform does not have"
            )
        self.argv = _check_argv(argv)
        uid = _uid_of(user, self.argv[0])
        guardian.ensure()
        self.mark = guardian.new_mark()
        self._owner_pid = os.getpid()
        self._status: int | None = None
        self._exit_fd: int | None = None
        self._group_was_killed = False
        self._known_members: frozenset[procfs.Proc] = frozenset()
        self.unseen = ""  # why the last scan may have found too few
        # No member is older than this program; the leader's own start time is closer, if it can be read.
        self._since = procfs.start_time(self._owner_pid)
        self.leader_start = 0
        environment = dict(os.environ if env is None else env)
        # Made and initialised in two steps: if a signal handler raises in the middle of the start, we still
        # have the object, and with it the pid and the pipes.
        self._popen = _Child.__new__(_Child)
        try:
            _Child.__init__(
                self._popen,
                self.argv,
                bufsize=0,
                cwd=cwd,
                env=guardian.marked(environment, self.mark),
                user=uid,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise explain_failed_start(error, self.argv[0], cwd, environment.get("PATH"), user) from error
        except BaseException:  # for example KeyboardInterrupt, raised by a signal handler
            self.pid = getattr(self._popen, "pid", 0)
            self._undo()
            raise
        self.pid = self._popen.pid
        _live[self.mark] = self
        try:
            self.stdin, self.stdout, self.stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr
            self.leader_start = procfs.start_time(self.pid)
            self._since = self.leader_start or self._since
            with contextlib.suppress(AttributeError, OSError):
                self._exit_fd = os.pidfd_open(self.pid)
            guardian.register(self.pid)
        except BaseException:
            self._undo()
            raise

    def __repr__(self) -> str:
        state = "running" if self._status is None else f"exited with {self._status}"
        return f"<Tree pid {self.pid} {self.argv[0]!r}, leader {state}>"

    def exit_status(self) -> int | None:
        """The leader's exit code, minus the signal that killed it, or `UNKNOWN_STATUS`; None while it runs.

        Does not reap it: the pid stays taken until `reap`. (Where the platform cannot do that, it is reaped
        here.)
        """
        if self._status is not None:
            return self._status
        self._check_process()
        try:
            if hasattr(os, "waitid"):
                exited = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if exited is not None:
                    self._status = exited.si_status if exited.si_code == os.CLD_EXITED else -exited.si_status
            else:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._status = self._popen.returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            if self._status is None:  # otherwise another thread of ours has just reaped it
                self._status = UNKNOWN_STATUS
        return self._status

    def exit_fd(self) -> int | None:
        """A descriptor that is readable when the leader has exited; `reap` closes it. None without pidfds."""
        return self._exit_fd

    def peek(self) -> procfs.ScanResult:
        """As `members`, but it only looks: it remembers and reaps nothing, so any thread may call it."""
        groups = {self.pid: self.leader_start}
        return procfs.find(groups, self.mark, since=self._since, known=self._known_members)

    def members(self) -> list[procfs.Proc]:
        """The living processes of the tree. Without /proc: at most one entry, which means the whole group."""
        self._check_process()
        return self._remember(self.peek())

    def signal(self, sig: int) -> None:
        """Send a signal to the whole tree, in all its sessions. An ending signal also continues it."""
        self._check_process()
        groups = {self.pid: self.leader_start}
        self._remember(procfs.sweep(groups, self.mark, sig, since=self._since, known=self._known_members))
        self._group_was_killed |= sig == signal.SIGKILL

    def reap(self) -> bool:
        """Reap the leader if it has exited, so that its pid can be reused; returns whether it has.

        Take `exit_fd` out of the event loop first. From here on, only its mark guards what still runs of the
        tree.
        """
        if self._owner_pid != os.getpid():
            return True
        status = self.exit_status()
        if status is None:
            return False
        if _live.pop(self.mark, None) is None:
            return True
        guardian.forget(self.pid)
        # If other code has reaped the leader, its number may belong to another child: leave that one alone.
        if status != UNKNOWN_STATUS and self._popen.returncode is None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        self._release(status)
        return True

    def reap_if_gone(self) -> bool:
        """Reap the leader if all of the tree has exited; returns whether it has."""
        if self._owner_pid != os.getpid():
            return True
        return self.exit_status() is not None and not self.members() and self.reap()

    def _remember(self, found: procfs.ScanResult) -> list[procfs.Proc]:
        self.unseen = found.unseen
        # Without /proc a group answers while its leader is a zombie. After SIGKILL it has no other member.
        all_dead = self._group_was_killed and self.exit_status() is not None
        alive = [proc for proc in found if proc.starttime or not all_dead]
        before, self._known_members = self._known_members, frozenset(alive)
        for proc in before - self._known_members:
            if proc.pid != self.pid:
                procfs.collect(proc)
        return alive

    def _release(self, status: int) -> None:
        self._popen.returncode = status
        descriptor, self._exit_fd = self._exit_fd, None
        if descriptor is not None:
            os.close(descriptor)

    def _check_process(self) -> None:
        if self._owner_pid != os.getpid():
            raise RuntimeError(
                f"process {self.pid} ({self.argv[0]}) belongs to process {self._owner_pid}, which started it "
                "and then forked this one; start a process of its own here"
            )

    def _undo(self) -> None:
        """Undo a start that was interrupted."""
        # If it was interrupted before Popen stored the pid, only the mark leads to the new process.
        if self.pid:
            _live[self.mark] = self
        procfs.sweep({self.pid: 0} if self.pid else {}, self.mark, signal.SIGKILL, since=self._since)
        for name in ("stdin", "stdout", "stderr"):
            pipe = getattr(self._popen, name, None)
            if pipe is not None:
                pipe.close()
        give_up_at = time.monotonic() + 0.1
        while self.pid and not self.reap() and time.monotonic() < give_up_at:
            time.sleep(0.001)


class _Child(subprocess.Popen[bytes]):
    """A Popen that never reaps its child by itself: the tree decides when."""

    def __del__(self) -> None:
        """Popen's own would warn about a running child, and reap it at some later time."""


def live() -> list[Tree]:
    """The trees that were started and not reaped yet."""
    return list(_live.values())


def _check_argv(argv: Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(argv, (str, bytes, os.PathLike)):
        raise TypeError(
            f"a command is a list of strings, not {argv!r}: write [{os.fspath(argv)!r}], split it with shlex.split(), "
            'or run a shell: ["sh", "-c", ...]'
        )
    checked: list[str] = []
    for index, argument in enumerate(argv):
        text = os.fspath(argument) if isinstance(argument, (str, os.PathLike)) else None
        if not isinstance(text, str):
            raise TypeError(f"argument {index} of a command is {argument!r}: not a string or a path")
        if "\0" in text:
            raise ValueError(f"argument {index} of a command has a null character in it: {text!r}")
        checked.append(text)
    if not checked or not checked[0]:
        raise ValueError(
            "a command needs at least the name of a program, but "
            + ("its name is empty" if checked else "it is empty")
        )
    return checked


def _uid_of(user: str | int | None, command: str) -> int | None:
    # Popen could look it up, but if there is no such user, it leaves its pipes open.
    if not isinstance(user, str):
        return user
    import pwd  # not on Windows

    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        problem = f"there is no user {user!r} on this machine"
        raise OSError(errno.EINVAL, f"cannot start {command!r}: {problem}") from None


def explain_failed_start(
    error: OSError,
    command: str,
    cwd: str | os.PathLike[str] | None,
    path: str | None,
    user: str | int | None,
) -> OSError:
    """The same error with a message that says what is wrong and what to do."""
    place = "" if cwd is None else os.fspath(cwd)
    where = os.path.join(place, command) if os.path.dirname(command) else shutil.which(command, path=path)
    if cwd is not None and not os.path.isdir(place):
        problem = f"its working directory {place!r} " + (
            "is not a directory" if os.path.exists(place) else "does not exist"
        )
    elif cwd is not None and not os.access(place, os.X_OK):
        problem = f"its working directory {place!r} may not be entered"
    elif error.errno == errno.EPERM and user is not None:
        problem = f"it may not be run as {user!r}; only root may run a program as another user"
    elif error.errno == errno.ENOENT and where is not None and os.path.exists(where):
        problem = f"{where!r} exists, but the interpreter that its first line names does not"
    elif error.errno == errno.ENOENT and where is None:
        problem = f"no such program in PATH ({path or os.defpath}); install it, or give its full path"
    elif error.errno == errno.ENOENT:
        problem = f"no file {where!r}; check its path"
    elif error.errno == errno.EACCES and where is not None and os.path.isdir(where):
        problem = f"{where!r} is a directory"
    elif error.errno == errno.EACCES:
        problem = "it may not be executed; chmod +x it, or run it with its interpreter"
    elif error.errno == errno.ENOEXEC:
        problem = (
            "it is neither a program for this machine nor a script that begins with #! and its interpreter"
        )
    else:
        problem = error.strerror or str(error)
    return OSError(error.errno, f"cannot start {command!r}: {problem}")


def _at_exit() -> None:
    if left := guardian.find_all():
        logger.warning("still running at exit, stopped now: %s", "; ".join(proc.describe() for proc in left))
    guardian.stop_all()
    for tree in live():
        tree.reap()


def _after_fork_in_child() -> None:
    for tree in live():
        tree._release(UNKNOWN_STATUS)
    _live.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
