"""The guard: a process between us and the command, which stops the command's tree if we die.

It is forked from us, is the command's parent and a subreaper, and does little:

- It waits for the command, and reaps the orphans that become its children.
- It tells us, in lines on a pipe: `pid N`, `exited STATUS`, `stopped SIGNAL`, `continued`; `empty` when nothing
  of the tree is left; `tty SIGNAL`; `unable ERRNO` if it could not fork; and `failed ERRNO`, which comes from
  the command's own process, if it could not be executed.
- If the command has a process group of its own, it is a member, or leads it, and ignores what the terminal sends
  to the group; but it tells us of Ctrl-C and of a hang-up (`tty`). Signals that the command sends to its own
  group, with `kill 0`, look different: they have a sender. If the command shares our group, the guard leaves it,
  so that `kill -9 0` spares it.
- When we exit, it ends the tree: SIGTERM, and after the grace SIGKILL. If we had begun to stop the tree by
  then, it has had its time, and SIGKILL comes at the time that we would have sent it.

It waits for signals alone, with `sigwaitinfo`, and all of them are blocked: so nothing but SIGKILL ends it, and
nothing interrupts it. If it is killed, the command becomes our child, and we go on alone. When the tree has
ended, we kill it.

The end of the tree is not looked up, but known: every process of it is a child of the guard, or a descendant of
one. So when the guard has no child, alive or zombie, there is no such process; Linux says that in one step. A
look through /proc is never one step, and can miss what forks meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from quiesce.kernel.inner import (
    SENT_BY_KERNEL,
    become_subreaper,
    child_changes,
    descendants,
    procfs,
    signal_when_parent_exits,
)

from .launching import Command, launch
from .tree import Tree

# What the guard hears from us: that we have died, and that we have begun to stop the tree.
_DEATH, STOP_HAS_BEGUN = signal.SIGUSR1, signal.SIGUSR2
_TOLD = (signal.SIGINT, signal.SIGHUP)
_LOOK_EVERY = 0.02
_MOST_DESCRIPTORS = 65536  # that are tried one by one


class Parent:
    """What the parent of the command does: start it, wait for it, reap orphans. In the guard, or in us."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self.pid = 0

    def start(self, command: Command) -> None:
        """Start the command, and tell its pid."""
        try:
            self.pid = launch(command, lambda error: self._tell(f"failed {error.errno}"))
        except OSError as error:
            self._tell(f"unable {error.errno}")
        else:
            self._tell(f"pid {self.pid}")

    def wait(self) -> None:
        """Tell what has become of the command, if anything has, and reap orphans. Does not block."""
        for pid, status in child_changes():
            if pid != self.pid:
                continue
            if os.WIFSTOPPED(status):
                self._tell(f"stopped {os.WSTOPSIG(status)}")
            elif os.WIFCONTINUED(status):
                self._tell("continued")
            else:
                self._tell(f"exited {status}")


def fork_guard(command: Command, grace: float) -> tuple[int, int]:
    """Start the guard, and it the command. Returns the guard's pid, and where its messages come from.

    All signals must be blocked. OSError: it cannot be started.
    """
    ours, theirs = os.pipe()
    program = os.getpid()
    guard = os.fork()
    if guard == 0:
        try:
            os.close(ours)
            _Guard(program, theirs, grace).run(command)
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
        self._group = 0  # of the command, if it has its own
        self._tree = Tree(os.getpid, self._signal_group)

    def run(self, command: Command) -> NoReturn:
        become_subreaper()
        signal_when_parent_exits(_DEATH)
        if command.own_group and not command.leads:
            os.setpgid(0, 0)  # the command is born into it
        parent = Parent(self._tell)
        parent.start(command)
        if command.own_group:
            self._group = parent.pid if command.leads else os.getpid()
        self._settle_down()
        while os.getppid() == self._program:
            parent.wait()
            if not descendants.have_any():
                self._tell("empty")
            found = signal.sigwaitinfo(signal.valid_signals())
            if found.si_code == SENT_BY_KERNEL and found.si_signo in _TOLD and command.own_group:
                self._tell(f"tty {found.si_signo}")
            elif found.si_pid == self._program and found.si_signo == STOP_HAS_BEGUN:
                self._kill_at = time.monotonic() + self._grace
        self._stop_all(parent)
        os._exit(0)

    def _settle_down(self) -> None:
        """Leave nothing of ours in the way of the command, and join its process group, or make one."""
        try:
            os.setpgid(0, self._group)
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
            if not descendants.have_any():
                return
            time.sleep(_LOOK_EVERY)
        self._tree.kill()

    def _signal_group(self, number: int) -> None:
        if self._group:
            procfs.signal_group(self._group, number)  # its number is nobody else's as long as we are in it

    def _tell(self, message: str) -> None:
        if message == "continued" and (program := procfs.look_up(self._program)) and program.state == "T":
            os.kill(self._program, signal.SIGCONT)  # somebody has continued the command alone
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
    for number in open_descriptors():
        if number > 2 and number not in keep and _is_inherited(number):
            os.close(number)


def open_descriptors() -> Iterable[int]:
    """At least all that are open."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # there is no /proc, or no descriptor left to read it
        return range(min(os.sysconf("SC_OPEN_MAX"), _MOST_DESCRIPTORS))


def reserve_standard_descriptors() -> None:
    """If we were started without one of the first three, take its place: what we open must not get that number.

    The command does not inherit what stands there.
    """
    while (number := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < 3:
        pass
    os.close(number)


def _is_inherited(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)  # Python's own are not inheritable
    except OSError:
        return False
