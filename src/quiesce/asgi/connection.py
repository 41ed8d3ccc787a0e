"""One connection, read ahead: the only way to learn that a client has disconnected is to ask for its next message.

- The server's `receive` has one reader, which is us. Its messages go to the application in order.
- We read at most a few messages or 64 KiB ahead of the application: a client that sends faster than it is read is
  slowed down by the server, as without us. Meanwhile its disconnect cannot be noticed, until the end of the body or
  the application's next read.
- Some servers do something when the first message is requested: they tell a client that waits for permission to send
  its body (`Expect: 100-continue`) to proceed. Such a request is not read before the application asks for it.
- Once the client has disconnected, the application is told so whenever it asks.
- When the request has ended, anything that is left over of it can neither receive nor send: the server has moved on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quiesce.kernel.inner import WaitQueue

from .types import AsgiScope, Message, Receive, Send

MESSAGES_AHEAD = 16
BYTES_AHEAD = 64 * 1024


class ClientGone(ConnectionError):
    """The client disconnected, or its request has ended, and the work for it has to stop."""


class Connection:
    """`receive` and `send` for the application, and `wait_for_disconnect` for the owner of the request."""

    def __init__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        self.is_websocket = scope["type"] == "websocket"
        self.response_started = False
        #: The response is complete: a disconnect after that stops nothing.
        self.response_complete = False
        self.disconnected = False
        self.ended = False
        #: Called whenever the application calls `receive` or `send`.
        self.on_call: Callable[[], object] | None = None
        self._kind = "websocket" if self.is_websocket else "http"
        self._receive = receive
        self._send = send
        self._messages: deque[Message] = deque()
        self._bytes = 0
        # What the application is sent if the server does not provide a message of its own.
        self._disconnect_message: Message = {"type": f"{self._kind}.disconnect"}
        if self.is_websocket:
            self._disconnect_message["code"] = 1006
        self._failure: Exception | None = None
        self._is_body_read = False
        self._reads_directly = False
        self._has_trailers = False
        self._readers = 0
        self._changed = WaitQueue()
        # False until the application asks, if reading would make the server invite the body.
        self._may_start_reading = not any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in scope.get("headers", ())
        )

    @property
    def is_awaited(self) -> bool:
        """Whether the application is waiting for a message, and will itself be told that the client disconnected."""
        return self._readers > 0 and not self._messages

    async def wait_for_disconnect(self) -> bool:
        """Read until the client disconnects, and return True; return False if that cannot be noticed.

        Only one task may run this. The caller then calls `wake`, after it has cancelled the handler: an application
        that was told first would react to the disconnect before the cancel.
        """
        while True:
            while not self._may_read():
                await self._changed.wait()
            try:
                message = await self._receive()
            except Exception as error:
                # The application would have got this error if it had called `receive` itself, so it gets it.
                self._failure = error
                return False
            kind = message["type"]
            if kind == "http.disconnect" or kind == "websocket.disconnect":
                self._disconnect_message = message
                self.disconnected = True
                return True
            self._messages.append(message)
            self._bytes += _size(message)
            # A message after the end of the body: something that we do not know, and must not collect without limit.
            if self._is_body_read:
                return False
            self._is_body_read = kind == "http.request" and not message.get("more_body")
            self.wake()

    def _may_read(self) -> bool:
        if not self._may_start_reading:
            return False
        # After the end of the body only a disconnect can come, so that there is no limit to observe.
        return self._is_body_read or (len(self._messages) < MESSAGES_AHEAD and self._bytes < BYTES_AHEAD)

    async def receive(self) -> Message:
        """Return the next message; the application's `receive`."""
        if self.on_call is not None:
            self.on_call()
        if not self._may_start_reading:
            self._may_start_reading = True
            self.wake()
        while not self._messages:
            if self.disconnected or self.ended:
                return self._disconnect_message
            if self._failure is not None:
                raise self._failure
            if self._reads_directly:
                return await self._receive()
            self._readers += 1
            try:
                await self._changed.wait()
            finally:
                self._readers -= 1
        message = self._messages.popleft()
        self._bytes -= _size(message)
        self.wake()
        return message

    async def send(self, message: Message) -> None:
        """Send a message; the application's `send`."""
        if self.ended:
            raise ClientGone(f"the request has ended: its {message['type']!r} cannot be sent any more")
        if self.on_call is not None:
            self.on_call()
        self._track_response(message)
        await self._send(message)

    def _track_response(self, message: Message) -> None:
        # Called before the message is sent: the client may disconnect as soon as it has it.
        # A websocket that is denied with an HTTP response sends the same messages with a prefix.
        kind = message["type"].removeprefix("websocket.")
        if kind == "http.response.body":
            self.response_complete = not message.get("more_body") and not self._has_trailers
        elif kind == "http.response.start":
            self.response_started = True
            self._has_trailers = bool(message.get("trailers"))
        elif kind == "http.response.trailers":
            self.response_complete = not message.get("more_trailers")
        elif kind == "http.response.pathsend" or kind == "close":
            self.response_started = self.response_complete = True

    def leave_reading_to_the_application(self) -> None:
        """Stop reading ahead; from now on the application's `receive` calls the server's."""
        self._reads_directly = True
        self.wake()

    def end(self) -> None:
        """End the request: `receive` then returns a disconnect, and `send` raises."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Make everything that waits check the state again."""
        self._changed.wake_all()


def _size(message: Message) -> int:
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")
