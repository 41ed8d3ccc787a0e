"""WebSocket (RFC 6455) as a framing: each message one frame of ours. The protocol itself is `websockets`' own, without its I/O.

Invariants
- A message that comes in many fragments is put together; one that grows beyond the limit is not kept, is answered as too long, and the connection goes on. A single
  fragment beyond the limit cannot be skipped: the connection is closed with 1009, as the protocol has it.
- Pings are answered, a close frame is answered with one, and whatever is wrong is answered with the close frame that says so.
- After a close frame, either way, nothing is sent any more.
"""

from __future__ import annotations

from typing import Any, Final

from quiesce._extras import require

require("websockets", "websocket", "a WebSocket")

from websockets.frames import Close, Frame, Opcode  # noqa: E402
from websockets.protocol import OPEN, Protocol, Side  # noqa: E402

from .errors import ConnectionEnded  # noqa: E402

_IN_ORDER: Final = (1000, 1001, 1005)  # done, going away, no reason given


class WebSocketFraming:
    """How messages are laid out in a WebSocket whose handshake is over."""

    def __init__(self, protocol: Protocol, limit: int) -> None:
        self._protocol = protocol
        self._limit = limit
        self._begun = (
            bytearray()
        )  # a message that is not complete yet; its fragments may be very many and very small
        self._inside = False
        self._skipping = False  # inside a message that is too long
        self._error: BaseException | None = None
        self.heard = 0  # how often anything has come, pongs too
        limit_messages(protocol, limit)

    def feed(self, data: bytes) -> list[bytes | None]:
        """The messages that are complete with this."""
        protocol = self._protocol
        if data:
            self.heard += 1
            protocol.receive_data(data)
        frames: list[bytes | None] = []
        for event in protocol.events_received():
            if isinstance(event, Frame):
                self._came(event, frames)
        if self.ended and self._error is None:
            self._error = self._what_was_wrong()
        return frames

    def _came(self, frame: Frame, frames: list[bytes | None]) -> None:
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
        """The stream is at its end, with or without a close frame."""
        if not self.ended and self._error is None:
            self._error = ConnectionEnded("the WebSocket was cut off, without a close frame")
        return []

    def pack(self, frames: list[bytes]) -> bytes:
        """Each as one text message."""
        protocol = self._protocol
        if protocol.state is not OPEN:
            return b""
        for frame in frames:
            protocol.send_text(frame)
        return self.replies()

    def replies(self) -> bytes:
        """Pongs, and close frames."""
        return b"".join(self._protocol.data_to_send())

    def ping(self) -> bytes:
        """A question whether the other side is there; nothing, after a close frame."""
        if self._protocol.state is OPEN:
            self._protocol.send_ping(b"")
        return self.replies()

    def farewell(self) -> bytes:
        """A close frame, unless there was one."""
        protocol = self._protocol
        if protocol.state is OPEN:
            protocol.send_close(1001 if protocol.side is Side.SERVER else 1000)
        return self.replies()

    @property
    def ended(self) -> bool:
        """Whether there was a close frame, or something that made us send one."""
        return self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None

    @property
    def error(self) -> BaseException | None:
        """Why, unless it was in order."""
        return self._error

    @property
    def closed_with(self) -> ConnectionEnded | None:
        """The close frame that has come, in order or not, as an error with its code; None if none has."""
        received = self._protocol.close_rcvd
        if received is None:
            return None
        return _with_code(f"the other side has closed the WebSocket with {_shown(received)}", received)

    def _what_was_wrong(self) -> BaseException | None:
        protocol = self._protocol
        if protocol.parser_exc is not None:
            sent = protocol.close_sent
            told = f" (it was told {_shown(sent)})" if sent is not None else ""
            error = _with_code(
                f"the other side broke the rules of WebSocket: {protocol.parser_exc}{told}", sent
            )
            error.__cause__ = protocol.parser_exc
            return error
        closed = self.closed_with
        return None if closed is None or closed.code in _IN_ORDER else closed


def limit_messages(protocol: Any, limit: int) -> None:
    """Bound what the protocol keeps: a fragment, where it tells fragments from messages, else a message."""
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
