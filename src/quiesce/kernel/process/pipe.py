"""Our ends of the pipes to a child process: non-blocking, without transports.

Plain reads and writes, each after a wait in the event loop. They wait even if the pipe is ready: otherwise a
child that writes without pause would keep its reader running, and with it block the whole loop, forever.

- Any task may close a pipe while another waits on it. The descriptor is taken out of the loop before it is
  closed, so its number cannot be reused under the waiting task, which then finds the pipe closed.
- Only one task at a time may read or write a pipe. A second one gets an error, rather than every other piece.
- A cancelled read loses nothing: there is no await between taking bytes out of the pipe and returning them.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import IO, Final

from quiesce.kernel.scope import Backend

CHUNK: Final = 65536  # the capacity of a pipe on Linux, unless it was enlarged
LARGEST: Final = 1 << 20  # the largest capacity that a pipe can be given without privileges


class PipeClosed(OSError):
    """Raised by a write to a process whose stdin was closed on our side: by `close_stdin()` or a stop."""


class LineTooLong(ValueError):
    """Raised by `Process.lines()` for a line over its limit. It is skipped: you can read on after it."""


class Pipe:
    """Our end of one pipe."""

    __slots__ = ("_busy", "at_end", "backend", "fd", "file", "what")

    def __init__(self, backend: Backend, file: IO[bytes], what: str) -> None:
        self.backend = backend
        self.file = file
        self.fd = file.fileno()
        self.what = what
        self.at_end = False  # no process has the other end open any more
        self._busy = False
        os.set_blocking(self.fd, False)

    @property
    def closed(self) -> bool:
        """Whether our end is closed: by us, or because the other end is."""
        return self.file.closed

    def close(self) -> None:
        """Close our end and wake a task that waits on it. Does nothing the second time."""
        if self.file.closed:
            return
        try:
            if self._busy:
                self.backend.stop_waiting_for(self.fd)
        finally:
            self.file.close()

    def check_free(self) -> None:
        """Raise an error if another task is reading or writing this pipe."""
        if self._busy:
            raise RuntimeError(f"another task is already at {self.what}: one at a time")

    async def read(self, most: int) -> bytes:
        """At least one byte; `b""` at the end of the stream, or when our end is closed."""
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
        """What the pipe holds, without waiting; None if that is nothing, `b""` at the end of the stream."""
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

    def drain(self) -> Iterator[bytes]:
        """What the pipe still holds after the tree has exited; then our end is closed."""
        # No more than a pipe can hold: a process outside the tree may have the other end, and write forever.
        for _ in range(0, LARGEST, CHUNK):
            data = self.read_now(CHUNK)
            if not data:
                break
            yield data
        self.close()

    async def write(self, data: memoryview) -> None:
        """Write all of `data`. If the call is cancelled, or the pipe closed, a part may have been written."""
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

    def has_no_reader(self) -> bool:
        """Whether the other end of a pipe that we write to is closed, or our own."""
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self.fd, 0)
        return bool(poll.poll(0))

    def enlarge(self) -> None:
        """Let the other side write more before it blocks, where the system can do that."""
        if self.closed:
            return
        try:
            from fcntl import F_SETPIPE_SZ, fcntl

            fcntl(self.fd, F_SETPIPE_SZ, LARGEST)
        except (ImportError, OSError):  # another system, or no more memory for pipes: it works without, too
            pass


class Output:
    """What a child writes, in pieces or in lines. Keeps what was read from the pipe but not returned yet."""

    __slots__ = ("_buffer", "_skipping", "pipe")

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self._buffer = bytearray()
        self._skipping = False  # inside a line that is too long

    def finish(self) -> None:
        """Keep what the pipe still holds for later reads, and close our end."""
        for data in self.pipe.drain():
            self._buffer += data

    async def read(self, most: int) -> bytes:
        """At most `most` bytes; `b""` at the end."""
        if most < 1:
            raise ValueError(f"read at least one byte, not {most}")
        self.pipe.check_free()
        if not self._buffer:
            data = await self.pipe.read(most)
            if data:
                return data
        # Not necessarily empty after an empty read: a stop may have filled it while we waited (`finish`).
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        return data

    async def read_line(self, limit: int) -> bytes | None:
        """The next line without its line end; None at the end of the stream."""
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
        # At the end of the stream the rest is a last line without a line end. If our end was closed, it is a
        # line that was cut in half, which a reader must not take for a whole one.
        rest = bytes(buffer) if self.pipe.at_end else b""
        buffer.clear()
        return rest or None


class Tail:
    """The last bytes of a stream."""

    __slots__ = ("_last", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._last = bytearray()

    def add(self, data: bytes) -> None:
        """Append `data`, and drop what is beyond the limit."""
        self._last += data
        # Not on every call: dropping moves all the bytes that stay.
        if len(self._last) > 2 * self.limit:
            del self._last[: len(self._last) - self.limit]

    def __bytes__(self) -> bytes:
        return bytes(self._last[max(len(self._last) - self.limit, 0) :])
