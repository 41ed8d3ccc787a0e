"""One WebSocket to a server with the Realtime protocol.

Invariants
- One task reads. It passes each event to the listeners, and awaits them. When they take no more, the socket
  is not read, and the server has to wait.
- Frames are sent without waiting, in the order in which they were decided; then the sender waits while the
  server does not read. Answers (such as pongs) have no sender who could wait: a server that causes answers
  without reading them loses the connection. To stop reading instead would be wrong: the server may read as
  soon as it has sent all it has, and the unsent bytes may be the user's.
- Pings check that the server is still there (`RealtimeLimits.ping`), unless the socket is paused.
- The end of the socket comes as the last events. Listeners that make the reader wait are released before
  that, by `on_connection_ended`. A paused socket does not show its end, so it is polled. Closing emits no
  events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

from quiesce import Scope, current_scope, shielded
from quiesce._safe.printed import logger
from quiesce.kernel.inner import WaitQueue, core_of, current_backend
from quiesce.realtime.words import (
    RealtimeModelConnectionStatusEvent,
    RealtimeModelEndOfStreamEvent,
    RealtimeModelErrorEvent,
    RealtimeModelExceptionEvent,
)
from quiesce.wire import ConnectionEnded, Limits
from quiesce.wire.inner import WebSocketFraming

if TYPE_CHECKING:
    from quiesce.kernel.inner import Timer
    from quiesce.realtime.words import (
        RealtimeLimits,
        RealtimeModelEvent,
        RealtimeModelSendEvent,
        RealtimeSessionModelSettings,
    )
    from quiesce.wire.inner import Link, WebSocketTransport

    from .protocol import Protocol


_FLUSH_SHARE: Final = 1 / 6  # of `Grace.cancel`, to send the rest to a server that does not read
_UNREAD: Final = 64  # messages, before the socket is paused; or as many bytes as `RealtimeLimits` allows
_HANG_UP_POLL: Final = 1.0  # seconds between two checks of a paused socket


class Connection:
    """A WebSocket, and the tasks that read it and send pings."""

    _link: Link | None = None
    _scope: Scope

    def __init__(
        self,
        protocol: Protocol,
        limits: RealtimeLimits,
        tell: Callable[[RealtimeModelEvent], Awaitable[None]],
        tell_ended: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._limits = limits
        self._tell = tell
        self._tell_ended = tell_ended
        self._backend = current_backend()
        self._frames: deque[bytes | None] = deque()
        self._bytes = 0  # in `_frames`
        self._reader = WaitQueue()
        self._paused = False
        self._was_paused = False  # since the last ping
        self._hung_up = False  # the server has closed its side
        self._timer: Timer | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._closing = False

    async def open(
        self,
        transport: WebSocketTransport,
        settings: RealtimeSessionModelSettings,
        *,
        is_joined: bool = False,
    ) -> None:
        """Connect, and send the settings; for an existing call (`is_joined`), only those that are given."""
        limits = self._limits
        self._grace = core_of().grace
        self._scope = await Scope.open("realtime connection", on_error="report")
        try:
            link = await transport.open(Limits(frame=limits.frame, unsent=limits.unsent), current_scope())
            link.most_owed = limits.unsent
            self._link = link
            for frame in self._protocol.connected(settings, is_joined=is_joined):
                link.send(frame)
            await self._tell(RealtimeModelConnectionStatusEvent("connected"))
            link.start(self)
            self._scope.spawn(self._read, link, name="reader")
            self._scope.spawn(self._ping, link, name="pings")
        except BaseException:
            await shielded(self.close)
            raise

    # Reading

    def frames_came(self, frames: list[bytes | None]) -> None:
        """Take frames of the server; None stands for one that is too long."""
        self._frames.extend(frames)
        self._bytes += sum(len(frame) for frame in frames if frame is not None)
        # Without a pause, all that a fast server sends would pile up here, while the listeners are slow.
        is_enough = len(self._frames) >= _UNREAD or self._bytes >= self._limits.bytes
        if is_enough and not self._paused and not self._hung_up:
            self._paused = self._was_paused = True
            assert self._link is not None
            self._link.pause()
            self._look_later(self._link)
        self._wake()

    def _look_later(self, link: Link) -> None:
        self._stop_looking()
        self._timer = self._backend.call_at(self._backend.now() + _HANG_UP_POLL, lambda: self._look(link))

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, link: Link) -> None:
        if link.hung_up():
            # Read on, without pausing again: only what the server sent before it hung up is left.
            self._hung_up = True
            self._resume(link)
        else:
            self._look_later(link)

    def _resume(self, link: Link) -> None:
        self._paused = False
        self._stop_looking()
        link.resume()

    def link_ended(self, error: BaseException | None) -> None:
        """Take note that the socket has ended."""
        self._ended = True
        self._error = error
        self._stop_looking()
        self._tell_ended()
        self._wake()

    def _wake(self) -> None:
        self._reader.wake_all()

    async def _read(self, link: Link) -> None:
        try:
            await self._read_all(link)
        except Exception as error:  # a bug of ours; the listeners must not wait forever
            logger.exception("the reader of a realtime connection failed")
            link.stop_reading()
            self.link_ended(error)
        await self._tell_last(link)

    async def _read_all(self, link: Link) -> None:
        frames = self._frames
        while True:
            while frames:
                frame = frames.popleft()
                self._bytes -= len(frame or b"")
                await self._pass_on(link, frame)
            if self._ended:
                return
            if self._paused:
                self._resume(link)
            await self._reader.wait()

    async def _pass_on(self, link: Link, frame: bytes | None) -> None:
        if frame is None:
            too_long = ValueError(
                f"a message of the server is longer than {self._limits.frame} bytes, and was skipped"
            )
            await self._tell(RealtimeModelErrorEvent(too_long))
            return
        events, answers = self._protocol.receive(frame)
        for answer in answers:
            link.send(answer)
            # No task waits for these bytes, so the link counts them: see the invariants.
            link.owe(len(answer))
        for event in events:
            await self._tell(event)

    async def _tell_last(self, link: Link) -> None:
        await self._tell(RealtimeModelConnectionStatusEvent("disconnected"))
        if self._error is not None:
            lost = ConnectionEnded(f"the connection to the model was lost: {self._error}")
            lost.__cause__ = self._error
            await self._tell(RealtimeModelExceptionEvent(lost))
        framing = link.framing
        assert isinstance(framing, WebSocketFraming)
        await self._tell(RealtimeModelEndOfStreamEvent(framing.closed_with))

    async def _ping(self, link: Link) -> None:
        """Send pings: when a peer vanishes without a word, no read ever fails."""
        framing, seconds = link.framing, self._limits.ping
        assert isinstance(framing, WebSocketFraming)
        await anyio.sleep(seconds)
        while not self._ended:
            # `pending` before the ping: the system accepts the ping itself even if the server does not read.
            heard, self._was_paused, pending = framing.heard, self._paused, link.pending
            link.send_raw(framing.ping())
            await anyio.sleep(seconds)
            is_read = link.pending < pending  # a slow server that reads has just not reached the ping yet
            if framing.heard == heard and not is_read and not self._was_paused and not self._ended:
                link.stop_reading()
                self.link_ended(ConnectionEnded(f"the server has not answered for {seconds:g} s"))

    # Sending

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Send to the server, and wait while it does not read."""
        link = self._link
        if link is None or self._ended or self._closing or link.over:
            why = f" ({self._error})" if self._error is not None else ""
            raise ConnectionEnded(f"nothing can be sent: the connection to the model has ended{why}")
        events, frames = self._protocol.send(event)
        for frame in frames:
            link.send(frame)
        # Sent first: a listener that is slow must not delay an interrupt.
        for consequence in events:
            await self._tell(consequence)
        if link.pending > self._limits.unsent:
            await link.wait_for_room(self._limits.unsent)

    # Closing

    async def close(self) -> None:
        """Stop reading, send the rest and a close frame, and close the socket."""
        self._closing = True
        link = self._link
        if link is None:
            await self._scope.close()
            return
        link.stop_reading()
        self._stop_looking()
        try:
            await self._scope.close()
            with anyio.move_on_after(self._grace.cancel * _FLUSH_SHARE):
                await link.flush()
        finally:
            link.abort()
        await link.close()
