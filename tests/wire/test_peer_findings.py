"""What a reviewer found, each as it must not be."""

from __future__ import annotations

import json
import logging
import os
import socket
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from quiesce import Reason, Scope, ScopeClosed
from quiesce.wire import ConnectionEnded, Limits, Peer, Request, RpcError, SocketTransport, memory_pair
from quiesce.wire.base.errors import REQUEST_CANCELLED

who: ContextVar[str | None] = ContextVar("who", default=None)


async def echo(params: Any) -> Any:
    return params


async def forever(params: Any) -> None:
    await anyio.sleep_forever()


async def gather(peer: Peer, count: int, answers: list[Any]) -> None:
    async def ask(number: int) -> None:
        answers.append(await peer.request("echo", number))

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(ask, number)


async def test_a_long_queue_of_quick_requests_is_answered_to_the_last() -> None:
    one, other = memory_pair()
    answers: list[int] = []
    async with (
        Peer(one, {"echo": echo}, limits=Limits(concurrent=1)),
        Peer(other) as peer,
    ):
        await gather(peer, 900, answers)
    assert sorted(answers) == list(range(900))


async def test_what_the_other_side_told_before_it_went_is_handled_and_then_its_answer_delivered() -> None:
    one, other = memory_pair()
    handled: list[int] = []
    worked = anyio.Event()

    async def work(params: Any) -> str:
        for number in range(50):
            await server.notify("progress", number)
        worked.set()
        return "done"

    async def progress(number: int) -> None:
        await anyio.sleep(0.001)
        handled.append(number)

    server = Peer(one, {"work": work})
    client = Peer(other, notifications={"progress": progress})

    async def ask() -> None:
        assert await client.request("work") == "done"
        assert handled == list(range(50))

    async with server, client, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await worked.wait()
        await server.close()
    assert handled == list(range(50))


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "asyncio-eager", "uvloop")
async def test_a_request_after_a_pause_does_not_run_in_the_context_of_another() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    async def sign_in(name: str) -> str | None:
        who.set(name)
        await anyio.sleep(0.001)
        return name

    async def whoami(params: Any) -> str | None:
        return who.get()

    async def lines(count: int) -> list[Any]:
        data = b""
        while data.count(b"\n") < count:
            await anyio.wait_readable(theirs)
            data += theirs.recv(65536)
        return [json.loads(line) for line in data.splitlines()]

    def line(number: int, method: str, params: Any) -> bytes:
        return (
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
        )

    limits = Limits(concurrent=1, waiting=1)
    with theirs:
        async with Peer(SocketTransport(ours), {"sign_in": sign_in, "whoami": whoami}, limits=limits):
            theirs.send(b"".join(line(number, "sign_in", f"alice{number}") for number in range(4)))
            await lines(4)
            theirs.send(line(9, "whoami", None))
            assert (await lines(1))[0]["result"] is None


async def test_what_is_sent_before_the_connection_is_open_is_bounded() -> None:
    one, other = memory_pair()
    client = Peer(one, limits=Limits(unsent=1000))
    client.start()
    seen: list[int] = []

    async def take(params: str) -> None:
        seen.append(len(params))

    async def tell() -> None:
        for _ in range(10):
            await client.notify("take", "x" * 500)

    async with Peer(other, notifications={"take": take}) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(tell)
        with anyio.fail_after(5):
            while len(seen) < 10:
                await anyio.sleep(0.01)
        assert server.statistics().notifications_waiting == 0
    await client.close()


async def test_a_result_for_a_cancelled_request_that_cannot_be_said_costs_nobody_his_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, other = memory_pair()
    unsayable = Request(forever, when_cancelled=object())
    server = await Peer.open(one, {"forever": unsayable}, limits=Limits(concurrent=1))
    client = await Peer.open(other, {"forever": forever})
    outcomes: list[str] = []

    async def ask(peer: Peer) -> None:
        try:
            await peer.request("forever")
        except RpcError as error:
            outcomes.append(str(error.code))
        except ConnectionEnded:
            outcomes.append("ended")

    with caplog.at_level(logging.CRITICAL, "quiesce"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client)
            tasks.start_soon(ask, client)
            tasks.start_soon(ask, server)
            while not (
                server.statistics().requests_at_work == server.statistics().requests_waiting == 1
                and client.statistics().requests_at_work == 1
            ):
                await anyio.sleep(0.001)
            await server.close()
            await client.close()
    assert sorted(outcomes) == [str(REQUEST_CANCELLED), str(REQUEST_CANCELLED), "ended"]


async def test_a_hook_that_fails_costs_nobody_behind_it_his_answer(caplog: pytest.LogCaptureFixture) -> None:
    one, other = memory_pair()

    def stopping(params: Any, reason: Reason) -> None:
        raise RuntimeError("a mistake")

    async with Peer(one, {"forever": Request(forever, stopping=stopping), "echo": echo}), Peer(other) as peer:
        with caplog.at_level(logging.CRITICAL, "quiesce"):
            with anyio.move_on_after(0.01):
                await peer.request("forever")
            assert await peer.request("echo", 1) == 1


@pytest.mark.real_time
async def test_a_peer_that_its_scope_refuses_lets_go_of_its_socket() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        scope = await Scope.open("closed")
        await scope.close()
        peer = Peer(SocketTransport(ours), scope=scope)
        with pytest.raises(ScopeClosed):
            peer.start()
        assert ours.fileno() == -1


async def test_whoever_waits_for_an_answer_holds_the_peer() -> None:
    one, other = memory_pair()
    async with Peer(one, {"echo": echo}):
        with pytest.warns(ResourceWarning, match="dropped without close"):  # then: nobody holds it any more
            assert await (await Peer.open(other)).request("echo", 1) == 1


@pytest.mark.real_time
async def test_a_call_that_waits_for_room_fails_at_once_when_the_connection_closes() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        peer = await Peer.open(SocketTransport(ours))
        closed: list[bool] = []

        async def ask() -> None:
            with pytest.raises(ConnectionEnded):
                await peer.request("x", "y" * 5_000_000)
            closed.append(peer.report is not None)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not peer.statistics().bytes_unsent:
                await anyio.sleep(0.001)
            await peer.close(deadline=0.5)  # all of which it takes: nobody reads
        assert closed == [False]


@pytest.mark.real_time
async def test_a_peer_that_asks_and_cancels_without_ever_reading_is_disconnected() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    limits = Limits(unsent=1000, backlog=20_000)
    with theirs:
        async with Peer(
            SocketTransport(ours), {"forever": Request(forever, when_cancelled="x" * 500)}, limits=limits
        ) as peer:
            os.set_blocking(theirs.fileno(), False)
            number = 0
            with anyio.fail_after(15):
                while not peer.closed:
                    number += 1
                    ask = {"jsonrpc": "2.0", "id": number, "method": "forever"}
                    cancel = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": number}}
                    try:
                        theirs.send(b"".join(json.dumps(part).encode() + b"\n" for part in (ask, cancel)))
                    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                        pass
                    await anyio.sleep(0)
            await peer.wait_closed()
            assert "does not read" in str(peer.error)


def test_the_code_of_an_error_is_a_number() -> None:
    with pytest.raises(TypeError, match="whole number"):
        RpcError("-32000", "no")  # type: ignore[arg-type]
