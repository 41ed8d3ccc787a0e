"""WebSockets: what is said over them, how they end, and how a client connects."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import websockets.asyncio.client
import websockets.asyncio.server
import websockets.sync.server
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from quiesce._extras import MissingExtra
from quiesce.wire import ConnectionEnded, Limits, Peer, RequestCancelled
from quiesce.wire.servers.websocket_server import serve_websocket
from quiesce.wire.transports.streams import MessageTransport
from quiesce.wire.transports.websocket import connect_websocket
from tests.wire.certificates import make_certificate
from tests.wire.websockets import Raw, answer, asks, echo
from tests.world import asyncio_only

pytestmark = pytest.mark.real_time


# Both sides ours


async def test_both_sides_ask_and_are_answered() -> None:
    async def handle(transport: Any) -> None:
        async with Peer(transport, {"echo": echo}) as peer:
            assert await peer.request("echo", "and you?") == "and you?"
            await peer.wait_closed()

    async with (
        serve_websocket(handle, "127.0.0.1") as server,
        Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/"), {"echo": echo}) as peer,
    ):
        for value in ([1], "ünïcödé ☃", "x" * 300_000, None):
            assert await peer.request("echo", value) == value
        assert server.connections == 1


async def test_a_client_that_closes_has_ended_the_connection_in_order() -> None:
    peers: list[Peer] = []

    async def handle(transport: Any) -> None:
        async with Peer(transport, {"echo": echo}) as peer:
            peers.append(peer)
            await peer.wait_closed()

    async with serve_websocket(handle, "127.0.0.1") as server:
        async with Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/")) as peer:
            await peer.request("echo")
        with anyio.fail_after(10):
            await peers[0].wait_closed()
    assert peers[0].error is None
    assert peer.error is None


async def test_a_server_that_closes_has_ended_the_connection_in_order() -> None:
    server = await serve_websocket(answer, "127.0.0.1").open()
    async with Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/")) as peer:
        await peer.request("echo")
        await server.close()
        with anyio.fail_after(10):
            await peer.wait_closed()
        assert peer.error is None
        with pytest.raises(ConnectionEnded):
            await peer.request("echo")


async def test_all_answers_of_a_server_that_closes_come_before_its_close_frame() -> None:
    begun = []

    async def hang(params: object) -> None:
        begun.append(params)
        await anyio.sleep_forever()

    async def handle(transport: Any) -> None:
        async with Peer(transport, {"hang": hang}) as peer:
            await peer.wait_closed()

    outcomes = []

    async def ask(peer: Peer, number: int) -> None:
        with pytest.raises(RequestCancelled):
            await peer.request("hang", number)
        outcomes.append(number)

    server = await serve_websocket(handle, "127.0.0.1").open()
    way = connect_websocket(f"ws://127.0.0.1:{server.port}/")
    async with Peer(way) as peer, anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(ask, peer, number)
        with anyio.fail_after(10):
            while len(begun) < 5:
                await anyio.sleep(0.001)
        await server.close()
    assert sorted(outcomes) == [0, 1, 2, 3, 4]


# Frame by frame


async def test_fragments_make_one_message_and_a_ping_between_them_is_answered() -> None:
    async with serve_websocket(answer, "127.0.0.1") as server:
        raw = Raw(server.port)
        await raw.shake_hands()
        text = json.dumps(asks(1, "echo", "in pieces")).encode()
        raw.protocol.send_text(text[:10], fin=False)
        raw.protocol.send_continuation(b"", fin=False)
        raw.protocol.send_ping(b"there?")
        raw.protocol.send_continuation(text[10:30], fin=False)
        raw.protocol.send_continuation(text[30:], fin=True)
        for byte in raw.pending():  # and not one of them in one piece
            await raw.send(bytes([byte]))
        pong = await raw.frame()
        assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"there?")
        assert await raw.message() == {"jsonrpc": "2.0", "id": 1, "result": "in pieces"}
        raw.close()


async def test_binary_messages_are_understood_and_text_is_answered() -> None:
    async with serve_websocket(answer, "127.0.0.1") as server:
        raw = Raw(server.port)
        await raw.shake_hands()
        raw.protocol.send_binary(json.dumps(asks(1, "echo", 1)).encode())
        await raw.send(raw.pending())
        assert await raw.message() == {"jsonrpc": "2.0", "id": 1, "result": 1}
        raw.close()


async def test_a_message_that_came_together_with_the_handshake_is_not_forgotten() -> None:
    async with serve_websocket(answer, "127.0.0.1") as server:
        raw = Raw(server.port)
        early = Frame(Opcode.TEXT, json.dumps(asks(1, "echo", "early")).encode())
        await raw.shake_hands(also=early.serialize(mask=True))
        assert await raw.message() == {"jsonrpc": "2.0", "id": 1, "result": "early"}
        raw.close()


async def answer_in_little(transport: Any) -> None:
    async with Peer(transport, {"echo": echo}, limits=Limits(frame=1000)) as peer:
        await peer.wait_closed()


async def test_fragments_that_grow_too_long_are_answered_and_the_connection_lives_on() -> None:
    async with serve_websocket(answer_in_little, "127.0.0.1") as server:
        raw = Raw(server.port)
        await raw.shake_hands()
        raw.protocol.send_text(b"x" * 900, fin=False)
        for _ in range(20):
            raw.protocol.send_continuation(b"x" * 900, fin=False)
        raw.protocol.send_continuation(b"x", fin=True)
        await raw.send(raw.pending())
        refusal = await raw.message()
        assert refusal["error"]["message"] == "Invalid request: longer than 1000 bytes"
        await raw.say(asks(2, "echo", "still there?"))
        assert (await raw.message())["result"] == "still there?"
        raw.close()


async def test_one_frame_that_is_too_long_closes_with_1009_and_disturbs_nobody_else() -> None:
    async with (
        serve_websocket(answer_in_little, "127.0.0.1") as server,
        Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/")) as other,
    ):
        raw = Raw(server.port)
        await raw.shake_hands()
        raw.protocol.send_text(b"x" * 1001)
        await raw.send(raw.pending())
        assert (await raw.frame()).opcode is Opcode.CLOSE
        assert raw.protocol.close_rcvd is not None
        assert raw.protocol.close_rcvd.code == 1009
        await raw.end()
        raw.close()
        assert await other.request("echo", 1) == 1


async def test_who_breaks_the_rules_is_told_and_closed() -> None:
    peers: list[Peer] = []

    async def handle(transport: Any) -> None:
        async with Peer(transport) as peer:
            peers.append(peer)
            await peer.wait_closed()

    async with serve_websocket(handle, "127.0.0.1") as server:
        raw = Raw(server.port)
        await raw.shake_hands()
        await raw.send(b"\x81\x02hi")  # not masked
        assert (await raw.frame()).opcode is Opcode.CLOSE
        assert raw.protocol.close_rcvd is not None
        assert raw.protocol.close_rcvd.code == 1002
        await raw.end()
        raw.close()
        assert isinstance(peers[0].error, ConnectionEnded)
        assert "broke the rules of WebSocket" in str(peers[0].error)
        assert peers[0].error.code == 1002


@pytest.mark.parametrize("code", [1000, 1011])
async def test_a_close_frame_is_answered_with_one_and_what_it_says_is_told(code: int) -> None:
    peers: list[Peer] = []

    async def handle(transport: Any) -> None:
        async with Peer(transport) as peer:
            peers.append(peer)
            await peer.wait_closed()

    async with serve_websocket(handle, "127.0.0.1") as server:
        raw = Raw(server.port)
        await raw.shake_hands()
        raw.protocol.send_close(code, "because")
        await raw.send(raw.pending())
        assert (await raw.frame()).opcode is Opcode.CLOSE
        await raw.end()
        raw.close()
    if code == 1000:
        assert peers[0].error is None
    else:
        assert isinstance(peers[0].error, ConnectionEnded)
        assert "1011: because" in str(peers[0].error)
        assert peers[0].error.code == 1011


async def test_one_that_is_cut_off_has_not_ended_in_order() -> None:
    peers: list[Peer] = []

    async def handle(transport: Any) -> None:
        async with Peer(transport) as peer:
            peers.append(peer)
            await peer.wait_closed()

    async with serve_websocket(handle, "127.0.0.1") as server:
        raw = Raw(server.port)
        await raw.shake_hands()
        raw.close()
        with anyio.fail_after(10):
            while not peers or not peers[0].closed:
                await anyio.sleep(0.002)
    assert "without a close frame" in str(peers[0].error)


# With websockets at the other end


@asyncio_only
async def test_a_client_of_websockets_gets_answers_and_a_clean_end() -> None:
    server = await serve_websocket(answer, "127.0.0.1").open()
    async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{server.port}/") as client:
        await client.send(json.dumps(asks(1, "echo", [1])))
        assert json.loads(await client.recv()) == {"jsonrpc": "2.0", "id": 1, "result": [1]}
        await (await client.ping())
        await server.close()
        with pytest.raises(websockets.exceptions.ConnectionClosedOK):
            await client.recv()
        assert client.close_code == 1001


@asyncio_only
async def test_a_connection_of_websockets_is_a_transport_by_its_functions() -> None:
    async def handle(connection: websockets.asyncio.server.ServerConnection) -> None:
        transport = MessageTransport(
            connection.recv, connection.send, connection.close, ended=(ConnectionClosed,)
        )
        async with Peer(transport, {"echo": echo}) as peer:
            await peer.wait_closed()
            errors.append(peer.error)

    errors: list[Any] = []
    async with websockets.asyncio.server.serve(handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with Peer(connect_websocket(f"ws://127.0.0.1:{port}/")) as peer:
            assert await peer.request("echo", "x" * 100_000) == "x" * 100_000
    assert errors == [None]


# Connecting


async def test_the_request_has_the_headers_that_were_given_and_the_handler_sees_them() -> None:
    seen: list[Any] = []

    async def handle(transport: Any) -> None:
        seen.append((transport.path, transport.headers["Authorization"], transport.subprotocol))
        await answer(transport)

    async with serve_websocket(handle, "127.0.0.1", path=None, subprotocols=["acp"]) as server:
        way = connect_websocket(
            f"ws://127.0.0.1:{server.port}/agents/7?fast=1",
            headers={"Authorization": "Bearer key"},
            subprotocols=["acp"],
        )
        async with Peer(way) as peer:
            await peer.request("echo")
        assert way.subprotocol == "acp"
    assert seen == [("/agents/7?fast=1", "Bearer key", "acp")]


async def test_a_server_that_refuses_is_quoted() -> None:
    async with serve_websocket(answer, "127.0.0.1", path="/acp") as server:
        with pytest.raises(ConnectionError, match=r"cannot connect to ws://127.0.0.1:\d+/: .*404"):
            await Peer.open(connect_websocket(f"ws://127.0.0.1:{server.port}/"))


@contextmanager
def a_server_of_few_words(said: bytes, *, then_close: bool = False) -> Iterator[int]:
    """Takes one connection, reads a little, says this."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        connected, _ = listener.accept()
        held.append(connected)
        connected.recv(65536)
        connected.sendall(said)
        if then_close:
            connected.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(10)
        for each in (listener, *held):
            each.close()


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 101 Switch"])
async def test_what_is_no_websocket_server_is_an_error(said: bytes) -> None:
    with (
        a_server_of_few_words(said, then_close=True) as port,
        pytest.raises(ConnectionError, match=f"cannot connect to ws://127.0.0.1:{port}/"),
    ):
        await Peer.open(connect_websocket(f"ws://127.0.0.1:{port}/"))


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    with (
        a_server_of_few_words(b"HTTP/1.1 101 Switching Protocols\r\n") as port,
        pytest.raises(ConnectionError, match=r"it took longer than 0\.5 s"),
    ):
        await Peer.open(connect_websocket(f"ws://127.0.0.1:{port}/", within=0.5))


async def test_a_message_that_came_together_with_the_servers_answer_is_not_forgotten() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        connected, _ = listener.accept()
        held.append(connected)
        protocol = ServerProtocol()
        protocol.receive_data(connected.recv(65536))
        (request,) = protocol.events_received()
        assert isinstance(request, Request)
        protocol.send_response(protocol.accept(request))
        protocol.send_text(json.dumps({"jsonrpc": "2.0", "method": "hello", "params": 1}).encode())
        connected.sendall(b"".join(protocol.data_to_send()))

    thread = threading.Thread(target=serve)
    thread.start()
    got = anyio.Event()

    async def hello(params: Any) -> None:
        got.set()

    try:
        way = connect_websocket(f"ws://127.0.0.1:{listener.getsockname()[1]}/")
        async with Peer(way, notifications={"hello": hello}):
            with anyio.fail_after(10):
                await got.wait()
    finally:
        thread.join(10)
        for each in (listener, *held):
            each.close()


@pytest.mark.parametrize("url", ["http://example.com/", "ws:/", "example.com"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not the address of a WebSocket"):
        connect_websocket(url)


def test_without_websockets_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets", None)
    for make in (lambda: connect_websocket("ws://localhost/"), lambda: serve_websocket(answer)):
        with pytest.raises(MissingExtra, match=r"pip install 'quiesce\[websocket\]'"):
            make()


# With TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@contextmanager
def a_secure_server(certificate: Path) -> Iterator[int]:
    """websockets' own, in threads: it echoes parameters until its client has gone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def handle(connection: websockets.sync.server.ServerConnection) -> None:
        for message in connection:
            request = json.loads(message)
            connection.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": request["params"]}))

    with websockets.sync.server.serve(handle, "127.0.0.1", 0, ssl=context) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join(10)


async def test_a_websocket_with_tls(certificate: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    with a_secure_server(certificate) as port:
        async with Peer(connect_websocket(f"wss://127.0.0.1:{port}/", ssl=trusting)) as peer:
            assert await peer.request("echo", "x" * 100_000) == "x" * 100_000
        assert peer.report is not None
        assert peer.report.clean


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.CRITICAL, "websockets"),
        a_secure_server(certificate) as port,
        pytest.raises(ConnectionError, match="TLS failed"),
    ):
        await Peer.open(connect_websocket(f"wss://127.0.0.1:{port}/"))


def test_tls_is_for_wss() -> None:
    with pytest.raises(ValueError, match="wss://"):
        connect_websocket("ws://127.0.0.1/", ssl=ssl.create_default_context())
