"""Demand 3: the closer is cancelled while it drains. Clean-up is not cut, the cancel comes out after it."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from quiesce import Scope
from tests.kernel.temperaments import (
    Stubborn,
    sleeper,
    turns,
    virtual_asyncio,
)
from tests.world import asyncio_only


async def a_scope(log: list[str], tidy: float) -> Scope:
    scope = await Scope.open("scope")
    scope.spawn(sleeper, log, "child", tidy)
    await turns()
    return scope


# asyncio: once, twice, three times --------------------------------------------------------------------------


@virtual_asyncio
@pytest.mark.parametrize("moments", [[0.0], [0.5], [0.1, 0.2], [0.0, 0.0, 0.0], [0.1, 0.5, 0.9], [0.999]])
async def test_a_closer_cancelled_while_draining_drains_and_is_cancelled_after(moments: list[float]) -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    start = anyio.current_time()
    closer = asyncio.create_task(scope.close())
    await asyncio.sleep(0)
    for moment in moments:
        await asyncio.sleep(start + moment - anyio.current_time())
        closer.cancel("mine")
    await asyncio.wait([closer])
    assert anyio.current_time() - start == pytest.approx(1.0)
    assert closer.cancelled()
    with pytest.raises(asyncio.CancelledError, match="mine"):
        closer.result()
    assert log == ["child stops", "child is tidy"]
    assert scope.state == "settled"
    assert scope.report is not None
    assert scope.report.clean
    assert closer.cancelling() == len(moments)  # nobody took them back


@asyncio_only
async def test_a_closer_cancelled_before_its_first_step_never_closed() -> None:
    log: list[str] = []
    scope = await a_scope(log, 0.01)
    closer = asyncio.Task(scope.close())
    closer.cancel()
    await asyncio.wait([closer])
    assert closer.cancelled()
    assert scope.state == "open"
    await scope.close()
    assert log == ["child stops", "child is tidy"]


@asyncio_only
async def test_a_closer_with_a_cancel_pending_when_it_calls_close_drains_first() -> None:
    log: list[str] = []
    scope = await a_scope(log, 0.02)
    after = []

    async def closes() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await scope.close()
        except asyncio.CancelledError:
            after.append(scope.state)
            raise

    closer = asyncio.create_task(closes())
    await asyncio.wait([closer])
    assert closer.cancelled()
    assert log == ["child stops", "child is tidy"]
    assert after == ["settled"]


@virtual_asyncio
async def test_of_several_closers_only_the_cancelled_one_is_cancelled() -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    closers = [asyncio.create_task(scope.close()) for _ in range(3)]
    await asyncio.sleep(0.1)
    closers[1].cancel()
    await asyncio.wait(closers)
    assert [closer.cancelled() for closer in closers] == [False, True, False]
    assert closers[0].result().clean
    assert [closer.cancelling() for closer in closers] == [0, 1, 0]
    assert log == ["child stops", "child is tidy"]


@virtual_asyncio
async def test_the_cancelled_closer_of_a_stubborn_child_is_held_no_longer_than_the_deadline() -> None:
    stubborn = Stubborn()
    scope = await Scope.open()
    scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    closer = asyncio.create_task(scope.close(deadline=0.5))
    await asyncio.sleep(0.1)
    closer.cancel()
    await asyncio.wait([closer])
    assert closer.cancelled()
    assert anyio.current_time() - start == pytest.approx(0.5)
    assert scope.report is not None
    assert len(scope.report.left) == 1
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_asyncio
async def test_the_end_of_a_block_holds_a_cancel_until_the_children_are_tidy() -> None:
    log: list[str] = []

    async def hosts() -> None:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 1.0)

    host = asyncio.create_task(hosts())
    await asyncio.sleep(0.1)
    host.cancel("once")
    await asyncio.sleep(0.1)
    assert log == ["child stops"]
    host.cancel("twice")
    await asyncio.sleep(0.1)
    host.cancel("thrice")
    await asyncio.wait([host])
    assert host.cancelled()
    assert log == ["child stops", "child is tidy"]
    with pytest.raises(asyncio.CancelledError, match="once"):
        host.result()


# asyncio: timeouts ------------------------------------------------------------------------------------------


@virtual_asyncio
async def test_a_timeout_around_a_close_raises_timeouterror_after_the_drain() -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    start = anyio.current_time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await scope.close()
    assert anyio.current_time() - start == pytest.approx(1.0)
    assert log == ["child stops", "child is tidy"]
    assert cancelling() == 0
    await asyncio.sleep(0)  # no cancel is left behind


@virtual_asyncio
async def test_a_timeout_around_a_block_raises_timeouterror_after_the_drain() -> None:
    log: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            async with Scope() as scope:
                scope.spawn(sleeper, log, "child", 1.0)
                await asyncio.sleep(100)
    assert log == ["child stops", "child is tidy"]
    assert cancelling() == 0
    await asyncio.sleep(0)


@virtual_asyncio
@pytest.mark.parametrize(("inner", "outer"), [(0.2, 0.4), (0.4, 0.2), (0.3, 0.3)])
async def test_of_nested_timeouts_around_a_close_that_both_fire_the_outer_one_raises(
    inner: float, outer: float
) -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    raised = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(outer) as around:
            try:
                async with asyncio.timeout(inner) as within:
                    await scope.close()
            except BaseException as error:
                raised.append(type(error))
                raise
    assert log == ["child stops", "child is tidy"]
    assert around.expired()
    assert within.expired()
    # both want the one cancellation: asyncio gives it to the outer one
    assert raised == [asyncio.CancelledError]
    assert cancelling() == 0
    await asyncio.sleep(0)


@virtual_asyncio
async def test_only_the_inner_timeout_fires_and_the_task_goes_on() -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await scope.close()
        await asyncio.sleep(0.1)
        log.append("goes on")
    assert log == ["child stops", "child is tidy", "goes on"]
    assert cancelling() == 0


@virtual_asyncio
async def test_wait_for_around_a_close_raises_timeouterror_after_the_drain() -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(scope.close(), 0.2)
    assert log == ["child stops", "child is tidy"]
    assert cancelling() == 0


@virtual_asyncio
async def test_a_timeout_that_fires_after_the_drain_takes_nothing_away() -> None:
    log: list[str] = []
    scope = await a_scope(log, 0.1)
    async with asyncio.timeout(1):
        report = await scope.close()
        await asyncio.sleep(0.5)
    assert report.clean


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@virtual_asyncio
async def test_a_task_group_around_a_closer_sees_its_own_cancel_only() -> None:
    """The group cancels its tasks when one fails; the closer among them drains and is then cancelled."""
    log: list[str] = []
    scope = await a_scope(log, 1.0)

    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise ValueError("sibling")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            closer = group.create_task(scope.close())
            group.create_task(fails())
    assert closer.cancelled()
    assert log == ["child stops", "child is tidy"]
    assert [str(error) for error in caught.value.exceptions] == ["sibling"]
    assert closer.cancelling() == 1
