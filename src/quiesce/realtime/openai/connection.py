"""One WebSocket to a server that speaks the Realtime wire.

Invariants
- One task reads: it tells the listeners each event, and waits for them. When they take no more, the socket is not read, and the server has to wait.
- What is sent is sent without waiting, in the order in which it was decided; then whoever sent it waits for a server that does not read. Nobody waits
  for answers (pongs among them): a server that makes us answer and does not read is given up. Not to read it meanwhile would be no way: it may be one
  that reads when it has said what it has to say, and what is unsent may be the user's.
- Somebody asks, again and again, whether the other side is still there (`RealtimeLimits.ping`), unless nothing is being read.
- The end of the socket is told as the last events. Whoever makes the reader wait is let go before that: see `on_connection_ended`. Who does not read
  the socket does not see its end either, and looks for it. Closing tells nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

from quiesce import Scope, current_scope, shielded
from quiesce._safe.printed import logger
from quiesce.kernel.inner import WaitQueue, current_backend, current_core
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


_FAREWELL_SHARE: Final = 1 / 6  # of the time to clean up, for a server that does not read
_UNREAD: Final = 64  # messages, before the socket has to wait; or as many bytes as `RealtimeLimits` allows
_LOOK_AGAIN: Final = 1.0  # seconds, while it waits, between looks whether the other side is still there


class Connection:
    """A WebSocket, and who reads it."""

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
        self._bytes = 0  # in them
        self._reader = WaitQueue()
        self._paused = False
        self._was_paused = False  # since the last ping
        self._hung_up = False  # the other side has sent its last
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
        """Connect, and say what the session is to be like; that of a call that is on, as far as it is to be different."""
        limits = self._limits
        self._grace = current_core(self._backend).grace
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
            self._scope.spawn(self._keep_looking, link, name="pings")
        except BaseException:
            await shielded(self.close)
            raise

    # Reading

    def frames_came(self, frames: list[bytes | None]) -> None:
        """What the server has sent."""
        self._frames.extend(frames)
        self._bytes += sum(len(frame) for frame in frames if frame is not None)
        is_enough = len(self._frames) >= _UNREAD or self._bytes >= self._limits.bytes
        if is_enough and not self._paused and not self._hung_up:
            self._paused = self._was_paused = True
            assert self._link is not None
            self._link.pause()
            self._look_later(self._link)
        self._wake()

    def _look_later(self, link: Link) -> None:
        self._stop_looking()
        self._timer = self._backend.call_at(self._backend.now() + _LOOK_AGAIN, lambda: self._look(link))

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, link: Link) -> None:
        if link.hung_up():
            self._hung_up = True  # what it had said is read to its end, which is near
            self._go_on(link)
        else:
            self._look_later(link)

    def _go_on(self, link: Link) -> None:
        self._paused = False
        self._stop_looking()
        link.resume()

    def link_ended(self, error: BaseException | None) -> None:
        """Nothing more will come."""
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
        except Exception as error:  # a fault of ours: whoever listens must not wait for ever
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
                await self._take_in(link, frame)
            if self._ended:
                return
            if self._paused:
                self._go_on(link)
            await self._reader.wait()

    async def _take_in(self, link: Link, frame: bytes | None) -> None:
        if frame is None:
            too_long = ValueError(
                f"a message of the server is longer than {self._limits.frame} bytes, and was skipped"
            )
            await self._tell(RealtimeModelErrorEvent(too_long))
            return
        events, answers = self._protocol.came(frame)
        for answer in answers:
            link.send(answer)
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

    async def _keep_looking(self, link: Link) -> None:
        """A peer that vanished says nothing, and no read ever fails."""
        framing, seconds = link.framing, self._limits.ping
        assert isinstance(framing, WebSocketFraming)
        await anyio.sleep(seconds)
        while not self._ended:
            # Without the ping itself, which the system takes off our hands whether the server reads or not.
            heard, self._was_paused, pending = framing.heard, self._paused, link.pending
            link.send_raw(framing.ping())
            await anyio.sleep(seconds)
            is_read = link.pending < pending  # a slow server, which has not come to our ping yet
            if framing.heard == heard and not is_read and not self._was_paused and not self._ended:
                link.stop_reading()
                self.link_ended(ConnectionEnded(f"the server has not answered for {seconds:g} s"))

    # Sending

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Tell the server; wait while it does not read."""
        link = self._link
        if link is None or self._ended or self._closing or link.over:
            why = f" ({self._error})" if self._error is not None else ""
            raise ConnectionEnded(f"nothing can be sent: the connection to the model has ended{why}")
        events, frames = self._protocol.send(event)
        for frame in frames:
            link.send(frame)
        for told in events:
            await self._tell(told)
        if link.pending > self._limits.unsent:
            await link.wait_for_room(self._limits.unsent)

    # Ending

    async def close(self) -> None:
        """Stop reading, say goodbye, let go."""
        self._closing = True
        link = self._link
        if link is None:
            await self._scope.close()
            return
        link.stop_reading()
        self._stop_looking()
        try:
            await self._scope.close()
            with anyio.move_on_after(self._grace.cancel * _FAREWELL_SHARE):
                await link.flush()
        finally:
            link.abort()
        await link.close()
