"""A terminal with a shell in it, for the tests of `quiesce exec`: what a user types, and what is seen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from .exec_commands import prepared

PROMPT = "READY> "
CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x04", "\x1a", "\x1c"


class Terminal:
    """The user's side of a terminal."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.process = process
        self.seen = ""
        self._at = 0

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, seconds: float = 10.0) -> str:
        """Wait until this text is seen, after what was expected before; returns what came before it."""
        give_up_at = time.monotonic() + seconds
        while (place := self.seen.find(text, self._at)) < 0:
            assert time.monotonic() < give_up_at, f"no {text!r} after {self.seen[self._at :]!r}"
            self._read(0.1)
        before = self.seen[self._at : place]
        self._at = place + len(text)
        return before

    def run(self, line: str) -> str:
        """Type a line to the shell; returns what is printed until the next prompt."""
        self.type(f"{line}\n")
        return self.expect(PROMPT)

    def status(self) -> int:
        """The exit status of the last command."""
        self.type("echo status $? end\n")
        self.expect("status ")
        status = int(self.expect(" end"))
        self.expect(PROMPT)
        return status

    def expect_stopped(self) -> None:
        """Wait until the shell has noticed that a job has stopped."""
        self.expect("Stopped")
        self.expect(PROMPT)
        # The shell waits for one process. Another one that was reading would still take the next line: Linux looks
        # for signals after it has looked for input.
        time.sleep(0.15)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def foreground(self) -> int:
        """The process group in the foreground."""
        return os.tcgetpgrp(self._master)

    def hang_up(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            try:
                self.seen += os.read(self._master, 4096).decode(errors="replace")
            except OSError:  # the other side is closed
                time.sleep(seconds)


@contextmanager
def terminal(command: Sequence[str]) -> Iterator[Terminal]:
    """A terminal whose session this command leads."""
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    process = subprocess.Popen(
        prepared("fcntl.ioctl(0, termios.TIOCSCTTY, 0)", command),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env=os.environ | {"PS1": PROMPT, "PS2": "", "TERM": "dumb", "HISTFILE": "/dev/null"},
    )
    os.close(slave)
    made = Terminal(master, process)
    try:
        yield made
    finally:
        made.hang_up()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def shell() -> Iterator[Terminal]:
    """A terminal with bash, which controls jobs."""
    with terminal(["bash", "--norc", "--noprofile", "--noediting", "-i"]) as made:
        made.expect(PROMPT)
        yield made
