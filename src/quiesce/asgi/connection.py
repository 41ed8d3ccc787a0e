"""One connection, read ahead: the only way to hear that a client has gone is to ask for its next message.

- The server's `receive` has one reader, which is us. What it gives goes to the application in order.
- We are ahead of the application by a few messages or 64 KiB, no more: a client that sends faster than it is read is held
  back by the server, as before. While it is held back, nobody can hear that it has gone; the end of the body, or
  the application's next read, brings that back.
- Some servers do something when the first message is asked for: they tell a client that waits for permission to
  send its body (`Expect: 100-continue`) to go on. Such a request is not read before the application asks.
- Once the client has gone, that is what the application is told, whenever it asks.
- When the request is over, whoever of it is still there can neither hear nor say anything: the server has gone on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quiesce.kernel.inner import WaitQueue, current_backend

from .types import AsgiScope, Message, Receive, Send

MESSAGES_AHEAD = 16
BYTES_AHEAD = 64 * 1024


class ClientGone(ConnectionError):
    """The client has gone, or its request is over, and what was being done for it is to end."""


class Connection:
    """`receive` and `send` for the application; `wait_until_gone` for its owner."""

    def __init__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        self.is_websocket = scope["type"] == "websocket"
        self.is_begun = False  # something was answered
        self.is_answered = False  # the response is complete: what follows is none of the client's business
        self.is_gone = False
        self.is_over = False
        self.on_call: Callable[[], object] | None = None  # called whenever the application calls
        self._kind = "websocket" if self.is_websocket else "http"
        self._receive = receive
        self._send = send
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._goodbye: Message = {"type": f"{self._kind}.disconnect"}
        if self.is_websocket:
            self._goodbye["code"] = 1006
        self._failure: Exception | None = None
        self._is_body_read = False
        self._is_read_directly = False
        self._has_trailers = False
        self._readers = 0
        self._backend = current_backend()
        self._changed = WaitQueue()
        self._is_asked = not any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in scope.get("headers", ())
        )

    @property
    def is_awaited(self) -> bool:
        """Whether the application is waiting for a message, and will hear by itself that the client has gone."""
        return self._readers > 0 and not self._messages

    async def wait_until_gone(self) -> bool:
        """Read until the client has gone: True. False if that cannot be heard. Run by one task.

        The application is told by `tell`, so that whoever is to be cancelled can be cancelled first.
        """
        while True:
            while not self._may_read():
                await self._changed.wait()
            try:
                message = await self._receive()
            except Exception as error:  # the application's, who would have asked
                self._failure = error
                return False
            kind = message["type"]
            if kind == "http.disconnect" or kind == "websocket.disconnect":
                self._goodbye = message
                self.is_gone = True
                return True
            self._messages.append(message)
            self._bytes += _size(message)
            if self._is_body_read:
                return False  # after its end a body has gone on: no messages that we could go on collecting
            self._is_body_read = kind == "http.request" and not message.get("more_body")
            self.tell()

    def _may_read(self) -> bool:
        if not self._is_asked:
            return False
        # After the end of a body only the client's leave can come.
        return self._is_body_read or (len(self._messages) < MESSAGES_AHEAD and self._bytes < BYTES_AHEAD)

    async def receive(self) -> Message:
        """The application's `receive`."""
        if self.on_call is not None:
            self.on_call()
        if not self._is_asked:
            self._is_asked = True
            self.tell()
        while not self._messages:
            if self.is_gone or self.is_over:
                return self._goodbye
            if self._failure is not None:
                raise self._failure
            if self._is_read_directly:
                return await self._receive()
            self._readers += 1
            try:
                await self._changed.wait()
            finally:
                self._readers -= 1
        message = self._messages.popleft()
        self._bytes -= _size(message)
        self.tell()
        return message

    async def send(self, message: Message) -> None:
        """The application's `send`."""
        if self.is_over:
            raise ClientGone(f"the request is over: nobody takes its {message['type']!r} any more")
        if self.on_call is not None:
            self.on_call()
        self._note(message)
        await self._send(message)

    def _note(self, message: Message) -> None:
        """Before it is sent: the client may go as soon as it has it."""
        kind = message["type"].removeprefix("websocket.")  # of a websocket that is denied with a response
        if kind == "http.response.body":
            self.is_answered = not message.get("more_body") and not self._has_trailers
        elif kind == "http.response.start":
            self.is_begun = True
            self._has_trailers = bool(message.get("trailers"))
        elif kind == "http.response.trailers":
            self.is_answered = not message.get("more_trailers")
        elif kind == "http.response.pathsend" or kind == "close":
            self.is_begun = self.is_answered = True

    def leave_reading_to_the_application(self) -> None:
        """Nobody reads ahead any more."""
        self._is_read_directly = True
        self.tell()

    def end(self) -> None:
        """The request is over."""
        self.is_over = True
        self.tell()

    def tell(self) -> None:
        """Something has changed: whoever waits looks again."""
        self._changed.wake_all()


def _size(message: Message) -> int:
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")
