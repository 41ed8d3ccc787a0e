"""A link over file descriptors on asyncio, by the loop's own callbacks: no task, no future and no transport between the socket and the connection.

The descriptor is watched once, not once a read. A read hands on what it got at once, in the callback; what is sent in one turn is written
at its end, without waiting, and only what the system does not take is left for when it does.
"""

from __future__ import annotations

import os
import select
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from quiesce.wire.base import Lines

from .link import CHUNK, Link, Receiver
from .remaining_input import pass_on_remaining_input

if TYPE_CHECKING:
    import asyncio

    from quiesce.kernel.inner import AsyncioBackend
    from quiesce.wire.base import Framing


class SelectorLink(Link):
    """A link over one descriptor to read from and one to write to, which may be the same."""

    linger: Callable[[], Awaitable[None]] | None = None  # until what was sent has arrived, if one can know

    def __init__(
        self,
        backend: AsyncioBackend,
        framing: Framing,
        read_fd: int,
        write_fd: int,
        let_go: Callable[[], object],
    ) -> None:
        super().__init__(backend, framing)
        self._loop: asyncio.AbstractEventLoop = backend.loop
        self._is_plain = type(framing) is Lines
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._let_go = let_go  # closes them
        self._reading = False
        self._context = Context()
        self._watched = False  # whether the selector takes it: it refuses plain files, which are always ready
        self._reads_on = False  # whether the next read of such a file is on its way
        self._scheduled = False
        self._rest: memoryview | None = None  # of a write that the system has not taken whole

    # Reading

    def start(self, receiver: Receiver) -> None:
        """Begin to read."""
        self.receiver = receiver
        self._context = (
            copy_context()
        )  # of the owner: whoever makes us read on later is not meant by what comes then
        self.resume()

    def resume(self) -> None:
        """Go on reading."""
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
        """Read nothing any more."""
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
            self._tell(data)
        else:
            self.pause()
            self._tell_end()

    def _read_later(self) -> None:
        if not self._reads_on:
            self._reads_on = True
            self._loop.call_soon(self._read_on, context=self._context.copy())

    def _read_on(self) -> None:
        """For what is always ready: one read a turn."""
        self._reads_on = False
        if self._reading:
            self._readable()
            if self._reading:
                self._read_later()

    def read_now(self) -> bytes | None:
        """What is there, without waiting; None if nothing is, `b""` at the end."""
        try:
            return os.read(self._read_fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return None

    def hung_up(self) -> bool:
        """Whether the other side is gone."""
        return hung_up(self._read_fd)

    # Sending

    def send_now(self, frame: bytes) -> None:
        """Send this; at once, unless something waits to be sent before it."""
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
        if not self._scheduled and self._rest is None:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        if self._rest is not None or self.over:
            return
        data = self._take()
        if data:
            self._write_now(data)
        else:  # the framing has said its last
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
            if self._out or self._raw:
                self.pending = max(self.pending - sent, 1)
                self._write_soon()
            else:
                self.pending = 0  # exactly: frames were counted before they were packed
        if self._waiters:
            self._wrote()

    def _broke(self, error: OSError) -> None:
        self._stop_writing()
        self.over = True
        self._drop()
        # Not here: who sends something does not expect to be sent something.
        self._loop.call_soon(self._go, error, context=self._context.copy())

    def _go(self, error: OSError) -> None:
        pass_on_remaining_input(self, self.read_now)  # what the other side has said before it went
        self._lose(error)

    def _writable(self) -> None:
        if self._rest is not None:
            self._write_now(self._rest)

    def _stop_writing(self) -> None:
        if self._rest is not None:
            self._rest = None
            self._loop.remove_writer(self._write_fd)

    # Ending

    async def flush(self) -> None:
        """Wait until all is with the system, and with the other side's where one can know."""
        await super().flush()
        if self.linger is not None and not self.over:
            await self.linger()

    def abort(self) -> None:
        """Close the descriptors."""
        self.stop_reading()
        if not self._loop.is_closed():
            self._stop_writing()
        self._lose(None)
        self._let_go()


def hung_up(fd: int) -> bool:
    """Whether nobody holds the other end, or whoever does sends nothing more; without reading."""
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", 0))
    return any(event & ~select.POLLIN for _, event in poll.poll(0))
