"""The server's side of a WebSocket, and the little HTTP that goes with it.

Invariants
- A connection is a handler's business when hands were shaken, not before: whoever only knocks (before the request, in the middle of it, on another path) disturbs nobody
  and leaves nothing.
- All of that is bounded in time: so many seconds from the moment it was accepted.
- What is answered over plain HTTP (the health path, what does not exist, what is no WebSocket) is answered to its end, and the connection is closed.
"""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import anyio

from quiesce._extras import require
from quiesce.kernel._backend import current_backend
from quiesce.kernel._grace import check_seconds

from ._descriptors import DescriptorChannel
from ._serve import BACKLOG, TcpServer
from ._server import AcceptedSocket, ConnectionHandler
from ._transport import Transport
from ._websocket import plain_link

if TYPE_CHECKING:
    from websockets.http11 import Request, Response
    from websockets.server import ServerProtocol

    from quiesce.kernel._grace import Grace
    from quiesce.kernel._scope import Scope

    from ._limits import Limits
    from ._link import Link

logger = logging.getLogger("quiesce")


class AcceptedWebSocket(Transport):
    """A WebSocket that a server has taken; `path` and `headers` are those of its request."""

    def __init__(
        self, taken: AcceptedSocket, connected: socket.socket, protocol: ServerProtocol, request: Request
    ) -> None:
        self._taken = taken
        self._socket = connected
        self._protocol = protocol
        self.name = taken.name
        self.path = request.path
        self.headers = request.headers
        self.subprotocol: str | None = protocol.subprotocol

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Begin to use it."""
        self._taken.hand_over()
        return plain_link(self._socket, self._protocol, limits, scope, self.name)

    def discard(self) -> None:
        """Close it, unless it was opened."""
        self._taken.discard()


class WebSocketServer(TcpServer):
    """A server of WebSockets: what `serve_websocket` returns."""

    def __init__(
        self,
        *args: Any,
        path: str | None,
        health: str | None,
        origins: Sequence[str | re.Pattern[str] | None] | None,
        subprotocols: Sequence[str] | None,
        within: float,
        **options: Any,
    ) -> None:
        require("websockets", "websocket", "serve_websocket")
        super().__init__(*args, **options)
        for name, given in (("path", path), ("health", health)):
            if given is not None and not given.startswith("/"):
                raise ValueError(f"{name} must begin with /, unlike {given!r}")
        self._path = path
        self._health = health
        self._options = {"origins": origins, "subprotocols": subprotocols}
        self._within = check_seconds("within", within)
        self._open = 0

    async def _attend(self, taken: AcceptedSocket) -> None:
        connected = taken.socket
        channel = DescriptorChannel(
            current_backend(), connected.fileno(), connected.fileno(), connected.close
        )
        transport: AcceptedWebSocket | None = None
        try:
            with anyio.move_on_after(self._within):
                transport = await self._shake_hands(taken, channel)
        except OSError as error:
            logger.debug("a connection of %r has ended: %s", self.name, error)
        if transport is not None:
            self._open += 1
            try:
                await self._handler(transport)
            finally:
                self._open -= 1

    @property
    def connections(self) -> int:
        """How many WebSockets are being handled; who has not shaken hands is none."""
        return self._open

    async def _shake_hands(
        self, taken: AcceptedSocket, channel: DescriptorChannel
    ) -> AcceptedWebSocket | None:
        """The WebSocket; None if it is none, which was answered."""
        from websockets.http11 import Request
        from websockets.protocol import OPEN
        from websockets.server import ServerProtocol

        protocol = ServerProtocol(**self._options)  # type: ignore[arg-type]
        request: Request | None = None
        while request is None and protocol.handshake_exc is None:
            data = await channel.receive()
            if not data:
                return None
            protocol.receive_data(data)
            first = protocol.events[0] if protocol.events else None
            if isinstance(first, Request):
                request = first
                del protocol.events[0]  # what came behind it stays, for the framing
        if request is not None:
            protocol.send_response(self._answer(protocol, request))
        await channel.send(b"".join(protocol.data_to_send()))
        if request is not None and protocol.state is OPEN:
            return AcceptedWebSocket(taken, taken.socket, protocol, request)
        taken.socket.shutdown(socket.SHUT_WR)
        while await channel.receive():  # closed with something unread, the answer might never arrive
            pass
        return None

    def _answer(self, protocol: ServerProtocol, request: Request) -> Response:
        path = request.path.partition("?")[0]
        method = getattr(request, "method", "GET")  # versions of websockets that do not tell take no other
        if self._health is not None and path == self._health and method in ("GET", "HEAD"):
            response = _json(HTTPStatus.OK, {"status": "ok", "connections": self.connections})
            if method == "HEAD":
                response.body = b""
            return response
        if self._path is not None and path != self._path:
            return protocol.reject(HTTPStatus.NOT_FOUND, f"There is nothing at {path}.\n")
        return protocol.accept(request)


def serve_websocket(
    handler: ConnectionHandler,
    host: str | None = "localhost",
    port: int = 0,
    *,
    path: str | None = "/",
    health: str | None = "/health",
    origins: Sequence[str | re.Pattern[str] | None] | None = None,
    subprotocols: Sequence[str] | None = None,
    within: float = 10.0,
    backlog: int = BACKLOG,
    name: str | None = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> WebSocketServer:
    """A server of WebSockets, one message a WebSocket message; `handler(transport)` is called for each. Needs `quiesce[websocket]`.

    ```python
    async def handle(transport):
        async with Peer(transport, {"ping": ping}) as peer:
            await peer.wait_closed()

    async with serve_websocket(handle, "localhost", 7000, path="/acp") as server:
        ...
    ```

    - `path`: where it is; every path if None. `health`: a plain GET there is answered with 200 and how many connections are open. All else is
      answered with 404, and what is no WebSocket with 426.
    - `origins`: web pages that may connect (None among them: whoever is no web page). Without it every page in a browser on this machine can.
    - `within`: seconds in which the request must have come and been answered.
    """
    return WebSocketServer(
        handler,
        host,
        port,
        backlog,
        path=path,
        health=health,
        origins=origins,
        subprotocols=subprotocols,
        within=within,
        name=name or f"{host or '*'}:{port}",
        grace=grace,
        scope=scope,
    )


def _json(status: HTTPStatus, value: object) -> Response:
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    body = json.dumps(value).encode()
    headers = Headers(
        {
            "Date": formatdate(usegmt=True),
            "Connection": "close",
            "Cache-Control": "no-store",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }
    )
    return Response(status.value, status.phrase, headers, body)
