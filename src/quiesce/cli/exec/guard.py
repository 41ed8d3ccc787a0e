"""The guard: a process between us and the command, which stops the command's tree if we die.

It is forked from us, is the command's parent and a subreaper, and does little:

- It waits for the command, and reaps the orphans that become its children.
- It tells us, in lines on a pipe: `pid N`, `exited STATUS`, `stopped SIGNAL`, `tty SIGNAL`; and `failed ERRNO`,
  which comes from the command's own process, if it could not be executed.
- It is a member of the command's process group, and ignores what the terminal sends to that group; but it tells
  us of Ctrl-C and the like, for the sake of other members of our own group (`tty`). Signals that the command
  sends to its own group, with `kill 0`, look different: they have a sender.
- When we exit, it ends the tree: SIGTERM, and after the grace SIGKILL. If we had begun to stop the tree by
  then, it has had its time, and SIGKILL comes at the time that we would have sent it.

It waits for signals alone, with `sigwaitinfo`, and all of them are blocked: so nothing but SIGKILL ends it, and
nothing interrupts it. If it is killed, the command becomes our child, and we go on alone. When the tree has
ended, we kill it.

The command stays a zombie until the guard exits, so that no signal of ours can hit another process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from quiesce.kernel.inner import become_subreaper, reap_orphans, signal_when_parent_exits

from .foreground import Foreground
from .launch import launch
from .tree import Tree

# What the guard hears from us: that we have died, and that we have begun to stop the tree.
_DEATH, STOP_HAS_BEGUN = signal.SIGUSR1, signal.SIGUSR2
# What a terminal sends: the rest of our own group would have got it too.
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP)
_SENT_BY_KERNEL = 0x80  # SI_KERNEL
_LOOK_EVERY = 0.02
# Without reaping, which a zombie that was only asked for stops would answer with "no such child".
_CHANGES = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT if hasattr(os, "waitid") else 0


class Parent:
    """What the parent of the command does: start it, wait for it, reap orphans. In the guard, or in us."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self.pid = 0
        self.has_exited = False

    def start(self, argv: Sequence[str], mask: Collection[int], foreground: Foreground | None) -> None:
        """Start the command, and tell its pid."""
        self.adopt(launch(argv, mask, foreground, lambda error: self._tell(f"failed {error.errno}")))
        self._tell(f"pid {self.pid}")

    def adopt(self, pid: int) -> None:
        """The command is our child."""
        self.pid = pid

    def wait(self) -> None:
        """Tell what has become of the command, if anything has, and reap orphans. Does not block."""
        while not self.has_exited and (changed := os.waitid(os.P_PID, self.pid, _CHANGES)) is not None:
            if changed.si_code in (os.CLD_STOPPED, os.CLD_CONTINUED):
                os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
            if changed.si_code == os.CLD_STOPPED:
                self._tell(f"stopped {changed.si_status}")
            elif changed.si_code != os.CLD_CONTINUED:
                self.has_exited = True
                code = changed.si_status << 8 if changed.si_code == os.CLD_EXITED else changed.si_status
                self._tell(f"exited {code}")
        reap_orphans(self.pid)


def fork_guard(
    argv: Sequence[str], mask: Collection[int], foreground: Foreground | None, grace: float
) -> tuple[int, int]:
    """Start the guard, and it the command. Returns the guard's pid, and where its messages come from.

    All signals must be blocked.
    """
    ours, theirs = os.pipe()
    program = os.getpid()
    guard = os.fork()
    if guard == 0:
        try:
            os.close(ours)
            _Guard(program, theirs, grace).run(argv, mask, foreground)
        finally:
            os._exit(1)
    os.close(theirs)
    return guard, ours


class _Guard:
    def __init__(self, program: int, messages: int, grace: float) -> None:
        self._program = program
        self._messages = messages
        self._grace = grace
        self._kill_at: float | None = None
        self._tree = Tree(os.getpid)

    def run(self, argv: Sequence[str], mask: Collection[int], foreground: Foreground | None) -> NoReturn:
        become_subreaper()
        signal_when_parent_exits(_DEATH)
        parent = Parent(self._tell)
        parent.start(argv, mask, foreground)
        self._settle_down(parent)
        while os.getppid() == self._program:
            parent.wait()
            found = signal.sigwaitinfo(signal.valid_signals())
            if found.si_code == _SENT_BY_KERNEL and found.si_signo in FROM_TERMINAL:
                self._tell(f"tty {found.si_signo}")
            elif found.si_pid == self._program and found.si_signo == STOP_HAS_BEGUN:
                self._kill_at = time.monotonic() + self._grace
        self._stop_all(parent)
        os._exit(0)

    def _settle_down(self, parent: Parent) -> None:
        """Leave nothing of ours in the way of the command, and join its process group."""
        try:
            os.setpgid(0, parent.pid)
        except OSError:
            pass  # it has made a session of its own already: then the terminal signals it no more than us
        release_descriptors(self._messages)
        os.chdir("/")
        try:
            with open("/proc/self/comm", "wb", buffering=0) as name:  # the name that `top` shows
                name.write(b"quiesce-guard")
        except OSError:
            pass

    def _stop_all(self, parent: Parent) -> None:
        kill_at = self._kill_at
        if kill_at is None:
            kill_at = time.monotonic() + self._grace
            self._tree.terminate()
        while time.monotonic() < kill_at:
            parent.wait()
            if not self._tree.members():
                break
            time.sleep(_LOOK_EVERY)
        self._tree.kill()

    def _tell(self, message: str) -> None:
        try:
            os.write(self._messages, f"{message}\n".encode())
        except OSError:  # we have died: it will notice
            pass


def release_descriptors(*keep: int) -> None:
    """Let go of what was inherited for the command: only it, and what it starts, should hold its pipes open."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):
        if number not in keep:
            os.dup2(nothing, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep and _is_inherited(int(name)):
            os.close(int(name))


def _is_inherited(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)  # Python's own are not inheritable
    except OSError:
        return False
