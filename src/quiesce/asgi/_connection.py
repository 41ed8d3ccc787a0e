"""One connection, read ahead: the only way to hear that a client has gone is to ask for its next message.

The server's `receive` has one reader, which is us. What it gives goes to the application in order, through a small buffer:
a client that sends faster than it is read is held back by the server, as before. When the client goes, whatever the
application asks for from then on is that message.

A few servers do something when the first message is asked for: they tell a client that waits for permission to send
its body (`Expect: 100-continue`) to go on. Such a request is not read before the application asks.
"""

from __future__ import annotations

from collections import deque

import anyio

from ._types import AsgiScope, Message, Receive, Send

_GONE = frozenset({"http.disconnect", "websocket.disconnect"})


class Connection:
    """`receive` and `send` for the application; `wait_until_gone` for its owner."""

    def __init__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        self.is_begun = False
        self.is_answered = False  # the response is complete: what follows is none of the client's business
        self.is_websocket = scope["type"] == "websocket"
        self._receive = receive
        self._send = send
        self._ahead = 16 if self.is_websocket else 1
        self._messages: deque[Message] = deque()
        self._gone: Message | None = None
        self._readers = 0
        self._may_read = anyio.Event()
        self._changed = anyio.Event()
        if not any(name == b"expect" for name, _ in scope.get("headers", ())):
            self._may_read.set()

    @property
    def is_gone(self) -> bool:
        return self._gone is not None

    @property
    def is_awaited(self) -> bool:
        """Whether the application is waiting for a message, and will hear by itself that the client has gone."""
        return self._readers > 0

    async def wait_until_gone(self) -> None:
        """Return when the client has gone. Run by one task, which does all the reading."""
        await self._may_read.wait()
        while True:
            while self._is_ahead():
                await self._changed.wait()
            message = await self._receive()
            if message["type"] in _GONE:
                self._gone = message
                self._change()
                return
            self._messages.append(message)
            self._change()

    def _is_ahead(self) -> bool:
        """Whether to read no further for now. After the end of a body only the client's leave can come."""
        if len(self._messages) < self._ahead:
            return False
        return self.is_websocket or bool(self._messages[-1].get("more_body"))

    async def receive(self) -> Message:
        self._may_read.set()
        self._readers += 1
        try:
            while not self._messages:
                if self._gone is not None:
                    return self._gone
                await self._changed.wait()
        finally:
            self._readers -= 1
        message = self._messages.popleft()
        self._change()
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        self.is_begun = self.is_begun or kind == "http.response.start"
        # Noted before it is sent: the client may go as soon as it has it.
        if (kind == "http.response.body" and not message.get("more_body")) or kind == "websocket.close":
            self.is_answered = True
        await self._send(message)

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
