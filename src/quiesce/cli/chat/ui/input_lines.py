"""Lines of standard input, waited for without blocking: from a pipe, a terminal or a file. Bytes that are no UTF-8 come as surrogates.

A terminal is read only while we are in its foreground: in the background, its words are for somebody else, and to read would stop the program.
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
_LOOK = 0.2  # seconds between two looks whether we are in the foreground again


class InputLines:
    """Reads one descriptor; one reader at a time."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._rest = b""
        self._ended = fd is None

    async def line(self) -> str | None:
        """The next line, without its end; None after the last one."""
        while b"\n" not in self._rest and not self._ended:
            data = await self._read()
            self._rest += data
            self._ended = not data
        if not self._rest:
            return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line.removesuffix(b"\r").decode("utf-8", "surrogateescape")

    async def all(self) -> str:
        """All that is left."""
        while not self._ended:
            data = await self._read()
            self._rest += data
            self._ended = not data
        rest, self._rest = self._rest, b""
        return rest.decode("utf-8", "surrogateescape")

    def has_some(self) -> bool:
        """Whether somebody has sent something already; never of a terminal, which nobody has turned to yet."""
        if self._fd is None or os.isatty(self._fd):
            return False
        try:
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                return os.fstat(self._fd).st_size > os.lseek(self._fd, 0, os.SEEK_CUR)
            waiting = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4))
            return int.from_bytes(waiting, sys.byteorder) > 0
        except OSError:  # of another kind
            return False

    def forget(self) -> None:
        """Drop what was typed at a terminal and not taken yet."""
        self._rest = b""
        if self._fd is not None and os.isatty(self._fd) and not _in_background(self._fd):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    async def _read(self) -> bytes:
        assert self._fd is not None
        while True:
            try:
                await current_backend().wait_readable(self._fd)
            except PermissionError:  # a plain file, which is always ready
                pass
            if not _in_background(self._fd):
                break
            await anyio.sleep(_LOOK)
        try:
            return os.read(self._fd, CHUNK)
        except OSError:  # a terminal that is gone
            return b""


def _in_background(fd: int) -> bool:
    """Whether it is our terminal, and another program's turn there."""
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:  # no terminal, or not ours
        return False


def standard_input() -> InputLines:
    """This process's own; nothing at all if it was started without."""
    try:
        return InputLines(sys.stdin.fileno() if sys.stdin is not None else None)
    except (OSError, ValueError):
        return InputLines(None)
