"""A server of WebSockets, and everybody who only knocks: checkers, scanners, browsers, and a thousand who drop."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from quiesce import Grace
from quiesce.wire import Peer
from quiesce.wire.servers.websocket_server import WebSocketServer, serve_websocket
from quiesce.wire.transports.websocket import connect_websocket
from tests.leaks import open_descriptors
from tests.wire.bare import complaints
from tests.wire.websockets import Raw, answer, asks, http

pytestmark = pytest.mark.real_time

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


async def still_answers(server: WebSocketServer) -> None:
    async with Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/")) as peer:
        assert await peer.request("echo", 1) == 1


# Plain HTTP


async def test_the_health_path_says_how_many_connections_are_open() -> None:
    async with serve_websocket(answer, "127.0.0.1") as server:

        async def health() -> Any:
            head, _, body = (await http(server.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")).partition(
                b"\r\n\r\n"
            )
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"Content-Type: application/json" in head
            return json.loads(body)

        assert await health() == {"status": "ok", "connections": 0}
        async with Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/")) as peer:
            await peer.request("echo")
            assert await health() == {"status": "ok", "connections": 1}
        await until(lambda: server.connections == 0)
        assert await health() == {"status": "ok", "connections": 0}


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /health?verbose=1 HTTP/1.1", b"200"),
        (b"HEAD /health HTTP/1.1", b"200"),
        (b"POST / HTTP/1.1", b"405"),
        (b"GET / HTTP/1.1", b"426"),
        (b"GET /elsewhere HTTP/1.1", b"404"),
    ],
)
async def test_what_is_no_websocket_gets_a_plain_answer(request_line: bytes, status: bytes) -> None:
    async with serve_websocket(answer, "127.0.0.1") as server:
        answered = await http(server.port, request_line + b"\r\nHost: x\r\n\r\n")
        assert answered.split(b" ")[1] == status
        await still_answers(server)


async def test_the_paths_are_those_that_were_given() -> None:
    async with serve_websocket(answer, "127.0.0.1", path="/acp", health=None) as server:
        assert (await http(server.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(
            b"HTTP/1.1 404"
        )
        async with Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/acp")) as peer:
            assert await peer.request("echo", 1) == 1


async def test_a_web_page_from_elsewhere_is_refused() -> None:
    async with serve_websocket(answer, "127.0.0.1", origins=["https://ours.example", None]) as server:
        url = f"ws://127.0.0.1:{server.port}/"
        with pytest.raises(ConnectionError, match="403"):
            await Peer.open(connect_websocket(url, headers={"Origin": "https://theirs.example"}))
        async with Peer(connect_websocket(url, headers={"Origin": "https://ours.example"})) as peer:
            assert await peer.request("echo", 1) == 1
        await still_answers(server)


@pytest.mark.parametrize("path", ["acp", ""])
def test_a_path_begins_with_a_slash(path: str) -> None:
    with pytest.raises(ValueError, match="path must begin with /"):
        serve_websocket(answer, path=path)


# Who only knocks


STAGES: dict[str, bytes] = {
    "before the request line": b"",
    "in the request line": b"GET /he",
    "in the headers": UPGRADE[:60],
    "before the end of the headers": UPGRADE,
    "with garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    "with endless headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000,
    "with an endless line": b"GET /" + b"a" * 100_000,
    "after the upgrade": UPGRADE + b"\r\n",
    "after half a frame": UPGRADE + b"\r\n\x81\xfe",
}


@pytest.mark.parametrize("rudely", [False, True], ids=["closed", "reset"])
async def test_who_knocks_and_goes_at_any_stage_leaves_nothing_and_disturbs_nobody(
    rudely: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serve_websocket(answer, "127.0.0.1") as server,
        Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/")) as bystander,
    ):
        assert await bystander.request("echo", 0) == 0
        before = open_descriptors()
        for said in STAGES.values():
            raw = Raw(server.port)
            await raw.send(said)
            if rudely:
                raw.reset()
            else:
                raw.close()
            assert await bystander.request("echo", 1) == 1
        await until(lambda: server.connections == 1)
        await until(lambda: not open_descriptors() - before)
        await still_answers(server)
    assert server.report is not None
    assert server.report.clean
    assert not server.report.errors
    assert not complaints(caplog)


async def is_cut_off(raw: Raw) -> None:
    """Wait until the server has ended the connection, in whatever way."""
    with anyio.fail_after(10):
        try:
            while True:
                await anyio.wait_readable(raw.socket)
                if not raw.socket.recv(65536):
                    return
        except ConnectionError:
            return


async def test_who_never_comes_to_the_end_of_the_request_is_shown_the_door() -> None:
    async with serve_websocket(answer, "127.0.0.1", within=1) as server:
        raws = [Raw(server.port) for _ in range(3)]
        await raws[1].send(UPGRADE)
        async with anyio.create_task_group() as group:

            async def drip() -> None:
                try:
                    for byte in UPGRADE * 100:
                        await raws[2].send(bytes([byte]))
                        await anyio.sleep(0.01)
                except OSError:
                    pass

            group.start_soon(drip)
            for raw in raws:
                await is_cut_off(raw)
            group.cancel_scope.cancel()
        await until(lambda: not server._accepted)
        for raw in raws:
            raw.close()
        await still_answers(server)


async def test_who_does_not_read_the_answer_is_shown_the_door_too() -> None:
    async with serve_websocket(answer, "127.0.0.1", within=0.05) as server:
        raw = Raw(server.port)
        await raw.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: not server._accepted)
        raw.close()


async def test_a_server_that_closes_in_the_middle_of_a_handshake_leaves_nothing() -> None:
    server = await serve_websocket(answer, "127.0.0.1").open()
    raws = [Raw(server.port) for _ in range(2)]
    await raws[1].send(UPGRADE)
    await until(lambda: len(server._accepted) == 2)
    assert (await server.close()).clean
    for raw in raws:
        raw.close()


async def test_one_that_has_gone_does_not_hold_up_the_close() -> None:
    """What is sent to who has closed is never delivered: nobody waits for that."""
    server = await serve_websocket(answer, "127.0.0.1", grace=Grace(cancel=math.inf)).open()
    raw = Raw(server.port)
    await raw.shake_hands()
    await raw.say(asks(1, "echo"))
    await raw.message()
    raw.close()
    assert (await server.close()).clean


async def test_an_answer_to_who_has_said_goodbye_is_dropped_and_does_not_hold_up_the_close() -> None:
    at_work = anyio.Event()

    async def work(params: Any) -> None:
        at_work.set()
        await anyio.sleep_forever()

    async def handle(transport: Any) -> None:
        async with Peer(transport, {"work": work}) as peer:
            await peer.wait_closed()

    async with serve_websocket(handle, "127.0.0.1", grace=Grace(cancel=math.inf)) as server:
        raw = Raw(server.port)
        await raw.shake_hands()
        await raw.say(asks(1, "work"))
        await at_work.wait()
        raw.protocol.send_close(1000)
        await raw.send(raw.pending())
        await raw.end()
        raw.close()


@pytest.mark.time_limit(60)
@pytest.mark.slow
async def test_a_thousand_who_initialize_and_drop_leave_nothing_and_the_server_still_answers() -> None:
    async with serve_websocket(answer, "127.0.0.1", per_peer=2000) as server:
        await still_answers(server)
        await until(lambda: not server._accepted)
        before = open_descriptors()
        waiting = iter(range(1000))

        async def come_and_go() -> None:
            for number in waiting:
                raw = Raw(server.port)
                await raw.shake_hands()
                await raw.say(asks(number, "initialize", {"protocolVersion": 1}))
                if number % 4 == 0:  # did not even wait
                    raw.reset()
                    continue
                assert (await raw.message())["result"] == {"protocolVersion": 1}
                if number % 4 == 1:
                    raw.protocol.send_close(1000)
                    await raw.send(raw.pending())
                    await raw.end()
                if number % 4 == 2:
                    raw.reset()
                raw.close()

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(come_and_go)
        await until(lambda: not server._accepted)
        assert server.connections == 0
        assert not open_descriptors() - before
        await still_answers(server)
    assert server.report is not None
    assert server.report.clean
    assert not server.report.errors


def test_a_socket_that_is_reset_does_not_linger() -> None:
    """What the test above stands on: a reset is seen though the system still counts what was not delivered."""
    from quiesce.wire.links.graceful_close import _is_broken, _undelivered

    listener = socket.create_server(("127.0.0.1", 0))
    there = socket.create_connection(listener.getsockname())
    here, _ = listener.accept()
    listener.close()
    with there, here:
        assert not _undelivered(here)
        assert not _is_broken(here)
        there.close()
        here.send(b"too late")
        assert _is_broken(here)
