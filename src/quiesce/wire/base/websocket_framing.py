"""WebSocket (RFC 6455) as a framing: each message is one frame. It uses `websockets`, without its I/O.

Invariants
- The fragments of a message are joined. A message that grows beyond the limit is not kept; it is answered as
  too long, and the connection continues. A single fragment beyond the limit cannot be skipped: the connection
  is closed with 1009, as the protocol requires.
- Pings are answered, a close frame is answered with one, and errors with the close frame for that error.
- After a close frame, in either direction, nothing is sent any more.
"""

from __future__ import annotations

from typing import Any, Final

from quiesce._extras import require

require("websockets", "websocket", "a WebSocket")

from websockets.frames import Close, Frame, Opcode  # noqa: E402
from websockets.protocol import OPEN, Protocol, Side  # noqa: E402

from .errors import ConnectionEnded  # noqa: E402

_IN_ORDER: Final = (1000, 1001, 1005)  # done, going away, no code


class WebSocketFraming:
    """How messages are laid out in a WebSocket, after its handshake."""

    def __init__(self, protocol: Protocol, limit: int) -> None:
        self._protocol = protocol
        self._limit = limit
        # The message that is not complete yet. A bytearray, because it may come in very many, very small
        # fragments.
        self._begun = bytearray()
        self._inside = False
        # Whether a message is being skipped because it is too long.
        self._skipping = False
        self._error: BaseException | None = None
        #: How often anything has come, including pongs.
        self.heard = 0
        limit_messages(protocol, limit)

    def feed(self, data: bytes) -> list[bytes | None]:
        """Take bytes that came; return the messages that are complete now."""
        protocol = self._protocol
        if data:
            self.heard += 1
            protocol.receive_data(data)
        frames: list[bytes | None] = []
        for event in protocol.events_received():
            if isinstance(event, Frame):
                self._add(event, frames)
        if self.ended and self._error is None:
            self._error = self._error_at_end()
        return frames

    def _add(self, frame: Frame, frames: list[bytes | None]) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        data = bytes(frame.data)
        if frame.fin and not self._inside:
            frames.append(data if len(data) <= self._limit else None)
            return
        self._inside = not frame.fin
        if not self._skipping:
            self._begun += data
            if len(self._begun) > self._limit:
                self._skipping = True
                self._begun.clear()
                frames.append(None)
        if frame.fin:
            if not self._skipping:
                frames.append(bytes(self._begun))
            self._begun.clear()
            self._skipping = False

    def finish(self) -> list[bytes | None]:
        """Take note of the end of the stream, which is an error without a close frame."""
        if not self.ended and self._error is None:
            self._error = ConnectionEnded("the WebSocket was cut off, without a close frame")
        return []

    def pack(self, frames: list[bytes]) -> bytes:
        """Return these frames as text messages; nothing after a close frame."""
        protocol = self._protocol
        if protocol.state is not OPEN:
            return b""
        for frame in frames:
            protocol.send_text(frame)
        return self.replies()

    def replies(self) -> bytes:
        """Return pongs and close frames."""
        return b"".join(self._protocol.data_to_send())

    def ping(self) -> bytes:
        """Return a ping; nothing after a close frame."""
        if self._protocol.state is OPEN:
            self._protocol.send_ping(b"")
        return self.replies()

    def farewell(self) -> bytes:
        """Return a close frame, unless one was sent before."""
        protocol = self._protocol
        if protocol.state is OPEN:
            # 1001 is "going away", as of a server that is shut down; 1000 is the usual end.
            protocol.send_close(1001 if protocol.side is Side.SERVER else 1000)
        return self.replies()

    @property
    def ended(self) -> bool:
        """Whether a close frame came, or an error for which we send one."""
        return self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None

    @property
    def error(self) -> BaseException | None:
        """The error that ended it; None if it was closed in order."""
        return self._error

    @property
    def closed_with(self) -> ConnectionEnded | None:
        """The close frame that came, in order or not, as an error with its code; None if none did."""
        received = self._protocol.close_rcvd
        if received is None:
            return None
        return _with_code(f"the other side has closed the WebSocket with {_shown(received)}", received)

    def _error_at_end(self) -> BaseException | None:
        protocol = self._protocol
        if protocol.parser_exc is not None:
            sent = protocol.close_sent
            closed = f" (closed with {_shown(sent)})" if sent is not None else ""
            error = _with_code(
                f"the other side broke the rules of WebSocket: {protocol.parser_exc}{closed}", sent
            )
            error.__cause__ = protocol.parser_exc
            return error
        close = self.closed_with
        return None if close is None or close.code in _IN_ORDER else close


def limit_messages(protocol: Any, limit: int) -> None:
    """Limit what the protocol accepts: a fragment; in older versions of websockets, a message."""
    if hasattr(protocol, "max_fragment_size"):
        protocol.max_message_size, protocol.max_fragment_size = None, limit
    else:
        protocol.max_size = limit


def _with_code(message: str, close: Close | None) -> ConnectionEnded:
    error = ConnectionEnded(message)
    error.code = close.code if close is not None else None
    return error


def _shown(close: Close) -> str:
    return f"{close.code}: {close.reason}" if close.reason else str(close.code)
