"""Streams and WebSockets that your program has opened, as a way to the other side.

Each belongs to the peer from then on, which closes it: in order if possible, by force if a task is stuck in
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ssl import SSLObject
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import SocketAttribute

from quiesce.kernel.inner import current_backend
from quiesce.wire.base import Framing, Lines
from quiesce.wire.links import CHUNK, ChannelLink, ClosingChannel, Transport, hung_up

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from quiesce import Scope
    from quiesce.wire.base import Limits
    from quiesce.wire.links import Link


_LOOK_AGAIN: Final = 0.005  # seconds
_TURNS: Final = 5  # of the event loop, within which asyncio and uvloop confirm that a transport is closed


async def closing_link(channel: ClosingChannel, framing: Framing, scope: Scope, name: str) -> Link:
    """Return a link over a channel that a task of its own closes."""
    await channel.stand_by(scope, name)
    link = ChannelLink(channel, framing, scope, name=name)
    channel.on_dropped = link.channel_dropped
    return link


# asyncio's streams


class AsyncioStreams(Transport):
    """A pair of asyncio's streams, with one message per line.

    ```python
    reader, writer = await asyncio.open_connection(host, port)
    async with Peer(AsyncioStreams(reader, writer)) as peer: ...
    ```
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = "streams"
    ) -> None:
        if not hasattr(reader, "read") or not hasattr(writer, "write"):
            raise TypeError(
                "AsyncioStreams takes a StreamReader first, then a StreamWriter, "
                f"not {type(reader).__name__} and {type(writer).__name__}"
            )
        self._streams = (reader, writer)
        self.name = name

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Make the link over them."""
        if current_backend().name != "asyncio":
            raise RuntimeError("AsyncioStreams work in asyncio only; here, use a socket or an AnyioStream")
        return await closing_link(_AsyncioChannel(*self._streams), Lines(limits.frame), scope, self.name)

    def discard(self) -> None:
        """Close them."""
        _AsyncioChannel(*self._streams).discard()


class _AsyncioChannel(ClosingChannel):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        return await self._reader.read(CHUNK)

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def hung_up(self) -> bool:
        return self._reader.at_eof()

    async def _close(self) -> None:
        self._writer.close()
        self._close_reader()
        if self._is_encrypted():
            # TLS has a buffer of its own, and a goodbye of both sides. Only this waits for both.
            await self._writer.wait_closed()
            return
        while self._unsent():  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(_LOOK_AGAIN)
        # Not `wait_closed()`: a real transport confirms its end in the next turns, but a stub, as tests have
        # it, never does.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await self._close_forcefully()

    def _is_encrypted(self) -> bool:
        ask = getattr(getattr(self._writer, "transport", None), "get_extra_info", None)
        return ask is not None and isinstance(ask("ssl_object"), SSLObject)

    def _unsent(self) -> int:
        """Return how many bytes wait in the buffer of the transport; 0 if it cannot tell."""
        try:
            size = self._writer.transport.get_write_buffer_size()
        except (AttributeError, NotImplementedError):
            return 0
        return size if isinstance(size, int) else 0

    async def _close_forcefully(self) -> None:
        unsent = self._unsent()
        try:
            self._writer.transport.abort()
        except (AttributeError, NotImplementedError):  # a stub
            self._writer.close()
        self._close_reader()
        if unsent and self.on_dropped is not None:
            self.on_dropped(unsent)

    def _close_reader(self) -> None:
        """Close the transport of the reader, if it has one of its own, as with two pipes."""
        transport: Any = getattr(self._reader, "_transport", None)
        if transport is not None and transport is not getattr(self._writer, "transport", None):
            transport.close()


# anyio's


class AnyioStream(Transport):
    """Any byte stream of anyio, with one message per line: a socket, TLS, a `StapledByteStream`, ...

    ```python
    stream = await anyio.connect_tcp(host, port, tls=True)
    async with Peer(AnyioStream(stream)) as peer: ...
    ```
    """

    def __init__(self, stream: ByteStream, name: str = "stream") -> None:
        if not all(hasattr(stream, verb) for verb in ("receive", "send", "aclose")):
            raise TypeError(
                "AnyioStream takes a byte stream of anyio, with receive, send and aclose, "
                f"not {type(stream).__name__}"
            )
        self._stream = stream
        self.name = name

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Make the link over it."""
        return await closing_link(AnyioChannel(self._stream), Lines(limits.frame), scope, self.name)

    def discard(self) -> None:
        """Close it."""
        AnyioChannel(self._stream).discard()


class AnyioChannel(ClosingChannel):
    """A channel over a byte stream of anyio."""

    def __init__(self, stream: ByteStream) -> None:
        super().__init__()
        self._stream = stream

    async def receive(self) -> bytes:
        """Return at least one byte; `b""` at the end."""
        try:
            return bytes(await self._stream.receive(CHUNK))
        except anyio.EndOfStream:
            return b""

    def hung_up(self) -> bool:
        """Whether the other side has disconnected; False if there is no socket that could tell."""
        extra = getattr(self._stream, "extra", None)
        connected = extra(SocketAttribute.raw_socket, None) if extra is not None else None
        return connected is not None and (connected.fileno() < 0 or hung_up(connected.fileno()))

    async def _send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def _close(self) -> None:
        await self._stream.aclose()

    async def _close_forcefully(self) -> None:
        await anyio.aclose_forcefully(self._stream)


# Messages


class MessageTransport(Transport):
    """Anything that sends and receives whole messages, such as the WebSocket of a web framework.

    ```python
    MessageTransport(ws.recv, ws.send, ws.close, ended=(ConnectionClosed,))                     # websockets
    MessageTransport(ws.receive_text, ws.send_text, ws.close, ended=(WebSocketDisconnect,))     # starlette
    ```

    `receive()` returns one message, text or bytes, or None at the end; `send(text)` sends one; `close()`
    closes the stream. An error of one of the types in `ended` means that the other side has closed it in
    order; any other error breaks the connection.
    """

    def __init__(
        self,
        receive: Callable[[], Awaitable[str | bytes | None]],
        send: Callable[[str], Awaitable[object]],
        close: Callable[[], Awaitable[object]],
        *,
        ended: tuple[type[Exception], ...] = (),
        name: str = "messages",
    ) -> None:
        for what, given in (("receive", receive), ("send", send), ("close", close)):
            if not callable(given):
                raise TypeError(f"{what} must be an async function, not {type(given).__name__}")
        self._functions = (receive, send, close, ended)
        self.name = name

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Make the link over them."""
        return await closing_link(_MessageChannel(*self._functions), _Whole(limits.frame), scope, self.name)

    def discard(self) -> None:
        """Close them."""
        _MessageChannel(*self._functions).discard()


class _MessageChannel(ClosingChannel):
    def __init__(
        self,
        receive: Callable[[], Awaitable[str | bytes | None]],
        send: Callable[[str], Awaitable[object]],
        close: Callable[[], Awaitable[object]],
        ended: tuple[type[Exception], ...],
    ) -> None:
        super().__init__()
        self._functions = (receive, send, close)
        self._ended = ended

    async def receive(self) -> bytes:
        while True:
            try:
                message = await self._functions[0]()
            except self._ended:
                return b""
            if message is None:
                return b""
            if message:
                return message.encode() if isinstance(message, str) else bytes(message)

    async def _send(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            if line:
                await self._functions[1](line.decode())

    async def _close(self) -> None:
        await self._functions[2]()

    async def _close_forcefully(self) -> None:
        # There is no other way than `close()`. It is called, so that it can do what needs no waiting, and
        # cancelled where it begins to wait.
        with anyio.CancelScope() as scope:
            scope.cancel()
            await self._functions[2]()


class _Whole(Lines):
    """Each input is one message, whatever line ends it contains; messages that are sent contain none."""

    __slots__ = ("_most",)

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._most = limit

    def feed(self, data: bytes) -> list[bytes | None]:
        return [data if len(data) <= self._most else None]
