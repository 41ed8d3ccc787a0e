"""A link over file descriptors on asyncio, by callbacks of the event loop.

There is no task, no future and no transport between the socket and the connection. The loop starts to watch
the descriptor once, not once per read, and a read passes on its data in the callback. What is sent in one
turn of the loop is written at its end, without waiting; only what the system does not take is left for later.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from quiesce.wire.base import Lines

from .link import CHUNK, Link, Receiver

if TYPE_CHECKING:
    import asyncio

    from quiesce.kernel.inner import AsyncioBackend
    from quiesce.wire.base import Framing


class SelectorLink(Link):
    """A link over one descriptor to read from and one to write to, which may be the same."""

    def __init__(
        self,
        backend: AsyncioBackend,
        framing: Framing,
        read_fd: int,
        write_fd: int,
        release: Callable[[], object],
    ) -> None:
        super().__init__(backend, framing)
        self._loop: asyncio.AbstractEventLoop = backend.loop
        self._is_plain = type(framing) is Lines
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._release = release
        self._reading = False
        self._context = Context()
        # Whether the selector watches the descriptor. It refuses plain files, which are always ready.
        self._watched = False
        # Whether the next read of such a file is scheduled.
        self._read_scheduled = False
        self._write_scheduled = False
        # What the system has not taken of a write.
        self._rest: memoryview | None = None

    # Reading

    def start(self, receiver: Receiver) -> None:
        """Begin to read, for this receiver."""
        self.receiver = receiver
        # That of the owner. `resume` may be called by a handler, whose context must not be that of later
        # messages.
        self._context = copy_context()
        self.resume()

    def resume(self) -> None:
        """Read again, after `pause`."""
        if self._reading or self.receiver is None:
            return
        self._reading = True
        try:
            self._context.copy().run(self._loop.add_reader, self._read_fd, self._readable)
            self._watched = True
        except PermissionError:
            self._watched = False
            self._read_later()

    def pause(self) -> None:
        """Read nothing until `resume`."""
        if self._reading:
            self._reading = False
            if self._watched and not self._loop.is_closed():
                self._loop.remove_reader(self._read_fd)

    def stop_reading(self) -> None:
        """Read nothing more; sending continues."""
        self.receiver = None
        self.pause()

    def _readable(self) -> None:
        try:
            data = os.read(self._read_fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.pause()
            self._end(error)
            return
        if data:
            self.data_came(data)
        else:
            self.pause()
            self.data_ended()

    def _read_later(self) -> None:
        if not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_soon(self._read_file, context=self._context.copy())

    def _read_file(self) -> None:
        """Read a plain file once per turn of the loop."""
        self._read_scheduled = False
        if self._reading:
            self._readable()
            if self._reading:
                self._read_later()

    def read_now(self) -> bytes | None:
        """Return what can be read without waiting; None if nothing can, `b""` at the end."""
        try:
            return os.read(self._read_fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return None

    def hung_up(self) -> bool:
        """Whether the other side has disconnected."""
        return hung_up(self._read_fd)

    # Sending

    def send_now(self, frame: bytes) -> None:
        """Send a frame: at once, unless others are unsent."""
        if self.pending or self.over:
            self.send(frame)
        else:
            data = frame + b"\n" if self._is_plain else self.framing.pack([frame])
            try:
                sent = os.write(self._write_fd, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.pending = len(data)
                self._broke(error)
                return
            if sent < len(data):
                self.pending = len(data) - sent
                self._write_now(memoryview(data)[sent:])

    def _write_soon(self) -> None:
        if not self._write_scheduled and self._rest is None:
            self._write_scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._write_scheduled = False
        if self._rest is not None or self.over:
            return
        data = self._take()
        if data:
            self._write_now(data)
        else:  # the framing packs nothing after its farewell
            self._drop()

    def _write_now(self, data: bytes | memoryview) -> None:
        try:
            sent = os.write(self._write_fd, data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._broke(error)
            return
        if sent < len(data):
            if self._rest is None:
                self._loop.add_writer(self._write_fd, self._writable)
            self._rest = memoryview(data)[sent:]
            self.pending = max(self.pending - sent, len(self._rest))
        else:
            if self._rest is not None:
                self._stop_writing()
            if self._frames or self._packed:
                self.pending = max(self.pending - sent, 1)
                self._write_soon()
            else:
                # Not `-= sent`: frames are counted before they are packed, which changes their size.
                self.pending = 0
        if self._waiters:
            self._wrote()

    def _broke(self, error: OSError) -> None:
        self._stop_writing()
        self.over = True
        self._drop()
        # Later, because code that sends a message does not expect to get messages, or the end, inside that
        # call.
        self._loop.call_soon(self._end_broken, error, context=self._context.copy())

    def _end_broken(self, error: OSError) -> None:
        self.pass_on_remaining_input()
        self._lose(error)

    def _writable(self) -> None:
        if self._rest is not None:
            self._write_now(self._rest)

    def _stop_writing(self) -> None:
        if self._rest is not None:
            self._rest = None
            self._loop.remove_writer(self._write_fd)

    # Ending

    def abort(self) -> None:
        """Close the descriptors."""
        self.stop_reading()
        if not self._loop.is_closed():
            self._stop_writing()
        self._lose(None)
        self._release()


def hung_up(fd: int) -> bool:
    """Whether the other end is closed, or will send nothing more; without reading."""
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", 0))
    return any(event & ~select.POLLIN for _, event in poll.poll(0))
