"""The process that starts the program: what a shell or a client would be to it.

At a terminal it is the leader of the session, as a shell is. If the program itself were, the terminal would
hang up when it exits, which ends children that really live on. Otherwise it is the client that holds the other
ends of the program's input and output, and dies with them.

It tells, in lines on a pipe: `pid N`, `failed ERRNO`, `exited STATUS`. What the program writes goes to another.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from quiesce.cli.exec import Command, Foreground, launch
from quiesce.kernel.inner import signal_when_parent_exits

CLOSE_STDIN = signal.SIGUSR1  # what it does when it gets this
_LOOK_EVERY = 0.01
_SIZE = (24, 80)  # of the terminal


@dataclass
class Starter:
    """A starter that runs: its pid, where its messages come from, and the program's output."""

    pid: int
    messages: int
    output: int  # the terminal's other side, if there is one
    at_terminal: bool

    def close(self) -> None:
        """Close our ends. At a terminal that is the hang-up."""
        self.hang_up()
        self.stop_listening()

    def hang_up(self) -> None:
        """Close the terminal, or stop reading the output."""
        if self.output >= 0:
            os.close(self.output)
        self.output = -1

    def stop_listening(self) -> None:
        """Close our end of its messages."""
        if self.messages >= 0:
            os.close(self.messages)
        self.messages = -1


def start(argv: Sequence[str], environment: Mapping[str, str], *, at_terminal: bool) -> Starter:
    """Start the program in a session without a terminal, or with a new one."""
    messages, tell = os.pipe()
    output, theirs = os.openpty() if at_terminal else os.pipe()
    if at_terminal:
        fcntl.ioctl(output, termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))
    sys.stdout.flush()
    sys.stderr.flush()
    program = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            signal_when_parent_exits(signal.SIGKILL)
            if os.getppid() == program:
                _begin_session(theirs if at_terminal else -1)
                os.closerange(3, min(messages, tell, output, theirs))
                os.close(messages)
                os.close(output)
                _start_program(argv, environment, tell, theirs, at_terminal=at_terminal)
        finally:
            os._exit(1)
    os.close(tell)
    os.close(theirs)
    os.set_blocking(output, False)
    os.set_blocking(messages, False)
    return Starter(pid, messages, output, at_terminal)


def _begin_session(terminal: int) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(each, signal.SIG_DFL)
    os.setsid()
    if terminal >= 0:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(terminal, number)


def _start_program(
    argv: Sequence[str], environment: Mapping[str, str], messages: int, output: int, *, at_terminal: bool
) -> NoReturn:
    def tell(message: str) -> None:
        os.write(messages, f"{message}\n".encode())

    # As a client we copy what it writes: it has to be our pipe that breaks when we are killed.
    its_input, its_output = (-1, -1) if at_terminal else _put_pipes_in_place()
    os.environ.clear()
    os.environ.update(environment)
    command = Command(argv, (), False, True, True, Foreground() if at_terminal else None)
    pid = launch(command, lambda error: tell(f"failed {error.errno}"))
    if not at_terminal:
        signal.signal(CLOSE_STDIN, lambda number, frame: os.close(its_input))
        os.closerange(0, 3)
    tell(f"pid {pid}")
    has_exited = False
    while True:  # until we are killed: the session, and our ends of its pipes, outlive the program
        if not has_exited:
            ended, status = os.waitpid(pid, os.WNOHANG)
            has_exited = bool(ended)
            if has_exited:
                tell(f"exited {status}")
        for _ in wait_for_input([its_output], _LOOK_EVERY):
            data = os.read(its_output, 65536)
            if not data:
                its_output = -1
            os.write(output, data)


def _put_pipes_in_place() -> tuple[int, int]:
    """Put pipes in the place of the three standard streams; returns our ends of them."""
    reads, its_input = os.pipe()
    its_output, writes = os.pipe()
    for number, descriptor in enumerate((reads, writes, writes)):
        os.dup2(descriptor, number)
    os.close(reads)
    os.close(writes)
    return its_input, its_output


def wait_for_input(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Those of the descriptors that can be read within `seconds`. Those below 0 are left out."""
    ready, _, _ = select.select([each for each in descriptors if each >= 0], [], [], max(seconds, 0.0))
    return ready
