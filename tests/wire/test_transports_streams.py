"""Streams that somebody else has opened: asyncio's, anyio's, and whatever sends whole messages."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

import anyio
import pytest
from anyio.streams.stapled import StapledByteStream

from quiesce import Grace
from quiesce.wire import ConnectionEnded, Limits, Peer, SocketTransport
from quiesce.wire.transports.streams import AnyioChannel, AnyioStream, AsyncioStreams, MessageTransport
from tests.world import asyncio_only, trio_only

pytestmark = pytest.mark.real_time

HASTY = Grace(cancel=0.05, terminate=0.05, kill=5)


async def echo(params: Any) -> Any:
    return params


async def until(condition: Any) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


# asyncio's streams


async def streams_of(connected: socket.socket) -> AsyncioStreams:
    connected.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connected)
    return AsyncioStreams(reader, writer)


@asyncio_only
async def test_asyncio_streams_over_a_socket() -> None:
    one, other = socket.socketpair()
    async with Peer(await streams_of(one), {"echo": echo}) as us, Peer(SocketTransport(other)) as them:
        assert await them.request("echo", "x" * 300_000) == "x" * 300_000
    assert us.report is not None
    assert us.report.clean
    assert one.fileno() == -1


@asyncio_only
async def test_asyncio_streams_over_two_pipes_are_both_closed() -> None:
    loop = asyncio.get_running_loop()
    (read, to_us), (from_us, write) = os.pipe(), os.pipe()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(write, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    async with Peer(AsyncioStreams(reader, writer), {"echo": echo}) as peer:
        os.write(to_us, b'{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": 5}\n')
        await anyio.wait_readable(from_us)
        assert os.read(from_us, 1000) == b'{"jsonrpc":"2.0","id":1,"result":5}\n'
        os.close(to_us)
        await peer.wait_closed()
    assert os.read(from_us, 1) == b""
    os.close(from_us)


@asyncio_only
async def test_the_last_answer_on_asyncio_streams_is_not_left_in_their_buffer() -> None:
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    peer = await Peer.open(await streams_of(one), limits=Limits(unsent=1_000_000))
    await peer.notify("long", "x" * 50_000)  # less than the transport would keep
    received = bytearray()
    async with anyio.create_task_group() as group:
        group.start_soon(peer.close)
        other.setblocking(False)
        while True:
            await anyio.wait_readable(other)
            data = other.recv(4096)
            if not data:
                break
            received.extend(data)
    other.close()
    assert len(received) > 50_000


@asyncio_only
async def test_asyncio_streams_that_are_stuck_are_broken_off() -> None:
    one, other = socket.socketpair()
    peer = await Peer.open(await streams_of(one), grace=HASTY, limits=Limits(unsent=1))
    with anyio.move_on_after(0.02):
        await peer.notify("long", "x" * 1_000_000)
    assert (await peer.close()).clean
    other.close()


@trio_only
async def test_asyncio_streams_say_where_they_work() -> None:
    class Stream:
        async def read(self, most: int) -> bytes:
            return b""

        def write(self, data: bytes) -> None:
            pass

        def close(self) -> None:
            pass

    stream: Any = Stream()
    with pytest.raises(RuntimeError, match="work in asyncio only"):
        await Peer.open(AsyncioStreams(stream, stream))


def test_asyncio_streams_the_wrong_way_round_are_refused() -> None:
    class Reader:
        def read(self) -> None: ...

    class Writer:
        def write(self) -> None: ...

    reader: Any = Reader()
    writer: Any = Writer()
    with pytest.raises(TypeError, match="takes a StreamReader first"):
        AsyncioStreams(writer, reader)


# anyio's


async def anyio_stream(connected: socket.socket) -> anyio.abc.SocketStream:
    connected.setblocking(False)
    return await anyio.abc.SocketStream.from_socket(connected)


async def test_an_anyio_stream() -> None:
    one, other = socket.socketpair()
    async with (
        Peer(AnyioStream(await anyio_stream(one)), {"echo": echo}),
        Peer(SocketTransport(other)) as them,
    ):
        assert await them.request("echo", "x" * 300_000) == "x" * 300_000


async def test_an_anyio_stream_ends_in_order_when_the_other_side_does() -> None:
    one, other = socket.socketpair()
    async with Peer(AnyioStream(await anyio_stream(one))) as peer:
        other.close()
        await peer.wait_closed()
        assert peer.error is None


async def test_that_the_other_side_has_gone_is_seen_without_reading() -> None:
    one, other = socket.socketpair()
    stream = await anyio_stream(one)
    channel = AnyioChannel(stream)
    assert not channel.hung_up()
    other.send(b"some words, and gone")
    assert not channel.hung_up()
    other.close()
    await until(channel.hung_up)
    assert await channel.receive() == b"some words, and gone"
    await stream.aclose()
    assert channel.hung_up()


async def test_an_anyio_stream_that_is_stuck_is_broken_off() -> None:
    one, other = socket.socketpair()
    peer = await Peer.open(AnyioStream(await anyio_stream(one)), grace=HASTY, limits=Limits(unsent=1))
    with anyio.move_on_after(0.02):
        await peer.notify("long", "x" * 3_000_000)
    assert (await peer.close()).clean
    other.close()


async def test_an_anyio_stream_that_was_never_opened_is_closed_too() -> None:
    one, other = socket.socketpair()
    stream = await anyio_stream(one)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await Peer.open(AnyioStream(stream))
    other.setblocking(False)
    await anyio.wait_readable(other)
    assert other.recv(1) == b""
    other.close()


async def test_a_stapled_stream_of_a_process_of_anyios() -> None:
    code = "import sys\nfor line in sys.stdin: sys.stdout.write(line.replace('method', 'result')); sys.stdout.flush()"
    async with await anyio.open_process([sys.executable, "-I", "-S", "-c", code], stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        async with Peer(AnyioStream(StapledByteStream(process.stdin, process.stdout))) as peer:
            assert await peer.request("mirror") == "mirror"


def test_what_is_no_stream_is_refused() -> None:
    given: Any = object()
    with pytest.raises(TypeError, match="AnyioStream takes a byte stream of anyio"):
        AnyioStream(given)


# Messages


class Gone(Exception):
    """What a web framework raises when the other side is gone."""


class Mailbox:
    """One end of something that sends whole messages."""

    def __init__(self) -> None:
        self.put, self._get = anyio.create_memory_object_stream[Any](100)
        self.sent: list[str] = []
        self.closed = 0

    async def receive(self) -> Any:
        message = await self._get.receive()
        if isinstance(message, Exception):
            raise message
        return message

    async def send(self, text: str) -> None:
        self.sent.append(text)

    async def close(self) -> None:
        self.closed += 1
        self.put.close()
        self._get.close()

    def transport(self) -> MessageTransport:
        return MessageTransport(self.receive, self.send, self.close, ended=(Gone,))


async def test_each_message_is_one_and_goes_out_as_one() -> None:
    box = Mailbox()
    async with Peer(box.transport(), {"echo": echo}) as peer:
        box.put.send_nowait('{"jsonrpc": "2.0", "id": 1,\n "method": "echo", "params": "text"}')
        box.put.send_nowait("")
        box.put.send_nowait(b'{"jsonrpc": "2.0", "id": 2, "method": "echo", "params": "bytes"}')
        await until(lambda: len(box.sent) == 2)
        assert not peer.closed
    assert box.sent == [
        '{"jsonrpc":"2.0","id":1,"result":"text"}',
        '{"jsonrpc":"2.0","id":2,"result":"bytes"}',
    ]
    assert box.closed == 1


async def test_a_message_that_is_too_long_is_answered_and_the_next_is_read() -> None:
    box = Mailbox()
    async with Peer(box.transport(), {"echo": echo}, limits=Limits(frame=100)):
        box.put.send_nowait('"' + "x" * 100 + '"')
        box.put.send_nowait('{"jsonrpc": "2.0", "id": 2, "method": "echo"}')
        await until(lambda: len(box.sent) == 2)
    assert "longer than 100 bytes" in box.sent[0]
    assert box.sent[1] == '{"jsonrpc":"2.0","id":2,"result":null}'


@pytest.mark.parametrize("end", [None, Gone()])
async def test_messages_that_end_in_order_are_no_error(end: Any) -> None:
    box = Mailbox()
    async with Peer(box.transport()) as peer:
        box.put.send_nowait(end)
        await peer.wait_closed()
        assert peer.error is None
    assert box.closed == 1


async def test_an_error_of_who_receives_breaks_the_connection() -> None:
    box = Mailbox()
    async with Peer(box.transport()) as peer, anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(ConnectionEnded, match="the wire is cut"):
                await peer.request("anything")

        group.start_soon(ask)
        await until(lambda: box.sent)
        box.put.send_nowait(OSError("the wire is cut"))
        await peer.wait_closed()
        assert isinstance(peer.error, OSError)


async def test_a_close_that_hangs_is_cut_off() -> None:
    box = Mailbox()
    cut = []

    async def hangs() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cut.append(True)

    peer = await Peer.open(MessageTransport(box.receive, box.send, hangs), grace=HASTY)
    assert (await peer.close()).clean
    assert cut
    await box.close()


def test_functions_are_asked_for() -> None:
    given: Any = None
    with pytest.raises(TypeError, match="send must be an async function"):
        MessageTransport(given or len, given, len)  # type: ignore[arg-type]


async def test_the_websocket_of_starlette() -> None:
    from starlette.websockets import WebSocket, WebSocketDisconnect

    box = Mailbox()
    told: list[Any] = []

    async def tell(message: Any) -> None:
        told.append(message)

    ws = WebSocket({"type": "websocket"}, receive=box.receive, send=tell)
    box.put.send_nowait({"type": "websocket.connect"})
    await ws.accept()
    transport = MessageTransport(ws.receive_text, ws.send_text, ws.close, ended=(WebSocketDisconnect,))
    async with Peer(transport, {"echo": echo}) as peer:
        box.put.send_nowait(
            {
                "type": "websocket.receive",
                "text": '{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": 1}',
            }
        )
        await until(lambda: len(told) == 2)
        box.put.send_nowait({"type": "websocket.disconnect", "code": 1000})
        await peer.wait_closed()
        assert peer.error is None
    assert told[1] == {"type": "websocket.send", "text": '{"jsonrpc":"2.0","id":1,"result":1}'}
    await box.close()
