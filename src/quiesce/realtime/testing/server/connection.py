"""One connection to the local server: a socket, the WebSocket protocol, a session, and its faults.

Everything here runs in the server's thread, and nothing blocks: data that cannot be sent yet waits in
`_unsent`. The events of a response are taken only while little waits there, and nothing is read while much
does. So a client that does not read slows the server down, as with a real one.
"""

from __future__ import annotations

import base64
import socket
import struct
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from quiesce._extras import require

require("websockets", "websocket", "LocalRealtimeServer")

import msgspec  # noqa: E402
from websockets.frames import Frame, Opcode  # noqa: E402
from websockets.http11 import Request  # noqa: E402
from websockets.protocol import OPEN  # noqa: E402
from websockets.server import ServerProtocol  # noqa: E402

from quiesce.realtime.testing.tones import tone  # noqa: E402

from .faults import Faults, Malformed  # noqa: E402
from .malformed import NO_FRAME, malformed_text  # noqa: E402

if TYPE_CHECKING:
    from .client_event_check import ClientEventCheck
    from .session import ServedSession

_ENOUGH = 64 * 1024  # unsent bytes: beyond, no more events of a response are taken
_TOO_MUCH = 1024 * 1024  # unsent bytes: beyond, nothing more is read
_LONGEST = 32 * 1024 * 1024  # bytes of one message of a client
_GARBAGE = b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n"


class ServedConnection:
    """One client. `received`: what it sent; `ended`: how the connection ended, or None."""

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        faults: Faults,
        begin_session: Callable[[str], ServedSession],
        check: ClientEventCheck,
        complain: Callable[[str], None],
    ) -> None:
        self.number = number
        self.faults = faults
        self.path = ""
        self.headers: dict[str, str] = {}
        self.received: list[dict[str, Any]] = []
        self.bytes_sent = 0
        self.ended: str | None = None
        self.close_code: int | None = None  # of the client's close frame
        self.opened_at = time.monotonic()
        self.sock = sock
        self._protocol = ServerProtocol(max_size=_LONGEST)
        self._begin_session = begin_session
        self._check = check
        self._complain = complain
        self._session: ServedSession | None = None
        self._message = bytearray()  # the fragments so far
        self._unsent = bytearray()
        self._ends_when_sent: str | None = None
        self._resume_at = 0.0  # when the response goes on
        self._send_at = 0.0  # when more may be sent, with the fault `slow`
        self._slow: float | None = None
        self._cuts_after: int | None = None  # bytes
        self._is_cut = False  # in the middle of a frame, so nothing may follow
        self._by_reset = False
        self._flood = 0  # bytes still to send
        self._silent = self._frozen = self._struck = False

    # For the loop of the server

    @property
    def wants_to_read(self) -> bool:
        """Whether it reads what the client sends."""
        return not self._frozen and len(self._unsent) < _TOO_MUCH

    @property
    def wants_to_write(self) -> bool:
        """Whether it has something to send, and may do so now."""
        return bool(self._unsent) and not self._frozen and self._send_at <= time.monotonic()

    @property
    def due(self) -> float:
        """When it wants to go on without an event of the socket."""
        if self.ended is not None or self._frozen:
            return inf
        if self._unsent and self._slow is not None:
            return self._send_at
        session = self._session
        if session is None or len(self._unsent) >= _ENOUGH or not self._may_speak():
            return inf
        if self._flood or session.out or self._is_cancelled():
            return 0.0
        return self._resume_at if session.response is not None else inf

    def _may_speak(self) -> bool:
        return self._protocol.state is OPEN and not self._silent and self._ends_when_sent is None

    def read(self) -> None:
        """Read from the socket, which is ready."""
        try:
            data = self.sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.end("the client has reset the connection")
            return
        if not data:
            self.end(
                "the client has closed" if self.close_code is not None else "the client has disconnected"
            )
            return
        if self._silent and self._session is None:
            return
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame):
                self._take(event)
        self._take_from_protocol()
        self._send()

    def go_on(self) -> None:
        """Take the next events, and send what can be sent."""
        if self._frozen or self.ended is not None:
            return
        self._take_from_protocol()
        now = time.monotonic()
        while len(self._unsent) < _ENOUGH and self._may_speak():
            if self._flood > 0:
                self._pour()
                continue
            session = self._session
            if self._is_cancelled():
                self._resume_at = 0.0
            if session is None or (not session.out and self._resume_at > now):
                break
            step = session.step()
            if step is None:
                break
            if isinstance(step, dict):
                self.say(step)
            else:
                self._resume_at = now + step
        self._send()

    def _is_cancelled(self) -> bool:
        response = self._session.response if self._session is not None else None
        return response is not None and response.cancelled is not None

    # The WebSocket

    def _shake_hands(self, request: Request) -> None:
        self.path = request.path
        self.headers = {name.lower(): value for name, value in request.headers.raw_items()}
        protocol, how = self._protocol, self.faults.handshake
        if how == "silence":
            self._silent = True
        elif how == "garbage":
            self._unsent += _GARBAGE
            self._ends_when_sent = "answered with garbage"
        elif how is not None:
            protocol.send_response(protocol.reject(how, "no\n"))
            self._ends_when_sent = f"refused with {how}"
        else:
            response = protocol.accept(request)
            protocol.send_response(response)
            if protocol.state is not OPEN:
                self._ends_when_sent = f"refused with {response.status_code}"
                return
            self._take_from_protocol()
            self._session = self._begin_session(self.path)
            self._session.begin()

    def refuse(self, status: int, why: str) -> None:
        """Refuse the handshake."""
        self.faults = Faults(handshake=status)
        self._complain(f"connection {self.number} was refused with {status}: {why}")

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            closed = self._protocol.close_rcvd
            self.close_code = closed.code if closed is not None else 1005
            self._session = None
            if self.faults.never_answers_close:
                self._protocol.data_to_send()
                self._silent = True
            return
        if frame.opcode is Opcode.BINARY:
            self._nonsense("a binary frame, where events are text")
            return
        if frame.opcode not in (Opcode.TEXT, Opcode.CONT):
            return
        self._message += frame.data
        if frame.fin:
            message = bytes(self._message)
            self._message.clear()
            self._receive(message)

    def _take_from_protocol(self) -> None:
        """Take what the protocol has to send: the handshake, events, pongs, close frames, and the end."""
        for data in self._protocol.data_to_send():
            if self._silent or self._is_cut:
                continue
            if data:
                self._put(data)
            else:
                self._ends_when_sent = self._ends_when_sent or "closed"

    # The session

    def _receive(self, message: bytes) -> None:
        session = self._session
        if session is None:
            return
        try:
            event = msgspec.json.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._nonsense(f"invalid JSON: {error}")
            return
        if not isinstance(event, dict):
            self._nonsense("JSON that is not an object")
            return
        self.received.append(event)
        if isinstance(event.get("type"), str):
            fault = self._check.fault_of(event)
            if fault is not None:
                self._complain(f"connection {self.number} has sent {fault.message}")
                session.refuse(fault.message, fault.code, event, fault.param)
                return
        before = len(session.out)
        session.receive(event)
        for answer in list(session.out)[before:]:
            if answer["type"] == "error":
                why = f"{answer['error']['message']} ({answer['error']['code']})"
                self._complain(f"connection {self.number} has sent {event.get('type')}: {why}")

    def _nonsense(self, what: str) -> None:
        self._complain(f"connection {self.number} has sent {what}")
        if self._session is not None:
            self._session.refuse(f"The server was sent {what}.", "invalid_event")

    def say(self, event: dict[str, Any]) -> None:
        """Send an event; the faults that are due after it begin."""
        if self._session is None or self._protocol.state is not OPEN or self._silent:
            return
        self._protocol.send_text(msgspec.json.encode(event))
        self._take_from_protocol()
        if event["type"] == self.faults.after and not self._struck:
            self.strike(self.faults)

    def say_this(self, event: dict[str, Any]) -> None:
        """Send an event of a test, with an id."""
        if self._session is not None:
            self.say({"event_id": self._session.new_id("event"), **event})

    # Faults

    def strike(self, faults: Faults) -> None:
        """Begin with these faults."""
        self._struck = True
        self.faults = faults
        self._send()  # what was said before the faults
        if self.ended is not None:
            return
        for kind in faults.malformed:
            self._send_malformed(kind)
        if faults.oversized:
            self.say(self._audio_event("A" * (faults.oversized // 3 * 4)))
        self._slow = faults.slow
        self._flood = int(faults.floods * 1_000_000)
        self._frozen = faults.half_open
        self._by_reset = faults.reset
        self._cuts_after = faults.drops_after
        if faults.closes_with is not None and self._protocol.state is OPEN:
            self._protocol.send_close(faults.closes_with, "as the faults have it")
            self._session = None
            self._take_from_protocol()
        if faults.reset and faults.drops_after is None:
            self._unsent.clear()
            self._ends_when_sent = "reset"
            self._send()

    def _audio_event(self, delta: Any) -> dict[str, Any]:
        session = self._session
        response = session.response if session is not None else None
        return {
            "type": "response.output_audio.delta",
            "event_id": session.new_id("event") if session is not None else "event_0",
            "response_id": response.id if response is not None else "resp_0",
            "item_id": (response.speaking if response is not None else None) or "item_0",
            "output_index": 0,
            "content_index": 0,
            "delta": delta,
        }

    def _pour(self) -> None:
        piece = tone(1000)[: self._flood]
        self._flood -= len(piece)
        self.say(self._audio_event(base64.b64encode(piece).decode()))

    def _send_malformed(self, kind: Malformed) -> None:
        if kind == "protocol":
            self._put(NO_FRAME)
            return
        audio = self._audio_event("")
        if kind == "binary":
            self._protocol.send_binary(msgspec.json.encode(audio))
        else:
            self._protocol.send_text(malformed_text(kind, audio))
        self._take_from_protocol()

    # The socket

    def _put(self, data: bytes) -> None:
        """Add data to be sent; cut it off in the middle of a frame if that fault is due."""
        if self._cuts_after is not None:
            if len(data) < self._cuts_after:
                self._cuts_after -= len(data)
            else:
                data = data[: max(1, min(self._cuts_after, len(data) - 1))]
                self._is_cut = True
                self._ends_when_sent = "reset" if self._by_reset else "dropped"
        self._unsent += data

    def _send(self) -> None:
        now = time.monotonic()
        while self._unsent and not self._frozen:
            size = len(self._unsent)
            if self._slow is not None:
                if self._send_at > now:
                    return
                size = max(1, int(self._slow / 20))
                self._send_at = now + size / self._slow
            try:
                sent = self.sock.send(bytes(self._unsent[:size]))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.end("the client has disconnected")
                return
            self.bytes_sent += sent
            del self._unsent[:sent]
        if self._ends_when_sent is not None and not self._unsent:
            if self._ends_when_sent == "reset":
                # Closing with a linger time of 0 sends RST instead of FIN.
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.end(self._ends_when_sent)

    def end(self, how: str) -> None:
        """Close the socket, even if something is unsent."""
        if self.ended is None:
            self.ended = how
            self._session = None
            self._unsent.clear()
            self.sock.close()

    def expire(self) -> None:
        """End a session that has lasted too long."""
        message = "Your session hit the maximum duration."
        error = {"type": "invalid_request_error", "code": "session_expired", "message": message}
        self.say_this({"type": "error", "error": error})
        self.say_goodbye(1001, "the session has expired")

    def say_goodbye(self, code: int, why: str) -> None:
        """Send a close frame, if that can be done at once; then close the socket."""
        if self._protocol.state is OPEN and not self._frozen and not self._silent and self._slow is None:
            self._protocol.send_close(code, why)
            self._take_from_protocol()
            self._send()
        self.end(why)

    def __repr__(self) -> str:
        return f"<connection {self.number}, {self.ended or 'open'}, {len(self.received)} received>"
