"""Demand 3: a closer inside a cancelled scope of anyio or trio drains, without spinning, and is cancelled after."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest
import trio

from quiesce import Grace, Reason, Scope, current_token
from tests.kernel.temperaments import (
    Stubborn,
    an_innocent_bystander,
    fails,
    forever,
    on_trio,
    sleeper,
    swallows,
    turns,
    virtual_asyncio,
    virtual_worlds,
)
from tests.world import asyncio_only, trio_only


async def a_scope(log: list[str], tidy: float) -> Scope:
    scope = await Scope.open("scope")
    scope.spawn(sleeper, log, "child", tidy)
    await turns()
    return scope


# anyio and trio: a cancelled scope around the closer --------------------------------------------------------


@virtual_worlds
async def test_a_closer_inside_a_cancelled_scope_drains_and_is_cancelled_after() -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    start = anyio.current_time()
    with anyio.CancelScope() as around:
        around.cancel()
        await scope.close()
        log.append("never")
    assert around.cancelled_caught
    assert anyio.current_time() - start == pytest.approx(1.0)
    assert log == ["child stops", "child is tidy"]
    await anyio.sleep(0)


@virtual_worlds
async def test_anyio_timeouts_nested_around_a_close() -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    with pytest.raises(TimeoutError), anyio.fail_after(0.4), anyio.move_on_after(0.2):
        await scope.close()
        log.append("never")
    assert log == ["child stops", "child is tidy"]
    await anyio.sleep(0)


@virtual_worlds
async def test_a_deadline_around_a_block_stops_it_and_passes() -> None:
    log: list[str] = []
    with anyio.move_on_after(0.2) as around:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 1.0)
            await anyio.sleep_forever()
    assert around.cancelled_caught
    assert log == ["child stops", "child is tidy"]
    assert scope.state == "settled"


@pytest.mark.real_time
async def test_draining_inside_a_cancelled_scope_does_not_spin() -> None:
    log: list[str] = []
    scope = await a_scope(log, 0.4)
    cpu = time.process_time()
    with anyio.CancelScope() as around:
        around.cancel()
        await scope.close()
    spent = time.process_time() - cpu
    assert log == ["child stops", "child is tidy"]
    assert spent < 0.15


@pytest.mark.real_time
async def test_the_end_of_a_block_inside_a_cancelled_scope_does_not_spin() -> None:
    log: list[str] = []
    cpu = time.process_time()
    with anyio.CancelScope() as around:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 0.4)
            await turns()
            around.cancel()
            await anyio.sleep_forever()
    spent = time.process_time() - cpu
    assert log == ["child stops", "child is tidy"]
    assert spent < 0.15


@asyncio_only
@pytest.mark.real_time
async def test_waiting_for_a_child_that_swallows_does_not_spin() -> None:
    log: list[str] = []
    scope = await Scope.open()
    scope.spawn(swallows, 0.4, log)
    await turns()
    cpu = time.process_time()
    await scope.close()
    assert time.process_time() - cpu < 0.15
    assert log == ["swallowed"]


@asyncio_only
async def test_a_native_cancel_and_an_anyio_cancel_at_once() -> None:
    log: list[str] = []
    scope = await a_scope(log, 0.05)
    around = anyio.CancelScope()

    async def closes() -> None:
        with around:
            await scope.close()
            log.append("never")
        log.append("anyio took it for its own")

    closer = asyncio.create_task(closes())
    await asyncio.sleep(0.01)
    around.cancel()
    closer.cancel()
    await asyncio.wait([closer])
    assert log == ["child stops", "child is tidy"]
    assert closer.cancelled()


@virtual_asyncio
@pytest.mark.parametrize(("native", "anyios"), [(0.1, 0.2), (0.2, 0.1), (0.1, None), (None, 0.1)])
async def test_native_and_anyio_cancels_one_after_the_other_each_reach_whom_they_belong_to(
    native: float | None, anyios: float | None
) -> None:
    log: list[str] = []
    scope = await a_scope(log, 1.0)
    around = anyio.CancelScope()

    async def closes() -> None:
        with around:
            await scope.close()
            log.append("never")
        log.append("goes on")

    closer = asyncio.create_task(closes())
    loop = asyncio.get_running_loop()
    if native is not None:
        loop.call_later(native, closer.cancel)
    if anyios is not None:
        loop.call_later(anyios, around.cancel)
    await asyncio.wait([closer])
    assert log[:2] == ["child stops", "child is tidy"]
    assert log[2:] == (["goes on"] if native is None else [])
    assert closer.cancelled() == (native is not None)


@virtual_asyncio
@pytest.mark.parametrize("ours", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("theirs", [0.0, 0.2])
async def test_the_cancel_of_an_anyio_scope_around_a_block_that_fails_reaches_that_scope(
    ours: float, theirs: float
) -> None:
    """anyio knows its own cancellations by their text: ours must not be raised in their place."""
    log: list[str] = []
    with anyio.CancelScope() as around:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "sibling", 1.0)
            await turns()
            asyncio.get_running_loop().call_later(theirs, around.cancel)
            scope.spawn(fails, ValueError("child"), ours)
            await forever()
    assert around.cancelled_caught
    assert log == ["sibling stops", "sibling is tidy"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@trio_only
async def test_on_trio_a_deadline_is_a_timeout_in_the_reason() -> None:
    async with an_innocent_bystander():
        with trio.move_on_after(0.2):
            async with Scope() as scope:
                scope.spawn(sleeper)
                await trio.sleep_forever()
    assert scope.reason is not None
    assert scope.reason.kind == "timeout"


async def test_the_reason_of_a_cancelled_block_reaches_its_children() -> None:
    seen: list[Reason | None] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(current_token().reason)

    with anyio.CancelScope() as around:
        async with Scope() as scope:
            scope.spawn(child)
            await turns()
            around.cancel()
            await anyio.sleep_forever()
    assert seen == [scope.reason]
    assert scope.reason is not None
    assert scope.reason.kind == "cancelled"


@virtual_worlds
async def test_a_closer_cancelled_while_the_second_rung_is_due_still_escalates() -> None:
    stubborn = Stubborn()
    scope = await Scope.open(grace=Grace(cancel=0.5, terminate=0.5, kill=0))
    scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    with anyio.move_on_after(0.25) as around:
        await scope.close()
    assert around.cancelled_caught
    assert anyio.current_time() - start == pytest.approx(1.0)
    assert len(stubborn.cancels) == (0 if on_trio() else 2)
    stubborn.let_go()
    assert (await scope.close()).clean
