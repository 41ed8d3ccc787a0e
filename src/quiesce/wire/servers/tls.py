"""TLS on a connection that a server accepted. A module of its own, so that only servers with TLS load it."""

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
    """Do the server's side of a TLS handshake; return the encrypted channel, or raise ConnectionError."""
    stream = _Bytes(raw)
    try:
        # WebSocket has a goodbye of its own, so that of TLS need not be waited for.
        return AnyioChannel(
            await TLSStream.wrap(stream, server_side=True, ssl_context=context, standard_compatible=False)
        )
    except ssl.SSLError as error:
        raise ConnectionError(f"TLS failed: {error}") from error


class _Bytes(ByteStream):
    """A channel as a byte stream of anyio."""

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
