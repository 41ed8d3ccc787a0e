"""What the audit has found in the kernel, each as a test of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio

from quiesce import ChildCancelled, Scope, current_scope, own, stream
from tests.world import trio_only


async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        await anyio.sleep(0.1)
        yield number


def cancel_the_next_task() -> None:
    """Cancel, before its first step, what is started before the next await; as code does that cancels all it finds."""
    known = asyncio.all_tasks()

    def cancel_what_is_new() -> None:
        for task in asyncio.all_tasks() - known:
            task.cancel()

    asyncio.get_running_loop().call_soon(cancel_what_is_new)


@pytest.mark.worlds("asyncio", "uvloop")
async def test_a_stream_whose_owner_is_cancelled_by_others_before_its_first_step_tells_its_consumer() -> None:
    items = aiter(stream(numbers(), name="numbers"))
    cancel_the_next_task()
    with pytest.raises(ChildCancelled, match="'numbers' was cancelled"):
        await anext(items)
    with pytest.raises(StopAsyncIteration):
        await anext(items)


class Feed:
    """Async iterable, with something to close even if nobody ever asks for an item."""

    def __init__(self) -> None:
        self.is_closed = False

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> int:
        await anyio.sleep(0.1)
        return 1

    async def aclose(self) -> None:
        await anyio.sleep(0.1)
        self.is_closed = True


@pytest.mark.worlds("asyncio", "uvloop")
async def test_a_source_is_closed_even_if_the_owner_of_its_stream_never_began() -> None:
    feed = Feed()
    cancel_the_next_task()
    with pytest.raises(ChildCancelled):
        async for _ in stream(feed):
            pass
    assert feed.is_closed


async def tidies_up() -> None:
    try:
        await anyio.sleep(10)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1)


async def test_a_cancel_that_comes_while_a_block_drains_goes_before_the_error_of_its_body() -> None:
    reached = []
    around = current_scope()
    with anyio.CancelScope() as outer:
        try:
            async with Scope("block") as scope:
                scope.spawn(tidies_up)
                await anyio.sleep(0.1)
                around.spawn(cancel_soon, outer)
                raise LookupError("in the body")
        except ExceptionGroup:
            reached.append("the error")
        reached.append("the next line")
    assert outer.cancelled_caught
    assert not reached


async def cancel_soon(scope: anyio.CancelScope) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(0.5)
        scope.cancel()


async def test_a_cancel_that_comes_while_a_held_thing_is_left_goes_before_the_error_of_its_body() -> None:
    @asynccontextmanager
    async def slow_to_leave() -> AsyncIterator[None]:
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)

    reached = []
    around = current_scope()
    with anyio.CancelScope() as outer:
        try:
            async with own(slow_to_leave()):
                around.spawn(cancel_soon, outer)
                raise LookupError("in the body")
        except LookupError:
            reached.append("the error")
        reached.append("the next line")
    assert outer.cancelled_caught
    assert not reached


@trio_only
async def test_a_block_of_own_that_another_task_leaves_says_that_trio_does_not_allow_that() -> None:
    @asynccontextmanager
    async def connection() -> AsyncIterator[str]:
        yield "connection"

    block = own(connection(), name="connection")
    entered, refused = trio.Event(), trio.Event()

    async def enters_and_leaves() -> None:
        assert await block.__aenter__() == "connection"
        entered.set()
        await refused.wait()
        assert not await block.__aexit__(None, None, None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enters_and_leaves)
        await entered.wait()
        with pytest.raises(RuntimeError, match=r"'connection' was entered .* own\(\.\.\.\)\.open\(\)"):
            await block.__aexit__(None, None, None)
        refused.set()
    assert block.report is not None
    assert block.report.clean
