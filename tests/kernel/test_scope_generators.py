"""Blocks inside async generators: whoever consumes the generator is innocent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import AsyncIterator

import anyio
import pytest

from quiesce import Scope, current_scope
from tests.kernel.temperaments import cancellation, fails, forever, sleeper, turns
from tests.world import asyncio_only


async def numbers(log: list[str], *, fail_after: float | None = None) -> AsyncIterator[int]:
    async with Scope("generator") as scope:
        scope.spawn(sleeper, log, "child", 0.01)
        if fail_after is not None:
            scope.spawn(fails, ValueError("child"), fail_after)
        for n in range(3):
            yield n
            await anyio.sleep(0.005)


async def test_a_consumer_is_not_cancelled_when_a_child_of_the_generator_fails() -> None:
    log: list[str] = []
    generator = numbers(log, fail_after=0.01)
    assert await anext(generator) == 0
    await anyio.sleep(0.05)  # the child fails while the generator is suspended at its yield
    log.append("consumer lives")
    with pytest.raises(ExceptionGroup) as caught:
        while True:  # nothing can stop a body that was not running then; the error comes at its end
            await anext(generator)
    assert [str(error) for error in caught.value.exceptions] == ["child"]
    assert log == ["child stops", "child is tidy", "consumer lives"]
    await anyio.sleep(0)


@asyncio_only
async def test_a_generator_that_is_running_when_a_child_fails_is_stopped_and_its_consumer_sees_the_error() -> (
    None
):
    async def waits() -> AsyncIterator[int]:
        async with Scope() as scope:
            scope.spawn(fails, ValueError("child"), 0.01)
            await forever()
            yield 1

    with pytest.raises(ExceptionGroup) as caught:
        async for _ in waits():
            pass
    assert [str(error) for error in caught.value.exceptions] == ["child"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_closing_the_generator_ends_the_block_with_a_lone_generatorexit() -> None:
    log: list[str] = []
    generator = numbers(log)
    assert await anext(generator) == 0
    await turns()
    await generator.aclose()  # type: ignore[attr-defined]
    assert log == ["child stops", "child is tidy"]


async def test_a_block_inside_a_generator_is_not_the_consumers_current_scope() -> None:
    log: list[str] = []
    generator = numbers(log)
    before = current_scope()
    await anext(generator)
    assert current_scope() is before
    await generator.aclose()  # type: ignore[attr-defined]
    assert current_scope() is before


@asyncio_only
async def test_a_generator_advanced_by_one_task_and_closed_by_another() -> None:
    log: list[str] = []
    generator = numbers(log)
    await asyncio.create_task(anext(generator))  # type: ignore[arg-type]
    await turns()
    await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
    assert log == ["child stops", "child is tidy"]


@asyncio_only
async def test_a_generator_with_a_block_dropped_for_the_collector_settles() -> None:
    log: list[str] = []

    async def drop() -> None:
        generator = numbers(log)
        await anext(generator)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        await drop()
        gc.collect()
        async with asyncio.timeout(2):
            while "child is tidy" not in log:
                await asyncio.sleep(0.01)
        await turns()
    assert log == ["child stops", "child is tidy"]


@contextlib.asynccontextmanager
async def session(log: list[str], fail_after: float) -> AsyncIterator[Scope]:
    async with Scope("session") as scope:
        scope.spawn(fails, ValueError("child"), fail_after)
        try:
            yield scope
        finally:
            log.append("session left")


async def test_the_body_of_an_asynccontextmanager_is_the_body_of_its_block() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with session(log, 0.01) as scope:
            assert current_scope() is scope
            try:
                await forever()
            except cancellation():
                log.append("body cancelled")
                raise
    assert [str(error) for error in caught.value.exceptions] == ["child"]
    assert log == ["body cancelled", "session left"]
    await anyio.sleep(0)


async def test_a_block_on_an_exit_stack_is_a_block() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with contextlib.AsyncExitStack() as stack:
            scope = await stack.enter_async_context(Scope())
            scope.spawn(fails, ValueError("child"), 0.01)
            try:
                await forever()
            except cancellation():
                log.append("body cancelled")
                raise
    assert [str(error) for error in caught.value.exceptions] == ["child"]
    assert log == ["body cancelled"]
    await anyio.sleep(0)
