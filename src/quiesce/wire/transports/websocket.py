"""The client's side of a WebSocket.

The peer does the handshake when it is opened, in its own task, and can be cancelled at any moment without
leaving anything over. From then on a WebSocket without TLS is a socket like any other, with another framing.
"""

from __future__ import annotations

import logging
import socket
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSStream

from quiesce._extras import require
from quiesce._safe.secrets import without_secrets
from quiesce.kernel.inner import current_backend
from quiesce.wire.links import DescriptorChannel, Transport, socket_link

from .sockets import tcp_connection
from .streams import AnyioChannel, closing_link

if TYPE_CHECKING:
    from websockets.client import ClientProtocol
    from websockets.uri import WebSocketURI

    from quiesce import Scope
    from quiesce.wire.base import Limits, WebSocketFraming
    from quiesce.wire.links import Link


# The library's own logger would log every header, and with them tokens. This one is not registered, so that
# no configuration of logging can enable it.
NO_LOG: Final = logging.Logger("quiesce.websockets")  # noqa: LOG001
NO_LOG.disabled = True


class WebSocketTransport(Transport):
    """The way to a WebSocket server: what `connect_websocket` returns."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        ssl: ssl_module.SSLContext | None,
        subprotocols: list[str],
        within: float,
        send_buffer: int | None = None,
    ) -> None:
        require("websockets", "websocket", "connect_websocket")
        from websockets.exceptions import InvalidURI
        from websockets.uri import parse_uri

        try:
            self._uri: WebSocketURI = parse_uri(url)
        except InvalidURI as error:
            raise ValueError(
                f"{without_secrets(url)!r} is not the address of a WebSocket (ws://... or wss://...): "
                f"{without_secrets(str(error))}"
            ) from None
        if ssl is not None and not self._uri.secure:
            raise ValueError(
                f"{without_secrets(url)!r} does not use TLS: with ssl=, it has to begin with wss://"
            )
        self._headers = dict(headers)
        self._ssl = ssl
        self._subprotocols = subprotocols
        self._within = within
        self._send_buffer = send_buffer
        self.url = url
        self._shown_url = without_secrets(url)
        self.name = f"{self._uri.host}:{self._uri.port}"
        #: The one that the server has chosen.
        self.subprotocol: str | None = None

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Connect, and do the handshake."""
        from websockets.client import ClientProtocol

        from quiesce.wire.base import limit_messages

        protocol = ClientProtocol(self._uri, subprotocols=self._subprotocols or None, logger=NO_LOG)  # type: ignore[arg-type]
        limit_messages(protocol, limits.frame)
        try:
            with anyio.fail_after(self._within):
                if self._uri.secure:
                    link = await self._open_secure(protocol, limits, scope)
                else:
                    link = await self._open_plain(protocol, limits, scope)
        except TimeoutError:
            raise ConnectionError(
                f"cannot connect to {self._shown_url}: it took longer than {self._within:g} s"
            ) from None
        self.subprotocol = protocol.subprotocol
        return link

    async def _open_plain(self, protocol: ClientProtocol, limits: Limits, scope: Scope) -> Link:
        connected = await tcp_connection(self._uri.host, self._uri.port)
        self._limit_send_buffer(connected)
        try:
            channel = DescriptorChannel(
                current_backend(), connected.fileno(), connected.fileno(), connected.close
            )
            await self._shake_hands(protocol, channel.receive, channel.send)
            return plain_link(connected, protocol, limits, scope, self.name)
        except BaseException:
            connected.close()
            raise

    async def _open_secure(self, protocol: ClientProtocol, limits: Limits, scope: Scope) -> Link:
        try:
            stream = await anyio.connect_tcp(self._uri.host, self._uri.port)
        except OSError as error:
            raise ConnectionError(f"cannot connect to {self._shown_url}: {error}") from error
        self._limit_send_buffer(stream.extra(SocketAttribute.raw_socket))
        try:
            # WebSocket has a goodbye of its own, so that of TLS need not be waited for.
            secure = await TLSStream.wrap(
                stream,
                hostname=self._uri.host,
                ssl_context=self._ssl or ssl_module.create_default_context(),
                standard_compatible=False,
            )
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            await anyio.aclose_forcefully(stream)
            raise ConnectionError(f"cannot connect to {self._shown_url}: TLS failed: {error}") from error
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        channel = AnyioChannel(secure)
        try:
            await self._shake_hands(protocol, channel.receive, channel.send)
        except BaseException:
            await anyio.aclose_forcefully(secure)
            raise
        return await secure_link(channel, protocol, limits, scope, self.name)

    def _limit_send_buffer(self, connected: socket.socket) -> None:
        if self._send_buffer is not None:
            try:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
            except OSError:  # it has disconnected already, as the first read will tell
                pass

    async def _shake_hands(
        self,
        protocol: ClientProtocol,
        receive: Callable[[], Awaitable[bytes]],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        from websockets.http11 import Response
        from websockets.protocol import CONNECTING

        request = protocol.connect()
        for name, value in self._headers.items():
            # Setting a header of websockets adds another one with the same name.
            if name in request.headers:
                del request.headers[name]
            request.headers[name] = value
        protocol.send_request(request)
        try:
            await send(b"".join(protocol.data_to_send()))
            while protocol.state is CONNECTING and protocol.handshake_exc is None:
                data = await receive()
                if data:
                    protocol.receive_data(data)
                else:
                    protocol.receive_eof()
                    break
                # Messages that came together with the response stay, for the framing.
                protocol.events = [event for event in protocol.events if not isinstance(event, Response)]
        except (OSError, anyio.BrokenResourceError) as error:
            raise ConnectionError(f"cannot connect to {self._shown_url}: {error}") from error
        if protocol.handshake_exc is not None or protocol.state is CONNECTING:
            why = protocol.handshake_exc or "it was closed before the end of the handshake"
            raise ConnectionError(f"cannot connect to {self._shown_url}: {why}") from protocol.handshake_exc


def connect_websocket(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    ssl: ssl_module.SSLContext | None = None,
    subprotocols: list[str] | None = None,
    within: float = 30.0,
    send_buffer: int | None = None,
) -> WebSocketTransport:
    """Return a transport to a WebSocket server. Needs `quiesce[websocket]`.

    ```python
    headers = {"Authorization": f"Bearer {key}"}
    async with Peer(connect_websocket("wss://agents.example/acp", headers=headers)) as peer:
        await peer.request("initialize", {...})
    ```

    It connects when the peer is opened, within so many seconds; if it cannot, that raises a `ConnectionError`
    with the reason. `ssl` is the context for `wss://`, the default one unless given. `send_buffer` limits how
    many bytes the system buffers for a server that does not read; unless given, the system decides.
    """
    return WebSocketTransport(url, headers or {}, ssl, subprotocols or [], within, send_buffer)


def plain_link(connected: socket.socket, protocol: Any, limits: Limits, scope: Scope, name: str) -> Link:
    """Return the link over a socket after the handshake."""
    return _with_early(socket_link(connected, _framing(protocol, limits), scope, name), protocol)


async def secure_link(channel: AnyioChannel, protocol: Any, limits: Limits, scope: Scope, name: str) -> Link:
    """Return the link over TLS after the handshake."""
    return _with_early(await closing_link(channel, _framing(protocol, limits), scope, name), protocol)


def _framing(protocol: Any, limits: Limits) -> WebSocketFraming:
    from quiesce.wire.base import WebSocketFraming

    return WebSocketFraming(protocol, limits.frame)


def _with_early(link: Link, protocol: Any) -> Link:
    """Pass on messages that came together with the handshake, as soon as the link has been started."""
    # Not at once: the receiver of the link is not known yet, and would miss them.
    if protocol.events or link.framing.ended:
        link.backend.call_at(link.backend.now(), lambda: link.data_came(b""))
    return link
