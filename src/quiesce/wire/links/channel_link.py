"""A link over any stream of bytes: one task reads, one task writes.

The task that writes is not interrupted in the middle of a message before `abort`. A stop of the scope must
not cancel it, because handlers that are being stopped still have to answer. So it hears of the stop instead
(`_on_stop`), finishes what it is sending, and ends; `flush` then sends the rest, including the last answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from anyio.lowlevel import checkpoint

from quiesce import Scope
from quiesce.kernel.inner import (
    OpenScope,
    WaitQueue,
    ask_to_leave,
    bind_scope,
    cancel_without_deadline,
    current_backend,
    insist,
    when_ended,
)
from quiesce.wire.base import ConnectionEnded

from .link import Link, Receiver

if TYPE_CHECKING:
    from quiesce import Handle
    from quiesce.wire.base import Framing


class Channel(Protocol):
    """A stream of bytes, in both directions. One task at a time receives, one sends."""

    async def receive(self) -> bytes:
        """Return at least one byte; `b""` at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of it; wait while the other side does not read."""
        ...

    def abort(self) -> None:
        """Close it at once. May be called twice, and while other tasks receive or send."""
        ...

    async def aclose(self) -> None:
        """Wait for what `abort` began, if anything."""
        ...


class ChannelLink(Link):
    """A link whose two tasks belong to the connection's scope."""

    def __init__(self, channel: Channel, framing: Framing, scope: Scope, *, name: str = "link") -> None:
        super().__init__(current_backend(), framing)
        self._channel = channel
        self._scope = OpenScope(name, on_error="report", scope=scope)
        self._started = False
        self._reader: Handle | None = None
        self._writer: Handle | None = None
        # The task that writes is to end when it has sent what it is sending.
        self._retired = False
        self._sending = False
        self._paused = False
        self._reader_nap = WaitQueue()
        self._writer_nap = WaitQueue()

    def start(self, receiver: Receiver) -> None:
        """Begin to read, for this receiver."""
        self.receiver = receiver
        bind_scope(self._scope, _SITE)
        self._started = True
        self._reader = self._scope.spawn(self._read, name="reads")
        when_ended(self._reader, self._read_ended)
        self._writer = self._scope.spawn(self._write, name="writes")
        ask_to_leave(self._writer, self._finish_writing)
        when_ended(self._writer, self._write_ended)

    async def _read(self) -> None:
        try:
            # An eager task runs inside `start()`, and a message now would come before the connection is open.
            await checkpoint()
            while not self.over:
                await self._reader_nap.wait_until(lambda: not self._paused)
                data = await self._channel.receive()
                if not data:
                    break
                self.data_came(data)
        except Exception as error:  # the connection reports it
            self._end(error)
        else:
            self.data_ended()

    def _read_ended(self) -> None:
        # Does nothing if the receiver knows of the end already, as it does unless the task was cancelled from
        # outside.
        self._end(ConnectionEnded("the task that reads was cancelled"))

    async def _write(self) -> None:
        while not self.over and not self._retired:
            if not await self._send_some():
                await self._writer_nap.wait()

    def _write_ended(self) -> None:
        # It may have been cancelled from outside, as `asyncio.run` does at the end of a program. In the
        # middle of a message nothing can be sent any more; otherwise `flush` can still send the rest.
        error = ConnectionEnded("the task that writes was cancelled")
        if self._sending:
            self._lose(error)
        elif not self._retired:
            self._retired = True
            self._end(error)

    async def _send_some(self) -> bool:
        """Send what is unsent; return False if there is nothing."""
        data = self._take()
        if not data:
            if self.pending:  # the framing packs nothing after its farewell
                self._drop()
            return False
        sent = self.pending
        # It stays set if this is interrupted: then nothing tells how much was sent.
        self._sending = True
        try:
            await self._channel.send(data)
            self._sending = False
            self.pending = max(self.pending - sent, 0)
            self._wrote()
        except Exception as error:
            self._sending = False
            self.over = True
            self._drop()
            self.pass_on_remaining_input()
            self._lose(error)
        return True

    def read_now(self) -> bytes | None:
        """Return what can be read without waiting; None if the channel cannot do that."""
        read_now = getattr(self._channel, "read_now", None)
        data: bytes | None = read_now() if read_now is not None else None
        return data

    def send_now(self, frame: bytes) -> None:
        """Send a frame; at once where the channel can, unless others are unsent."""
        write_now = getattr(self._channel, "write_now", None)
        if write_now is None or self.pending or self.over:
            self.send(frame)
            return
        data = self.framing.pack([frame])
        try:
            sent = write_now(data)
        except OSError:
            sent = 0  # the task that writes will meet the same error, and report it
        if sent < len(data):
            self.send_raw(data[sent:])

    def _finish_writing(self) -> bool:
        if self.over:
            return False
        self._retire()
        return True

    def _retire(self) -> None:
        self._retired = True
        self._write_soon()

    async def flush(self) -> None:
        """Send the farewell of the framing, and all that the task that writes has left unsent."""
        self._say_farewell()
        if self._writer is not None and not self.over:
            self._retire()
            await self._writer.wait()
        while not self.over and await self._send_some():
            pass
        await self._wait_delivered()

    def _write_soon(self) -> None:
        self._writer_nap.wake_all()

    def pause(self) -> None:
        """Read nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Read again, after `pause`."""
        self._paused = False
        self._reader_nap.wake_all()

    def stop_reading(self) -> None:
        """Read nothing more; sending continues."""
        self.receiver = None
        if self._reader is not None:
            # A plain cancel would start a deadline of its own; this task has as much time as the link.
            cancel_without_deadline(self._reader)

    def hung_up(self) -> bool:
        """Whether the other side has disconnected; False if the channel cannot tell."""
        hung_up = getattr(self._channel, "hung_up", None)
        return bool(hung_up()) if hung_up is not None else False

    def abort(self) -> None:
        """Close the channel, and cancel both tasks."""
        self.receiver = None
        self._lose(None)
        self._channel.abort()
        if self._writer is not None:
            insist(self._writer)
        if self._started:
            self._scope.cancel("the connection is closed")

    async def close(self) -> None:
        """Wait until both tasks, and the channel, have ended."""
        try:
            if self._started:
                await self._scope.close(reason="the connection is closed")
        finally:
            await self._channel.aclose()

    def channel_dropped(self, size: int) -> None:
        """Take note that the channel was aborted with so many bytes that it had not passed on."""
        if not self._sending:  # else the whole message is counted
            self.dropped += size
            if self.on_dropped is not None:
                self.on_dropped()


_SITE = (ChannelLink.start.__code__, 0)
