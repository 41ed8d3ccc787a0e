"""Every way to the other side, with that side in the hands of a test: it sends messages as they are, and keeps all that comes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.streams.tls import TLSStream

from quiesce.wire import (
    AnyioStream,
    AsyncioStreams,
    ChildProcess,
    MessageTransport,
    Peer,
    SocketTransport,
    Transport,
    connect_tcp,
    connect_websocket,
    memory_pair,
    serve_tcp,
    serve_websocket,
)
from tests.wire.bare import Bare
from tests.wire.certificates import make_certificate


class Far(Protocol):
    """The other side."""

    async def ask(self, messages: list[Any]) -> None:
        """Send these, in one piece where that is possible."""

    async def answers(self) -> list[Any]:
        """All that has come, when the connection is over."""


BothEnds = Callable[[Path], AbstractAsyncContextManager[tuple[Any, Far]]]


def lines_of(messages: list[Any]) -> bytes:
    """Each a line; text goes as it is."""
    texts = [message if isinstance(message, str) else json.dumps(message) + "\n" for message in messages]
    return "".join(texts).encode()


class SocketFar:
    """The other end of a socket, or a listener that has it."""

    def __init__(self, far: socket.socket, *, listens: bool = False) -> None:
        self._listener = far if listens else None
        self._far = None if listens else far

    @property
    def socket(self) -> socket.socket:
        if self._far is None:
            assert self._listener is not None
            self._far, _ = self._listener.accept()
        self._far.setblocking(False)
        return self._far

    async def ask(self, messages: list[Any]) -> None:
        self.socket.sendall(lines_of(messages))

    async def answers(self) -> list[Any]:
        return [json.loads(line) for line in (await self.rest()).splitlines()]

    async def rest(self) -> bytes:
        received = bytearray()
        while True:
            await anyio.wait_readable(self.socket)
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                break
            if not data:
                break
            received += data
        return bytes(received)

    def send_no_more(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._far, self._listener):
            if each is not None:
                each.close()


@asynccontextmanager
async def over_memory(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    near, far = memory_pair()
    yield near, MemoryFar(Bare(far))


class MemoryFar:
    def __init__(self, bare: Bare) -> None:
        self.bare = bare

    async def ask(self, messages: list[Any]) -> None:
        await self.bare.send(*messages)

    async def answers(self) -> list[Any]:
        return await self.bare.rest()

    async def rest(self) -> bytes:
        received = bytearray()
        while data := await self.bare.channel.receive():
            received += data
        return bytes(received)


@asynccontextmanager
async def over_a_channel(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    """An object of the user's own."""
    near, far = memory_pair()

    class Own:
        def __init__(self) -> None:
            self.receive, self.send = near._channel.receive, near._channel.send
            self.abort = near._channel.abort

        async def aclose(self) -> None:
            await anyio.sleep(0.001)

    yield Own(), MemoryFar(Bare(far))


@asynccontextmanager
async def over_a_socket(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    near, other = socket.socketpair()
    far = SocketFar(other)
    try:
        yield SocketTransport(near), far
    finally:
        far.close()


@asynccontextmanager
async def over_tcp(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    far = SocketFar(socket.create_server(("127.0.0.1", 0)), listens=True)
    assert far._listener is not None
    try:
        yield connect_tcp(*far._listener.getsockname()), far
    finally:
        far.close()


@asynccontextmanager
async def over_tcp_as_a_server(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    taken, over = list[Transport](), anyio.Event()

    async def handle(transport: Transport) -> None:
        taken.append(transport)
        await over.wait()

    async with serve_tcp(handle, "127.0.0.1", 0) as server:
        far = SocketFar(socket.create_connection(("127.0.0.1", server.port)))
        while not taken:
            await anyio.sleep(0.001)
        try:
            yield taken[0], far
        finally:
            over.set()
            far.close()


# Streams of others


@asynccontextmanager
async def over_asyncio_streams(
    folder: Path, send_buffer: int | None = None
) -> AsyncIterator[tuple[Any, Far]]:
    near, other = socket.socketpair()
    near.setblocking(False)
    if send_buffer is not None:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    far = SocketFar(other)
    try:
        yield AsyncioStreams(*await asyncio.open_connection(sock=near)), far
    finally:
        far.close()


class StubTransport(asyncio.Transport):
    """Takes everything at once, and never says that it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class StubFar:
    def __init__(self, reader: asyncio.StreamReader, written: bytearray) -> None:
        self._reader = reader
        self._written = written

    async def ask(self, messages: list[Any]) -> None:
        self._reader.feed_data(lines_of(messages))

    async def answers(self) -> list[Any]:
        return [json.loads(line) for line in self._written.splitlines()]


@asynccontextmanager
async def over_a_writer_that_never_confirms(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    """A real `StreamWriter` over a transport that is none: its `wait_closed()` never returns."""
    reader, stub = asyncio.StreamReader(), StubTransport()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    writer = asyncio.StreamWriter(stub, protocol, None, asyncio.get_running_loop())
    yield AsyncioStreams(reader, writer), StubFar(reader, stub.written)


@asynccontextmanager
async def over_a_stub_writer(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    """What some have in their tests: an object with the methods of a `StreamWriter`, and nothing behind them."""
    reader, written = asyncio.StreamReader(), bytearray()

    class Stub:
        def write(self, data: bytes) -> None:
            written.extend(data)

        async def drain(self) -> None:
            pass

        def close(self) -> None:
            pass

        async def wait_closed(self) -> None:
            await asyncio.Event().wait()

    stub: Any = Stub()
    yield AsyncioStreams(reader, stub), StubFar(reader, written)


@asynccontextmanager
async def over_an_anyio_stream(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    near, other = socket.socketpair()
    near.setblocking(False)
    far = SocketFar(other)
    try:
        yield AnyioStream(await anyio.abc.SocketStream.from_socket(near)), far
    finally:
        far.close()


@asynccontextmanager
async def over_an_anyio_stream_with_tls(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    certificate = make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    near, other = socket.socketpair()
    near.setblocking(False)
    other.setblocking(False)
    streams: list[TLSStream] = []

    async def greet() -> None:
        streams.append(
            await TLSStream.wrap(
                await anyio.abc.SocketStream.from_socket(other), server_side=True, ssl_context=context
            )
        )

    async with anyio.create_task_group() as group:
        group.start_soon(greet)
        stream = await TLSStream.wrap(
            await anyio.abc.SocketStream.from_socket(near),
            hostname="127.0.0.1",
            ssl_context=ssl.create_default_context(cafile=str(certificate)),
        )
    async with anyio.create_task_group() as group:
        far = AnyioFar(streams[0])
        group.start_soon(far.receive)
        yield AnyioStream(stream), far
        group.cancel_scope.cancel()
    await anyio.aclose_forcefully(streams[0])


class AnyioFar:
    """Reads all the time: TLS is closed by both sides."""

    def __init__(self, stream: TLSStream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._over = anyio.Event()

    async def receive(self) -> None:
        try:
            while True:
                self._received += await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self._over.set()

    async def ask(self, messages: list[Any]) -> None:
        await self._stream.send(lines_of(messages))

    async def answers(self) -> list[Any]:
        await self._over.wait()
        return [json.loads(line) for line in self._received.splitlines()]


class Mailbox:
    """Whole messages, by three functions."""

    def __init__(self) -> None:
        self._put, self._get = anyio.create_memory_object_stream[Any](100)
        self._sent: list[str] = []

    async def receive(self) -> Any:
        return await self._get.receive()

    async def send(self, text: str) -> None:
        await anyio.sleep(0)
        self._sent.append(text)

    async def close(self) -> None:
        await anyio.sleep(0.001)

    async def never_closes(self) -> None:
        await anyio.sleep_forever()

    def throw_away(self) -> None:
        self._put.close()
        self._get.close()

    async def ask(self, messages: list[Any]) -> None:
        for message in messages:
            self._put.send_nowait(json.dumps(message))

    async def answers(self) -> list[Any]:
        return [json.loads(text) for text in self._sent]


@asynccontextmanager
async def over_messages(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    box = Mailbox()
    yield MessageTransport(box.receive, box.send, box.close), box
    box.throw_away()


@asynccontextmanager
async def over_messages_that_never_close(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    box = Mailbox()
    yield MessageTransport(box.receive, box.send, box.never_closes), box
    box.throw_away()


# WebSockets: the other side is a peer whose frames are read as they come


class PeerFar:
    def __init__(self, transport: Any) -> None:
        self._answers: list[Any] = []
        self.peer = Peer(transport, tap=self._tap)

    def _tap(self, way: str, frame: bytes) -> None:
        if way == "in":
            self._answers.append(json.loads(frame))

    async def ask(self, messages: list[Any]) -> None:
        for message in messages:
            self.peer._connection.sender.send(json.dumps(message).encode())

    async def answers(self) -> list[Any]:
        await self.peer.wait_closed()
        return self._answers


def websocket_ends(*, as_server: bool, tls: bool) -> BothEnds:
    @asynccontextmanager
    async def over_a_websocket(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
        taken, over = list[Transport](), anyio.Event()
        ours, theirs, scheme = None, None, "ws"
        if tls:
            certificate, scheme = make_certificate(folder), "wss"
            ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            ours.load_cert_chain(certificate)
            theirs = ssl.create_default_context(cafile=str(certificate))

        async def handle(transport: Transport) -> None:
            taken.append(transport)
            if not as_server:
                far.append(PeerFar(transport))
                async with far[0].peer:
                    await over.wait()
            else:
                await over.wait()

        far: list[PeerFar] = []
        async with serve_websocket(handle, "127.0.0.1", 0, ssl=ours) as server:
            client = connect_websocket(f"{scheme}://127.0.0.1:{server.port}/", ssl=theirs)
            if as_server:
                far.append(PeerFar(client))
                async with far[0].peer:
                    while not taken:
                        await anyio.sleep(0.001)
                    yield taken[0], far[0]
                    over.set()
            else:
                yield client, LateFar(far)
                over.set()

    return over_a_websocket


class LateFar:
    """Is there as soon as the server has taken the connection."""

    def __init__(self, far: list[PeerFar]) -> None:
        self._far = far

    async def ask(self, messages: list[Any]) -> None:
        while not self._far or not self._far[0].peer._held().entered:
            await anyio.sleep(0.001)
        await self._far[0].ask(messages)

    async def answers(self) -> list[Any]:
        return await self._far[0].answers()


# A child process

CHILD = """
import os, sys, time
asked, answered = sys.argv[1:]
while not os.path.exists(asked):
    time.sleep(0.002)
said, last, _ = open(asked).read().partition("and no more")
sys.stdout.write(said)
sys.stdout.flush()
if last:
    os.close(1)
with open(answered, "w") as kept:
    for line in sys.stdin:
        kept.write(line)
"""


class ChildFar:
    def __init__(self, asked: Path, answered: Path) -> None:
        self._asked = asked
        self._answered = answered

    async def ask(self, messages: list[Any]) -> None:
        whole = self._asked.with_suffix(".new")
        whole.write_bytes(lines_of(messages))
        os.replace(whole, self._asked)

    async def answers(self) -> list[Any]:
        return [json.loads(line) for line in self._answered.read_bytes().splitlines()]


@asynccontextmanager
async def over_the_pipes_of_a_child(folder: Path) -> AsyncIterator[tuple[Any, Far]]:
    asked, answered = folder / "asked", folder / "answered"
    child = ChildProcess([sys.executable, "-I", "-S", "-c", CHILD, str(asked), str(answered)])
    yield child, ChildFar(asked, answered)


ON_ASYNCIO: dict[str, BothEnds] = {
    "asyncio streams": over_asyncio_streams,
    "a writer that never confirms": over_a_writer_that_never_confirms,
    "a stub writer": over_a_stub_writer,
}
EVERYWHERE: dict[str, BothEnds] = {
    "memory": over_memory,
    "a channel": over_a_channel,
    "a socket": over_a_socket,
    "tcp": over_tcp,
    "tcp as a server": over_tcp_as_a_server,
    "an anyio stream": over_an_anyio_stream,
    "an anyio stream with TLS": over_an_anyio_stream_with_tls,
    "messages": over_messages,
    "messages that never close": over_messages_that_never_close,
    "a websocket": websocket_ends(as_server=False, tls=False),
    "a websocket as a server": websocket_ends(as_server=True, tls=False),
    "a websocket with TLS": websocket_ends(as_server=False, tls=True),
    "a websocket with TLS as a server": websocket_ends(as_server=True, tls=True),
    "a child process": over_the_pipes_of_a_child,
}
