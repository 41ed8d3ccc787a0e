"""Nothing is kept of what is over: not of calls, ids, lanes, handlers or connections."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import anyio
import pytest

from quiesce.wire import Notification, Peer, RpcError, memory_pair
from tests.audit_level import FULL
from tests.wire.bare import echo, two_peers

pytestmark = pytest.mark.worlds("asyncio", "trio")

FIFTH = 40_000  # rounds of five messages


async def talk(us: Peer, them: Peer, rounds: int) -> None:
    """Five messages a round: a question and an answer each way and a note; and now and then a cancel and an error."""
    for number in range(rounds):
        assert await us.request("echo", [number]) == [number]
        assert await them.request("back", number) == number
        await us.notify("note", {"lane": f"lane {number % 7}", "number": number})
        if number % 50 == 0:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await us.request("echo", number)
            with pytest.raises(RpcError):
                await us.request("fail", number)
    await us.request("echo")  # whatever was sent before has come
    await them.request("echo")


def peers(over_sockets: bool = False) -> Any:
    async def note(params: Any) -> None:
        await anyio.sleep(0)

    async def back(params: Any) -> Any:
        return params

    async def fail(params: Any) -> None:
        raise RpcError(1, "no", {"number": params})

    return two_peers(
        {"back": back},
        {"fail": fail},
        their_options={"notifications": {"note": Notification(note, lane=lambda params: params["lane"])}},
        over_sockets=over_sockets,
    )


async def until_idle(*some: Peer) -> None:
    while any(
        it.statistics().notifications_waiting
        or it.statistics().requests_at_work
        or it.statistics().bytes_unsent
        or it._connection.lanes.busy
        for it in some
    ):
        await anyio.sleep(0)


def assert_nothing_is_kept(peer: Peer) -> None:
    connection = peer._connection
    assert len(connection.calls) == 0
    assert not connection.calls._cancelled
    assert not connection.requests._open
    assert not connection.requests.queue
    assert connection.requests._scope is not None
    assert not connection.requests._scope.children
    assert not connection.lanes.busy
    assert (connection.backlog.notifications, connection.backlog.requests, connection.backlog.bytes) == (
        0,
        0,
        0,
    )
    assert (connection.backlog.nested, connection.requests.lent) == (0, 0)
    assert connection.sender.link is not None
    assert connection.sender.link.pending == 0


async def test_nothing_is_kept_of_what_is_over() -> None:
    async with peers() as (us, them):
        await talk(us, them, 100)
        await until_idle(us, them)
        gc.collect()
        before = len(gc.get_objects())
        await talk(us, them, 200)
        await until_idle(us, them)
        gc.collect()
        assert len(gc.get_objects()) - before < 200  # less than one for each round
        for peer in (us, them):
            assert_nothing_is_kept(peer)


async def test_connections_that_are_over_are_not_kept() -> None:
    async def one_life() -> None:
        async with two_peers() as (us, _):
            assert await us.request("echo", 1) == 1

    for _ in range(5):
        await one_life()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        await one_life()
    gc.collect()
    assert len(gc.get_objects()) - before < 50


@pytest.mark.slow
@pytest.mark.audit
@pytest.mark.real_time
@pytest.mark.time_limit(300)
async def test_memory_is_flat_over_two_hundred_thousand_messages() -> None:
    rounds = FIFTH if FULL else FIFTH // 100
    async with peers(over_sockets=True) as (us, them):
        await talk(us, them, 500)
        await until_idle(us, them)
        gc.collect()
        tracemalloc.start()
        try:
            kept, _ = tracemalloc.get_traced_memory()
            await talk(us, them, rounds)
            await until_idle(us, them)
            gc.collect()
            now, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert now - kept < 100_000
        for peer in (us, them):
            assert_nothing_is_kept(peer)


async def test_the_results_of_handlers_are_not_kept() -> None:
    class Result(dict[str, int]):
        alive = 0

        def __init__(self) -> None:
            super().__init__(a=1)
            Result.alive += 1

        def __del__(self) -> None:
            Result.alive -= 1

    async def make(params: Any) -> Any:
        return Result()

    async with two_peers(theirs={"make": make, "echo": echo}) as (us, _):
        for _ in range(20):
            assert await us.request("make") == {"a": 1}
        await anyio.sleep(0)
        gc.collect()
        assert Result.alive == 0


async def test_whoever_waits_for_an_answer_holds_the_peer() -> None:
    one, other = memory_pair()
    async with Peer(one, {"echo": echo}):
        with pytest.warns(ResourceWarning, match="dropped without close"):  # then: nobody holds it any more
            assert await (await Peer.open(other)).request("echo", 1) == 1
