"""Our ends of the pipes to a child process, without blocking and without transports.

Plain reads and writes, and the backend's wait before each of them. Why wait even where the pipe is ready: a child
that writes without pause would otherwise hold its reader, and with it the whole loop, for ever.

- Any task may close a pipe while another waits on it. The descriptor is taken out of the loop before it is
  closed, so its number cannot be reused under a waiter; the waiter then finds the pipe closed.
- One task at a time at each pipe. A second one is told so, rather than given every other piece.
- A cancelled read loses nothing: between taking bytes out of the pipe and handing them over there is no await.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import IO, Final

from quiesce.kernel.scope import Backend

CHUNK: Final = 65536  # what a pipe holds, unless somebody has made it larger
LARGEST: Final = 1 << 20  # what a pipe can be made to hold without privileges


class PipeClosed(OSError):
    """Raised by a write to a process whose stdin was closed on our side, by `close_stdin()` or a stop."""


class LineTooLong(ValueError):
    """Raised by `Process.lines()` for a line over its limit. That line is skipped; reading may go on after it."""


class Pipe:
    """Our end of one pipe."""

    __slots__ = ("_busy", "at_end", "backend", "fd", "file", "what")

    def __init__(self, backend: Backend, file: IO[bytes], what: str) -> None:
        self.backend = backend
        self.file = file
        self.fd = file.fileno()
        self.what = what
        self.at_end = False  # nobody holds the other end any more
        self._busy = False
        os.set_blocking(self.fd, False)

    @property
    def closed(self) -> bool:
        """Whether our end is closed: by us, or because the other end is."""
        return self.file.closed

    def close(self) -> None:
        """Close our end; whoever waits on it is woken. Twice is fine."""
        if self.file.closed:
            return
        try:
            if self._busy:
                self.backend.stop_waiting_for(self.fd)
        finally:
            self.file.close()

    def check_free(self) -> None:
        """An error if another task is at this pipe."""
        if self._busy:
            raise RuntimeError(f"another task is already at {self.what}: one at a time")

    async def read(self, most: int) -> bytes:
        """At least one byte; `b""` when there will be no more, or when somebody closes our end."""
        self.check_free()
        self._busy = True
        try:
            while not self.closed:
                await self.backend.wait_readable(self.fd)
                data = self.read_now(most)
                if data is not None:
                    return data
            return b""
        finally:
            self._busy = False

    def read_now(self, most: int) -> bytes | None:
        """What is there, without waiting; None if nothing is, `b""` at the end."""
        if self.closed:
            return b""
        try:
            data = os.read(self.fd, most)
        except BlockingIOError:
            return None
        if not data:
            self.at_end = True
            self.close()
        return data

    def rest(self) -> Iterator[bytes]:
        """What is in the pipe, now that the tree is gone; then our end is closed.

        No more than a pipe can hold: somebody who is not of the tree may have it too, and write on.
        """
        for _ in range(0, LARGEST, CHUNK):
            data = self.read_now(CHUNK)
            if not data:
                break
            yield data
        self.close()

    async def write(self, data: memoryview) -> None:
        """All of `data`. If it is cancelled or closed meanwhile, a part may have been written."""
        self.check_free()
        self._busy = True
        try:
            while data:
                self._check_open()
                await self.backend.wait_writable(self.fd)
                self._check_open()
                try:
                    data = data[os.write(self.fd, data) :]
                except BlockingIOError:
                    continue
        finally:
            self._busy = False

    def _check_open(self) -> None:
        if self.closed:
            raise PipeClosed(f"cannot write to {self.what}: it was closed")

    def nobody_reads(self) -> bool:
        """Whether the other end of a pipe that we write to is closed. (Or ours: it makes no difference.)"""
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self.fd, 0)
        return bool(poll.poll(0))

    def make_room(self) -> None:
        """Let the other side write a little more than it could, where the system knows how."""
        if self.closed:
            return
        try:
            from fcntl import F_SETPIPE_SZ, fcntl

            fcntl(self.fd, F_SETPIPE_SZ, LARGEST)
        except (ImportError, OSError):  # another system, or no more memory for pipes: it was a favour
            pass


class Output:
    """What a child writes, in pieces or in lines, and what of it was read but not asked for yet."""

    __slots__ = ("_buffer", "_skipping", "pipe")

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self._buffer = bytearray()
        self._skipping = False  # inside a line that was too long

    def finish(self) -> None:
        """Take what is in the pipe, for whoever reads on, and close our end."""
        for data in self.pipe.rest():
            self._buffer += data

    async def read(self, most: int) -> bytes:
        """At most `most` bytes, `b""` at the end."""
        if most < 1:
            raise ValueError(f"read at least one byte, not {most}")
        self.pipe.check_free()
        if not self._buffer:
            data = await self.pipe.read(most)
            if data:
                return data
        data = bytes(self._buffer[:most])  # there may be something by now: see `finish`
        del self._buffer[:most]
        return data

    async def read_line(self, limit: int) -> bytes | None:
        """The next line without its end, None at the end."""
        self.pipe.check_free()
        buffer, scanned = self._buffer, 0
        while True:
            cut = buffer.find(b"\n", scanned)
            length = cut if cut >= 0 else len(buffer)
            if self._skipping:
                del buffer[: length + 1]
                scanned = 0
                if cut >= 0:
                    self._skipping = False
                    continue
            elif length > limit:
                self._skipping = True
                raise LineTooLong(f"a line at {self.pipe.what} is longer than the limit of {limit} bytes")
            elif cut >= 0:
                line = bytes(buffer[:cut])
                del buffer[: cut + 1]
                return line.removesuffix(b"\r")
            else:
                scanned = length
            buffer += await self.pipe.read(CHUNK)
            if len(buffer) == scanned:
                break
        self._skipping = False
        # Cut off by us, half a line is nothing; at the end of all output it is the last line.
        rest = bytes(buffer) if self.pipe.at_end else b""
        buffer.clear()
        return rest or None


class Tail:
    """The last bytes of a stream."""

    __slots__ = ("_kept", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """Keep these, and let go of what is too old."""
        self._kept += data
        if len(self._kept) > 2 * self.limit:  # not each time: moving what is kept has its price
            del self._kept[: len(self._kept) - self.limit]

    def __bytes__(self) -> bytes:
        return bytes(self._kept[max(len(self._kept) - self.limit, 0) :])
