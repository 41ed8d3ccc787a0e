"""Our end of a pipe to a child process, without blocking and without transports.

Plain reads and writes, and the backend's wait where they would block. Any task may close a pipe while
another waits on it: the waiter then finds it closed.
"""

from __future__ import annotations

import os
from typing import IO

from ._backend import Backend


class PipeClosed(OSError):
    """Raised by a read or a write on a pipe that was closed on our side."""


class Pipe:
    """One end of a pipe."""

    __slots__ = ("_busy", "backend", "fd", "file", "what")

    def __init__(self, backend: Backend, file: IO[bytes], what: str) -> None:
        self.backend = backend
        self.file = file
        self.fd = file.fileno()
        self.what = what
        self._busy = False
        os.set_blocking(self.fd, False)

    @property
    def closed(self) -> bool:
        """Whether our end is closed."""
        return self.file.closed

    def close(self) -> None:
        """Close our end; whoever waits on it is woken. Twice is fine."""
        if not self.file.closed:
            self.backend.stop_waiting_for(self.fd)
            self.file.close()

    def _enter(self, verb: str) -> None:
        if self.closed:
            raise PipeClosed(f"cannot {verb} {self.what}: it is closed")
        if self._busy:
            raise RuntimeError(f"another task is already at {self.what}; one at a time")
        self._busy = True

    async def read(self, most: int) -> bytes:
        """What is there, at least one byte; `b""` when the other side has closed it."""
        self._enter("read from")
        try:
            while not self.closed:
                try:
                    data = os.read(self.fd, most)
                except BlockingIOError:
                    await self.backend.wait_readable(self.fd)
                    continue
                if not data:
                    self.close()
                return data
            return b""
        finally:
            self._busy = False

    def read_nowait(self, most: int) -> bytes | None:
        """What is there now; None if nothing is, `b""` at the end."""
        if self.closed:
            return b""
        try:
            return os.read(self.fd, most)
        except BlockingIOError:
            return None

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """All of `data`."""
        self._enter("write to")
        try:
            rest = memoryview(data).cast("B")
            while rest:
                if self.closed:
                    raise PipeClosed(f"{self.what} was closed while being written to")
                try:
                    rest = rest[os.write(self.fd, rest) :]
                except BlockingIOError:
                    await self.backend.wait_writable(self.fd)
        finally:
            self._busy = False
