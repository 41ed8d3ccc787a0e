"""The end of a connection over real sockets, where the system has its own ways to say so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import trio

from quiesce import Grace
from quiesce.wire import ConnectionEnded, Limits, Peer, SocketTransport
from tests.kernel.temperaments import cancellation
from tests.wire.bare import Worker, answers, asks, echo, two_peers
from tests.world import World

pytestmark = pytest.mark.real_time


class BareSocket:
    """The other end of a peer's socket, read and written by hand."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.end = end
        self._rest = b""

    async def send(self, *messages: Any) -> None:
        data = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        while data:
            try:
                data = data[self.end.send(data) :]
            except BlockingIOError:
                await anyio.sleep(0.001)

    async def line(self) -> Any:
        """The next message; None at the end."""
        while b"\n" not in self._rest:
            try:
                data = self.end.recv(65536)
            except BlockingIOError:
                await anyio.sleep(0.001)
                continue
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def rest(self) -> list[Any]:
        found = []
        while (message := await self.line()) is not None:
            found.append(message)
        return found

    def reset(self) -> None:
        """End the connection rudely (TCP only)."""
        self.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.end.close()


@contextlib.asynccontextmanager
async def bare_socket_and_peer(
    handlers: dict[str, Any] | None = None, *, tcp: bool = False, **options: Any
) -> AsyncIterator[tuple[BareSocket, Peer]]:
    one, other = tcp_pair() if tcp else socket.socketpair()
    with other:
        async with Peer(SocketTransport(one), {"echo": echo, **(handlers or {})}, **options) as peer:
            yield BareSocket(other), peer
        assert one.fileno() == -1  # it belonged to the peer


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        return one, other


async def test_a_close_sends_the_answers_of_handlers_and_then_the_end() -> None:
    worker = Worker(tidy=0.01)
    async with bare_socket_and_peer({"work": worker}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        assert (await peer.close()).clean
        assert [(it["id"], it["error"]["code"]) for it in await bare.rest()] == [(1, -32800)]


async def test_a_handler_may_close_its_peer_and_still_answers() -> None:
    async def leave(params: Any) -> str:
        await peer.close()
        return "bye"

    async with bare_socket_and_peer({"leave": leave}) as (bare, peer):
        await bare.send(asks(1, "leave"))
        assert await bare.rest() == [answers(1, "bye")]
        assert (await peer.wait_closed()).clean


async def test_of_a_socket_that_is_closed_halfway_the_answers_are_still_read() -> None:
    begun = anyio.Event()

    async def work(params: Any) -> str:
        try:
            begun.set()
            await anyio.sleep_forever()
        except cancellation():
            return "partial " + "x" * 300_000
        return ""

    async with bare_socket_and_peer({"work": work}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await begun.wait()
        bare.end.shutdown(socket.SHUT_WR)
        (last,) = await bare.rest()
        assert last["result"].startswith("partial ")
        assert len(last["result"]) == 300_008
        assert (await peer.wait_closed()).clean
        assert peer.error is None


async def test_a_close_while_nobody_reads_returns_in_time() -> None:
    freed: list[bool] = []
    async with (
        bare_socket_and_peer(limits=Limits(unsent=10_000), grace=Grace(cancel=1, terminate=30, kill=30)) as (
            _,
            peer,
        ),
        anyio.create_task_group() as group,
    ):

        async def tell_on() -> None:
            with pytest.raises(ConnectionEnded):
                while True:
                    await peer.notify("note", "x" * 10_000)
            freed.append(True)

        group.start_soon(tell_on)
        while peer.statistics().bytes_unsent <= 10_000:
            await anyio.sleep(0)
        assert (await peer.close(deadline=6)).clean  # a tenth of a second before it is broken off
    assert freed == [True]


@pytest.mark.parametrize("tcp", [False, True])
async def test_a_broken_pipe_ends_it_and_fails_who_waits(tcp: bool) -> None:
    worker = Worker()
    async with bare_socket_and_peer({"work": worker}, tcp=tcp) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with pytest.raises(ConnectionEnded):
                    await peer.request("x")

            group.start_soon(ask)
            assert (await bare.line())["method"] == "x"
            bare.end.close()
            with pytest.raises(ConnectionEnded):
                while True:
                    await peer.notify("note", "x" * 1000)
                    await anyio.sleep(0)
        assert (await peer.wait_closed()).clean
        assert worker.log == ["begins", "cancelled"]


async def test_a_reset_connection_ends_it_with_that_error() -> None:
    worker = Worker()
    async with bare_socket_and_peer({"work": worker}, tcp=True) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        bare.reset()
        report = await peer.wait_closed()
        assert report.clean
        assert report.reason is not None
        assert report.reason.kind == "disconnect"
        assert isinstance(peer.error, ConnectionError)
        assert worker.log == ["begins", "cancelled"]
        with pytest.raises(ConnectionEnded, match="the other side has closed it: ConnectionResetError"):
            await peer.request("x")


async def test_an_answer_that_came_before_the_pipe_broke_is_not_lost() -> None:
    got: list[Any] = []
    async with bare_socket_and_peer() as (bare, peer), anyio.create_task_group() as group:

        async def ask() -> None:
            got.append(await peer.request("x"))

        group.start_soon(ask)
        number = (await bare.line())["id"]
        await bare.send(answers(number, "the last word"))
        bare.end.close()
        with contextlib.suppress(ConnectionEnded):
            await peer.notify("note")
    assert got == ["the last word"]


@pytest.mark.parametrize("how", ["closed", "shut down"])
async def test_a_peer_whose_other_side_has_gone_before_opens_and_has_ended(how: str) -> None:
    one, other = socket.socketpair()
    with other:
        if how == "closed":
            other.close()
        else:
            other.shutdown(socket.SHUT_RDWR)
        peer = await Peer.open(SocketTransport(one))
        assert (await peer.wait_closed()).clean
        with pytest.raises(ConnectionEnded):
            await peer.request("x")
        assert one.fileno() == -1


async def test_a_socket_of_a_peer_that_is_closed_at_once_is_closed() -> None:
    one, other = socket.socketpair()
    with other:
        peer = Peer(SocketTransport(one))
        peer.start()
        assert (await peer.close()).clean
        assert one.fileno() == -1


async def test_a_closed_socket_cannot_be_opened() -> None:
    one, other = socket.socketpair()
    other.close()
    transport = SocketTransport(one)
    one.close()
    with pytest.raises(ValueError, match="the socket of 'socket' is closed"):
        await Peer.open(transport)


def test_the_end_of_the_program_sends_the_last_answers(world: World) -> None:
    one, other = socket.socketpair()
    log: list[str] = []

    async def main() -> None:
        worker = Worker()
        worker.log = log
        peers.append(await Peer.open(SocketTransport(one), {"work": worker}))
        await BareSocket(other).send(asks(1, "work"))
        await worker.begun.wait()

    peers: list[Peer] = []
    with other:
        if world.backend == "asyncio":
            asyncio.run(main())
        else:
            trio.run(main)
        other.setblocking(True)
        assert json.loads(other.recv(10_000))["error"]["code"] == -32800
        assert other.recv(10) == b""
    assert log == ["begins", "cancelled"]


async def test_many_connections_open_and_end_without_a_trace() -> None:
    for _ in range(30):
        async with two_peers(over_sockets=True) as (us, them):
            assert await us.request("echo", 1) == 1
            assert await them.request("echo", 2) == 2
