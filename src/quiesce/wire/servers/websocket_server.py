"""The server's side of a WebSocket, and the little HTTP that goes with it.

Invariants
- The handler sees a connection only after the handshake. A client that disconnects before, sends half a
  request, or asks for another path, affects no other connection and leaves nothing over.
- The handshake is bounded in time, from the moment the connection was accepted, including the handshake of
  TLS.
- A client without the server's token is answered with 401, and nothing of it reaches the handler.
- Plain HTTP (the health path, unknown paths, requests that are not for a WebSocket) is answered completely,
  and then the connection is closed.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import anyio

from quiesce._extras import require
from quiesce._safe.printed import logger
from quiesce.kernel.inner import check_seconds, current_backend
from quiesce.wire.links import PER_PEER, Admission, Client, DescriptorChannel, Transport
from quiesce.wire.transports import NO_LOG, plain_link, secure_link

from .line_servers import BACKLOG, TcpServer
from .server import AcceptedSocket, ConnectionHandler
from .tls import encrypted

if TYPE_CHECKING:
    from ssl import SSLContext

    from websockets.http11 import Request, Response
    from websockets.server import ServerProtocol

    from quiesce import Grace, Scope
    from quiesce.wire.base import Limits
    from quiesce.wire.links import Link
    from quiesce.wire.transports import AnyioChannel

TOKEN_SUBPROTOCOL: Final = "quiesce.token."


class AcceptedWebSocket(Transport):
    """A WebSocket that a server accepted; `path` and `headers` are those of its request."""

    def __init__(
        self,
        taken: AcceptedSocket,
        secure: AnyioChannel | None,
        protocol: ServerProtocol,
        request: Request,
        client: Client,
    ) -> None:
        self._taken = taken
        self._secure = secure
        self._protocol = protocol
        self.name = taken.name
        self.client = client
        self.path = request.path
        self.headers = request.headers
        self.subprotocol: str | None = protocol.subprotocol

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Make the link over it."""
        self._taken.hand_over()
        if self._secure is not None:
            return await secure_link(self._secure, self._protocol, limits, scope, self.name)
        return plain_link(self._taken.socket, self._protocol, limits, scope, self.name)

    def discard(self) -> None:
        """Close the socket, unless it was opened."""
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
        ssl: SSLContext | None,
        within: float,
        **options: Any,
    ) -> None:
        require("websockets", "websocket", "serve_websocket")
        super().__init__(*args, **options)
        self._ssl = ssl
        for name, given in (("path", path), ("health", health)):
            if given is not None and not given.startswith("/"):
                raise ValueError(f"{name} must begin with /, unlike {given!r}")
        self._path = path
        self._health = health
        self._options: dict[str, Any] = {"origins": origins, "subprotocols": subprotocols}
        if self._admission.needs_token:
            # A plain function, because websockets makes it a method of the protocol.
            choose = self._choose_subprotocol
            self._options["select_subprotocol"] = lambda protocol, offered: choose(offered, protocol)
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
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            logger.debug("a connection of %r has ended: %s", self.name, error)
        if transport is not None:
            self._open += 1
            try:
                await self._handler(transport)
            finally:
                self._open -= 1

    @property
    def connections(self) -> int:
        """How many WebSockets are being handled; those that are in their handshake do not count."""
        return self._open

    @property
    def _is_encrypted(self) -> bool:
        return self._ssl is not None

    async def _shake_hands(self, taken: AcceptedSocket, raw: DescriptorChannel) -> AcceptedWebSocket | None:
        """Do the handshake; answer and return None if the request is not one for a WebSocket."""
        from websockets.http11 import Request
        from websockets.protocol import OPEN
        from websockets.server import ServerProtocol

        secure = await encrypted(raw, self._ssl) if self._ssl is not None else None
        channel: DescriptorChannel | AnyioChannel = raw if secure is None else secure
        protocol = ServerProtocol(**self._options, logger=NO_LOG)
        request: Request | None = None
        head = b""
        while request is None and protocol.handshake_exc is None:
            data = await channel.receive()
            head = head or data
            if not data:
                return None
            protocol.receive_data(data)
            first = protocol.events[0] if protocol.events else None
            if isinstance(first, Request):
                request = first
                del protocol.events[0]  # messages that came together with it stay, for the framing
        assert taken.client is not None
        if request is not None:
            protocol.send_response(self._answer(protocol, request, taken))
            answer = b"".join(protocol.data_to_send())
        else:  # websockets does not read requests with a body, nor, below version 17, other methods than GET
            answer = self._answer_to_others(head, protocol.handshake_exc).serialize()
        await channel.send(answer)
        if request is not None and protocol.state is OPEN:
            client = replace(taken.client, has_token=self._admission.needs_token)
            return AcceptedWebSocket(taken, secure, protocol, request, client)
        # The client sees the end of the answer, and closes.
        taken.socket.shutdown(socket.SHUT_WR)
        # A socket that is closed with unread input is reset, and then the answer might never arrive.
        while await channel.receive():
            pass
        return None

    def _answer(self, protocol: ServerProtocol, request: Request, taken: AcceptedSocket) -> Response:
        path = request.path.partition("?")[0]
        method = getattr(request, "method", "GET")  # older versions of websockets read no other method
        if self._health is not None and path == self._health and method in ("GET", "HEAD"):
            response = _json(HTTPStatus.OK, {"status": "ok", "connections": self.connections})
            if method == "HEAD":
                response.body = b""
            return response
        if self._health is not None and path == self._health:
            return _not_allowed()
        if self._path is not None and path != self._path:
            return protocol.reject(HTTPStatus.NOT_FOUND, f"There is nothing at {path}.\n")
        if not self._request_has_token(request):
            logger.warning("server %r refused a client without its token", self.name)
            response = protocol.reject(
                HTTPStatus.UNAUTHORIZED, "This server needs its token: Authorization: Bearer TOKEN.\n"
            )
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        response = protocol.accept(request)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS and not (
            taken.is_counted or self._count(taken)
        ):
            return protocol.reject(HTTPStatus.TOO_MANY_REQUESTS, "You have too many connections here.\n")
        return response

    def _answer_to_others(self, head: bytes, why: Exception | None) -> Response:
        """Return the answer to a request that websockets does not read."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if (
            self._health is not None
            and len(words) == 3
            and words[1].partition(b"?")[0] == self._health.encode()
        ):
            return _not_allowed()
        return _json(HTTPStatus.BAD_REQUEST, {"error": str(why)})

    def _request_has_token(self, request: Request) -> bool:
        """Whether the token is in a header; or in a subprotocol, as browsers do not let pages set headers."""
        # Two headers are refused: a proxy in front of us may have checked the other one.
        shown = request.headers.get_all("Authorization")
        return self._admission.accepts(shown[0] if len(shown) == 1 else None) or any(
            self._is_token(offered.strip())
            for header in request.headers.get_all("Sec-WebSocket-Protocol")
            for offered in header.split(",")
        )

    def _is_token(self, offered: str) -> bool:
        return offered.startswith(TOKEN_SUBPROTOCOL) and self._admission.accepts(
            f"Bearer {offered.removeprefix(TOKEN_SUBPROTOCOL)}"
        )

    def _choose_subprotocol(self, offered: Sequence[Any], protocol: ServerProtocol) -> Any:
        """Choose one of the offered subprotocols: that with the token only if there is no other."""
        # It has to be one of them: a browser closes the connection if the server chooses none.
        others = [each for each in offered if not each.startswith(TOKEN_SUBPROTOCOL)]
        if self._options["subprotocols"]:
            return type(protocol).select_subprotocol(protocol, others)
        return next((each for each in offered if self._is_token(each)), None)


def serve_websocket(
    handler: ConnectionHandler,
    host: str | None = "localhost",
    port: int = 0,
    *,
    path: str | None = "/",
    health: str | None = "/health",
    origins: Sequence[str | re.Pattern[str] | None] | None = None,
    subprotocols: Sequence[str] | None = None,
    token: str | None = None,
    ssl: SSLContext | None = None,
    per_peer: int = PER_PEER,
    anyone: bool = False,
    within: float = 10.0,
    backlog: int = BACKLOG,
    name: str | None = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> WebSocketServer:
    """Return a server of WebSockets; `handler(transport)` runs in a task per WebSocket.

    Needs `quiesce[websocket]`.

    ```python
    async def handle(transport):
        async with Peer(transport, {"ping": ping}) as peer:
            await peer.wait_closed()

    async with serve_websocket(handle, "localhost", 7000, path="/acp") as server:
        ...
    ```

    - `path`: the path of the WebSocket; None for every path. `health`: a plain GET there is answered with 200
      and the number of open connections. Other paths are answered with 404, requests that are not for a
      WebSocket with 426.
    - `origins`: the web pages that may connect; None among them stands for clients that are not web pages.
      Without it, every page in a browser on this machine can connect.
    - `token`: what a client has to present, as `connect_websocket(headers={"Authorization": f"Bearer
      {token}"})` does; a page in a browser offers the subprotocol `quiesce.token.TOKEN`. `transport.client`
      says who has presented it.
    - `ssl`: the server's context, for `wss://`.
    - `anyone`: let anybody connect from other machines. Without it, a server off loopback needs both `token`
      and `ssl`, or is refused with a `PermissionError`.
    - `per_peer`: how many connections one address may have at a time.
    - `within`: seconds in which the request must have come and been answered.
    """
    return WebSocketServer(
        handler,
        host,
        port,
        backlog,
        anyone,
        path=path,
        health=health,
        origins=origins,
        subprotocols=subprotocols,
        ssl=ssl,
        within=within,
        name=name or f"{host or '*'}:{port}",
        grace=grace,
        scope=scope,
        admission=Admission(token=token, per_peer=per_peer),
    )


def _not_allowed() -> Response:
    response = _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD are answered here"})
    response.headers["Allow"] = "GET, HEAD"
    return response


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
