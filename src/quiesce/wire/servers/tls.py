"""TLS on a connection that a server has taken. A module of its own, so that only those who use TLS load it."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from quiesce.wire.links import DescriptorChannel
from quiesce.wire.transports import AnyioChannel


async def encrypted(raw: DescriptorChannel, context: ssl.SSLContext) -> AnyioChannel:
    """The same connection after the server's side of a TLS handshake; ConnectionError if that fails."""
    stream = _Bytes(raw)
    try:
        # WebSocket has an end of its own, so nobody need wait for that of TLS.
        return AnyioChannel(
            await TLSStream.wrap(stream, server_side=True, ssl_context=context, standard_compatible=False)
        )
    except ssl.SSLError as error:
        raise ConnectionError(f"TLS failed: {error}") from error


class _Bytes(ByteStream):
    """A channel, as anyio knows streams."""

    def __init__(self, channel: DescriptorChannel) -> None:
        self._channel = channel

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._channel.receive()
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        await self._channel.send(item)

    async def send_eof(self) -> None:
        raise NotImplementedError("a TLS connection is not closed on one side only")

    async def aclose(self) -> None:
        self._channel.abort()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}
