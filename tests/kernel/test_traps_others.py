"""The traps of anyio, of generators and of threads, each with the proof that it does not snap here.

The numbers are those of the list of async facts. 19, 25, 28, 29 and 30 are about threads, streams, processes
and other people's tasks, and are tested beside those.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import AsyncIterator
from contextvars import ContextVar

import anyio
import pytest

from quiesce import CancelToken, Reason, Scope, current_scope
from tests.kernel.temperaments import (
    forever,
    sleeper,
    turns,
    virtual_asyncio,
)
from tests.world import World, asyncio_only

real_time = pytest.mark.real_time


# anyio ------------------------------------------------------------------------------------------------------


async def test_trap_15_affinity() -> None:
    """Opened in one task and closed in another; the opener lives on, undisturbed."""
    made: list[Scope] = []
    awaits = 0
    over = anyio.Event()

    async def opener() -> None:
        nonlocal awaits
        made.append(await Scope.open())
        made[0].spawn(sleeper)
        while not over.is_set():
            await anyio.sleep(0.001)
            awaits += 1

    async with anyio.create_task_group() as group:
        group.start_soon(opener)
        await anyio.sleep(0.01)
        assert (await made[0].close()).clean
        before = awaits
        await anyio.sleep(0.02)
        assert awaits > before
        over.set()


@real_time
@asyncio_only
async def test_trap_16_the_busy_loop_of_a_child_that_swallows() -> None:
    """It is cancelled once, not on every turn."""
    count = 0

    async def swallows() -> None:
        nonlocal count
        end = time.monotonic() + 0.25
        while (left := end - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                count += 1

    scope = await Scope.open()
    scope.spawn(swallows)
    await turns()
    cpu = time.process_time()
    await scope.close()
    assert count == 1
    assert time.process_time() - cpu < 0.1


@virtual_asyncio
async def test_trap_17_shields_do_not_stack_across_worlds() -> None:
    """A child's shield of either kind sees one cancel; a closer in a cancelled anyio scope does not spin."""
    log: list[str] = []

    async def anyio_shielded() -> None:
        try:
            await forever()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(1)
            log.append("anyio")

    async def asyncio_shielded() -> None:
        try:
            await forever()
        finally:
            await asyncio.shield(asyncio.create_task(asyncio.sleep(1)))
            log.append("asyncio")

    scope = await Scope.open()
    scope.spawn(anyio_shielded)
    scope.spawn(asyncio_shielded)
    await turns()
    with anyio.CancelScope() as around:
        around.cancel()
        await scope.close()
    assert sorted(log) == ["anyio", "asyncio"]


@asyncio_only
async def test_trap_18_a_native_cancel_in_the_same_tick_as_anyios() -> None:
    async def closes(scope: Scope, around: anyio.CancelScope) -> str:
        with around:
            await scope.close()
        return "ran on"

    for anyio_first in (True, False):
        scope = await Scope.open()
        scope.spawn(sleeper, None, "child", 0.01)
        await turns()
        around = anyio.CancelScope()
        closer = asyncio.create_task(closes(scope, around))
        await turns()
        if anyio_first:
            around.cancel()
        closer.cancel()
        if not anyio_first:
            around.cancel()
        await asyncio.wait([closer])
        assert closer.cancelled(), f"anyio first: {anyio_first}"
        assert scope.state == "settled"


# Generators, contexts ---------------------------------------------------------------------------------------

whose = ContextVar("whose", default="nobody")


@asyncio_only
async def test_trap_24_finalisers_run_in_the_context_of_whoever_triggered_the_collector() -> None:
    """Blocks and scopes in a generator that another task's collection closes: no token to reset there."""
    log: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        scope = await Scope.open("opened")
        try:
            async with Scope("block") as block:
                block.spawn(sleeper, log, "in the block")
                scope.spawn(sleeper, log, "in the opened")
                yield 1
        finally:
            await scope.close()
            log.append("closed")

    async def drop() -> None:
        whose.set("dropper")
        generator = numbers()
        await anext(generator)
        await turns()
        cycle: list[object] = [generator]
        cycle.append(cycle)

    async def collect() -> None:
        whose.set("collector")
        gc.collect()
        await turns()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        await asyncio.create_task(drop())
        await asyncio.create_task(collect())
        async with asyncio.timeout(2):
            while "closed" not in log:
                await asyncio.sleep(0.01)
    assert sorted(log) == [
        "closed",
        "in the block is tidy",
        "in the block stops",
        "in the opened is tidy",
        "in the opened stops",
    ]
    assert current_scope().name == "root"


async def test_trap_26_yield_inside_a_block() -> None:
    """Closing the generator ends the block; its GeneratorExit is not wrapped in a group."""
    log: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        async with Scope() as scope:
            scope.spawn(sleeper, log)
            await turns()
            yield 1

    generator = numbers()
    await anext(generator)
    await generator.aclose()  # type: ignore[attr-defined]
    assert log == ["sleeper stops", "sleeper is tidy"]


# Threads ----------------------------------------------------------------------------------------------------


@real_time
async def test_trap_27_a_cancel_from_another_thread_takes_effect_at_once() -> None:
    async def main(token: CancelToken) -> float:
        async with Scope(token=token) as scope:
            scope.spawn(anyio.sleep, 60)
        return time.monotonic()

    token = CancelToken()
    at: list[float] = []

    def cancel() -> None:
        time.sleep(0.05)
        at.append(time.monotonic())
        token.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    assert await main(token) - at[0] < 5
    thread.join()


def test_trap_27_a_cancel_after_the_loop_is_closed_is_harmless(world: World) -> None:
    token = CancelToken()
    scopes: list[Scope] = []

    async def main() -> None:
        scopes.append(await Scope.open(token=token))
        await turns()

    world.run(main)
    in_thread = threading.Thread(target=token.cancel, args=("late",))
    in_thread.start()
    in_thread.join()
    scopes[0].cancel("later")
    assert token.reason == Reason("user", "late")
