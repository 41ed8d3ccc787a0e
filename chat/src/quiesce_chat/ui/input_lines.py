"""Lines of standard input, read without blocking the event loop: from a pipe, a terminal or a file.

Bytes that are not UTF-8 come as surrogates. A terminal is read only while this process is in its foreground: in the
background, its input belongs to another program, and reading would stop this one with SIGTTIN.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios

import anyio

from quiesce.kernel.inner import current_backend

CHUNK = 65536
#: Seconds between two checks whether this process is in the foreground again. No signal reliably announces that.
_POLL = 0.2


class InputLines:
    """Reads one descriptor. Only one task may read at a time."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._buffered = b""
        self._at_end = fd is None

    async def line(self) -> str | None:
        """The next line, without its end; None after the last one."""
        while b"\n" not in self._buffered and not self._at_end:
            data = await self._read()
            self._buffered += data
            self._at_end = not data
        if not self._buffered:
            return None
        line, _, self._buffered = self._buffered.partition(b"\n")
        return line.removesuffix(b"\r").decode("utf-8", "surrogateescape")

    async def all(self) -> str:
        """All remaining input."""
        while not self._at_end:
            data = await self._read()
            self._buffered += data
            self._at_end = not data
        remaining, self._buffered = self._buffered, b""
        return remaining.decode("utf-8", "surrogateescape")

    def has_pending(self) -> bool:
        """Whether input is waiting already. False for a terminal, where the user has not been asked to type yet."""
        if self._fd is None or os.isatty(self._fd):
            return False
        try:
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                return os.fstat(self._fd).st_size > os.lseek(self._fd, 0, os.SEEK_CUR)
            waiting = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4))
            return int.from_bytes(waiting, sys.byteorder) > 0
        except OSError:  # neither a file nor a pipe
            return False

    def discard_pending(self) -> None:
        """Discard what was typed at a terminal and not read yet."""
        self._buffered = b""
        if self._fd is not None and os.isatty(self._fd) and not _in_background(self._fd):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    async def _read(self) -> bytes:
        assert self._fd is not None
        while True:
            try:
                await current_backend().wait_readable(self._fd)
            except PermissionError:  # a plain file, which is always ready
                pass
            # After the wait and not before: the shell may have moved this process to the background meanwhile.
            if not _in_background(self._fd):
                break
            await anyio.sleep(_POLL)
        try:
            return os.read(self._fd, CHUNK)
        except OSError:  # the terminal was closed
            return b""


def _in_background(fd: int) -> bool:
    """Whether the descriptor is our controlling terminal, and another process group is in its foreground."""
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:  # not a terminal, or not our controlling one
        return False


def standard_input() -> InputLines:
    """The lines of this process's standard input; none if it was started without one."""
    try:
        return InputLines(sys.stdin.fileno() if sys.stdin is not None else None)
    except (OSError, ValueError):
        return InputLines(None)
