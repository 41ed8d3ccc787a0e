"""A link over anybody's stream of bytes: one task reads, one task writes.

The task that writes is never cut in the middle of a message before the link is let go. When it is asked to stop it finishes what it is at,
and whoever closes the link sends the rest, the last answers of handlers among it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from anyio.lowlevel import checkpoint

from quiesce import Scope
from quiesce.kernel.inner import OpenScope, Rung, WaitQueue, when_ended
from quiesce.wire.base import ConnectionEnded

from .link import Link, Receiver
from .remaining_input import pass_on_remaining_input

if TYPE_CHECKING:
    from quiesce import Handle
    from quiesce.wire.base import Framing


class Channel(Protocol):
    """A stream of bytes, both ways. One task at a time receives, one sends."""

    async def receive(self) -> bytes:
        """At least one byte; `b""` at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """All of it; waits while the other side does not take it."""
        ...

    def abort(self) -> None:
        """Let go of it, at once; may be called twice, and while somebody receives or sends."""
        ...

    async def aclose(self) -> None:
        """Wait for what `abort` has begun, if there is anything."""
        ...


class ChannelLink(Link):
    """A link whose two tasks belong to the connection's scope."""

    linger: Callable[[], Awaitable[None]] | None = None  # until what was sent has arrived, if one can know

    def __init__(self, channel: Channel, framing: Framing, scope: Scope, *, name: str = "link") -> None:
        super().__init__(scope._opened().backend, framing)
        self._channel = channel
        self._scope = OpenScope(name, on_error="report", scope=scope)
        self._owner = scope
        self._reader: Handle | None = None
        self._writer: Handle | None = None
        self._retired = False  # the task that writes is asked to stop, when it has sent what it is at
        self._sending = False
        self._paused = False
        self._reader_nap = WaitQueue()
        self._writer_nap = WaitQueue()

    def start(self, receiver: Receiver) -> None:
        """Begin to read."""
        self.receiver = receiver
        self._scope._bind(self.backend, self._owner._opened(), _SITE)
        self._reader = self._scope.spawn(self._read, name="reads")
        when_ended(self._reader, self._read_ended)
        self._writer = self._scope.spawn(self._write, name="writes")
        self._writer._on_stop = self._on_stop
        when_ended(self._writer, self._write_ended)

    async def _read(self) -> None:
        try:
            await checkpoint()  # an eager task runs inside `start()`, and a message now would come before the connection is open
            while not self.over:
                await self._reader_nap.wait_until(lambda: not self._paused)
                data = await self._channel.receive()
                if not data:
                    break
                self._tell(data)
        except Exception as error:  # the connection says what became of it
            self._end(error)
        else:
            self._tell_end()

    def _read_ended(self) -> None:
        self._end(ConnectionEnded("the task that reads was cancelled"))  # unless the end has been told

    async def _write(self) -> None:
        while not self.over and not self._retired:
            if not await self._send_some():
                await self._writer_nap.wait()

    def _write_ended(self) -> None:
        """Perhaps by somebody else's cancel, as at the end of a program. What was not begun to be sent can still be."""
        error = ConnectionEnded("the task that writes was cancelled")
        if self._sending:
            self._lose(error)
        elif not self._retired:
            self._retired = True
            self._end(error)

    async def _send_some(self) -> bool:
        """Send what is there; False if there is nothing."""
        data = self._take()
        if not data:
            if self.pending:  # the framing has said its last
                self._drop()
            return False
        sent = self.pending
        self._sending = True  # and still so if this is cut: nobody knows how much of it is gone
        try:
            await self._channel.send(data)
            self._sending = False
            self.pending = max(self.pending - sent, 0)
            self._wrote()
        except Exception as error:
            self._sending = False
            self.over = True
            self._drop()
            read_now = getattr(self._channel, "read_now", None)
            if read_now is not None and self.receiver is not None:
                pass_on_remaining_input(self, read_now)  # what the other side said before it went
            self._lose(error)
        return True

    def send_now(self, frame: bytes) -> None:
        """Send this; at once where the channel can, unless something waits to be sent before it."""
        write_now = getattr(self._channel, "write_now", None)
        if write_now is None or self.pending or self.over:
            self.send(frame)
            return
        data = self.framing.pack([frame])
        try:
            sent = write_now(data)
        except OSError:
            sent = 0  # the task that writes will come upon it too, and say so
        if sent < len(data):
            self.send_raw(data[sent:])

    def _on_stop(self, rung: Rung) -> bool:
        if rung is not Rung.CANCEL or self.over:
            return False
        self._retire()
        return True

    def _retire(self) -> None:
        self._retired = True
        self._write_soon()

    async def flush(self) -> None:
        """Say farewell, and send all there is: here, when the task that writes has done its part."""
        self._say_farewell()
        if self._writer is not None and not self.over:
            self._retire()
            await self._writer.wait()
        while not self.over and await self._send_some():
            pass
        if self.linger is not None and not self.over:
            await self.linger()

    def _write_soon(self) -> None:
        self._writer_nap.wake_all()

    def pause(self) -> None:
        """Read nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Go on reading."""
        self._paused = False
        self._reader_nap.wake_all()

    def stop_reading(self) -> None:
        """Read nothing any more."""
        self.receiver = None
        if self._reader is not None and not self._reader.done:
            self._reader._climb(Rung.CANCEL)  # its time to end is that of the link

    def hung_up(self) -> bool:
        """Whether the channel can tell that the other side is gone."""
        hung_up = getattr(self._channel, "hung_up", None)
        return bool(hung_up()) if hung_up is not None else False

    def abort(self) -> None:
        """Let go of the channel, and of both tasks."""
        self.receiver = None
        self._lose(None)
        self._channel.abort()
        writer = self._writer
        if writer is not None and writer._asked == 1 and not writer.done:
            writer._deliver_cancel()  # it was let off once, to finish what it was at
        if self._scope._core is not None:
            self._scope.cancel("the connection is closed")

    async def close(self) -> None:
        """Wait for both tasks, and for the channel."""
        try:
            if self._scope._core is not None:
                await self._scope.close(reason="the connection is closed")
        finally:
            await self._channel.aclose()

    def channel_dropped(self, size: int) -> None:
        """The channel had taken so much, and was broken off before it had passed that on."""
        if not self._sending:  # else that counts as a whole
            self.dropped += size
            if self.on_dropped is not None:
                self.on_dropped()


_SITE = (ChannelLink.start.__code__, 0)
