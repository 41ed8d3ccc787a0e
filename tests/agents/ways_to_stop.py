"""Every way to stop a run: `CALLERS` for `Runner.run`, `STREAMED` for `Runner.run_streamed`, `CONVERSED` for `Conversation.arun`.

A way starts the run, waits until it is parked, stops it (some of them a second time, in the middle of the clean-up), and looks around
at the very moment when whoever called has control back. `Surroundings` is what it sees then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

from quiesce import Scope
from quiesce.agents import Conversation, Runner, RunResultStreaming
from tests.agents.scenes import MIDDLE, Parked
from tests.kernel.temperaments import on_trio
from tests.world import all_trio_tasks, describe_asyncio_task, describe_trio_task, is_owner


class Surroundings:
    """Which tasks were there before, and which are there now."""

    def __init__(self, parked: Parked) -> None:
        self._parked = parked
        self._known = self._tasks()
        self._looks = 0

    def here(self) -> None:
        """The task that calls this is one of the test's own."""
        self._known.add(trio.lowlevel.current_task() if on_trio() else asyncio.current_task())

    async def look(self) -> None:
        """Control is back: nothing may be left, and no clean-up cut."""
        self._looks += 1
        self._parked.assert_tidy()
        if on_trio():  # a child reports its end in its last step: that step has to come
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
        left = self._tasks() - self._known
        describe: Any = describe_trio_task if on_trio() else describe_asyncio_task
        assert not left, "\n".join(map(describe, left))

    def assert_has_looked(self) -> None:
        """Somebody had control back."""
        assert self._looks

    @staticmethod
    def _tasks() -> set[Any]:
        if on_trio():
            return {
                task for task in all_trio_tasks() if not is_owner(task) and task.parent_nursery is not None
            }
        return set(asyncio.all_tasks())


Main = Callable[[], Awaitable[Any]]


async def cancelled(main: Main, parked: Parked, around: Surroundings, times: int) -> None:
    """Somebody's task, cancelled so many times. Its cancel must come out of it."""
    if not on_trio():
        task = asyncio.create_task(_here(main, around))
        await parked.reached.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(MIDDLE)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        return
    scopes = [trio.CancelScope() for _ in range(times)]
    came_out: list[str] = []

    async def inside(depth: int) -> None:
        if depth:
            with scopes[depth - 1]:
                await inside(depth - 1)
            return
        try:
            await _here(main, around)
        except trio.Cancelled:
            came_out.append("cancelled")
            raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(inside, times)
        await parked.reached.wait()
        for scope in scopes:
            scope.cancel()
            await trio.sleep(MIDDLE)
    assert came_out == ["cancelled"]
    assert scopes[-1].cancelled_caught or scopes[0].cancelled_caught


async def _here(main: Main, around: Surroundings) -> None:
    around.here()
    await main()


async def timed_out(main: Main, parked: Parked, around: Surroundings, times: int) -> None:
    """Timeouts of the event loop's own, one in the other; the outer one ends in the middle of the clean-up."""

    async def within(depth: int) -> None:
        if not depth:
            await main()
            return
        seconds = 1 + MIDDLE * (depth - 1)
        if on_trio():
            with trio.fail_after(seconds):
                await within(depth - 1)
        else:
            async with asyncio.timeout(seconds):
                await within(depth - 1)

    with pytest.raises((TimeoutError, trio.TooSlowError)):
        await within(times)
    assert parked.begun
    if not on_trio():
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def moved_on(main: Main, parked: Parked, around: Surroundings, times: int) -> None:
    """A cancel scope of anyio's, which on asyncio cancels again and again."""
    with anyio.move_on_after(1) as scope:
        await main()
    assert scope.cancelled_caught


async def scope_closed(main: Main, parked: Parked, around: Surroundings, times: int) -> None:
    """The scope that the run belongs to is closed, by so many closers."""
    scope = await Scope.open("app")
    handle = scope.spawn(_here, main, around)
    await parked.reached.wait()

    async def close(number: int) -> None:
        around.here()
        await anyio.sleep(MIDDLE * number)
        assert (await scope.close()).clean

    async with anyio.create_task_group() as group:
        for number in range(times):
            group.start_soon(close, number)
    assert handle.done


Way = Callable[[Main, Parked, Surroundings, int], Awaitable[None]]
CALLERS: dict[str, tuple[Way, int]] = {
    "cancel": (cancelled, 1),
    "cancel_twice": (cancelled, 2),
    "timeout": (timed_out, 1),
    "timeout_twice": (timed_out, 2),
    "anyio_scope": (moved_on, 1),
    "scope_closed": (scope_closed, 1),
    "scope_closed_twice": (scope_closed, 2),
}


async def run_and_stop(way: str, agent: Any, options: Any, parked: Parked) -> None:
    """`Runner.run`, whose caller is stopped."""
    around = Surroundings(parked)
    stop, times = CALLERS[way]

    async def main() -> None:
        try:
            await Runner.run(agent, "?", **options)
        finally:
            await around.look()

    await stop(main, parked, around, times)
    around.assert_has_looked()


# Streamed -----------------------------------------------------------------------------------------------------

Streamed = Callable[[RunResultStreaming, Parked, Surroundings], Awaitable[None]]
STREAMED: dict[str, Streamed] = {}


def _consumer_stopped(way: str, *, in_block: bool) -> Streamed:
    stop, times = CALLERS[way]

    async def consumer_stopped(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
        async def main() -> None:
            try:
                if in_block:
                    async with result:
                        await _read(result)
                else:
                    await _read(result)
            finally:
                await around.look()

        await stop(main, parked, around, times)

    return consumer_stopped


async def _read(result: RunResultStreaming) -> None:
    async for _ in result.stream_events():
        pass


STREAMED |= {f"consumer_{way}": _consumer_stopped(way, in_block=False) for way in CALLERS}
STREAMED |= {
    f"consumer_{way}_in_the_block": _consumer_stopped(way, in_block=True)
    for way in ("cancel", "cancel_twice", "timeout")
}


def streamed(way: Streamed) -> Streamed:
    """Take it into the list."""
    STREAMED[way.__name__] = way
    return way


async def _reads_to_the_end(result: RunResultStreaming, around: Surroundings) -> None:
    around.here()
    await _read(result)
    await around.look()


async def _cancel(result: RunResultStreaming, parked: Parked, around: Surroundings, times: int) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_reads_to_the_end, result, around)
        await parked.reached.wait()
        for _ in range(times):
            result.cancel()
            await anyio.sleep(MIDDLE)


@streamed
async def cancel(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
    await _cancel(result, parked, around, 1)


@streamed
async def cancel_twice(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
    await _cancel(result, parked, around, 2)


async def _close(
    result: RunResultStreaming, parked: Parked, around: Surroundings, closes: list[Callable[[], Any]]
) -> None:
    async def close(number: int) -> None:
        around.here()
        await anyio.sleep(MIDDLE * number)
        assert (await closes[number]()).clean
        await around.look()

    async with anyio.create_task_group() as group:
        group.start_soon(_reads_to_the_end, result, around)
        await parked.reached.wait()
        for number in range(len(closes)):
            group.start_soon(close, number)


@streamed
async def close(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
    await _close(result, parked, around, [result.close])


@streamed
async def close_twice(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
    await _close(result, parked, around, [result.close, result.close])


@streamed
async def aclose(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
    await _close(result, parked, around, [result.aclose])


@streamed
async def aclose_after_cancel(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
    async def cancels() -> Any:
        result.cancel()
        await anyio.sleep(MIDDLE)
        return await result.aclose()

    await _close(result, parked, around, [cancels])


@streamed
async def closer_is_cancelled(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_reads_to_the_end, result, around)
        await parked.reached.wait()
        with anyio.move_on_after(parked.patience) as impatience:
            await result.close()
        assert impatience.cancelled_caught
        await around.look()


@streamed
async def block_is_left(result: RunResultStreaming, parked: Parked, around: Surroundings) -> None:
    async with anyio.create_task_group() as group:
        async with result:
            group.start_soon(_reads_to_the_end, result, around)
            await parked.reached.wait()
        await around.look()


@streamed
async def block_is_left_with_an_error(
    result: RunResultStreaming, parked: Parked, around: Surroundings
) -> None:
    async with anyio.create_task_group() as group:
        with pytest.raises(KeyError, match="mine"):
            async with result:
                group.start_soon(_reads_to_the_end, result, around)
                await parked.reached.wait()
                raise KeyError("mine")
        await around.look()


async def stream_and_stop(way: str, agent: Any, options: Any, parked: Parked) -> RunResultStreaming:
    """`Runner.run_streamed`, stopped."""
    around = Surroundings(parked)
    result = Runner.run_streamed(agent, "?", **options)
    await STREAMED[way](result, parked, around)
    around.assert_has_looked()
    return result


# Conversations ------------------------------------------------------------------------------------------------

Conversed = Callable[[Conversation, Parked, Surroundings], Awaitable[None]]


def _caller_stopped(way: str) -> Conversed:
    stop, times = CALLERS[way]

    async def caller_stopped(conversation: Conversation, parked: Parked, around: Surroundings) -> None:
        async def main() -> None:
            try:
                await conversation.arun()
            finally:
                await around.look()

        await stop(main, parked, around, times)

    return caller_stopped


def _stopped_by(*stops: str) -> Conversed:
    """Each by a task of its own, one after the other, while `arun()` is awaited: that returns, and is nobody's cancel."""

    async def stopped_by(conversation: Conversation, parked: Parked, around: Surroundings) -> None:
        async def runs() -> None:
            around.here()
            assert await conversation.arun() == "paused"
            await around.look()

        async def stop(number: int) -> None:
            around.here()
            await anyio.sleep(MIDDLE * number)
            assert not parked.tidied, "the first stop was over before this one came"
            report = await getattr(conversation, stops[number])()
            assert report.clean, report
            await around.look()

        async with anyio.create_task_group() as group:
            group.start_soon(runs)
            await parked.reached.wait()
            for number in range(len(stops)):
                group.start_soon(stop, number)

    return stopped_by


CONVERSED: dict[str, Conversed] = {f"caller_{way}": _caller_stopped(way) for way in CALLERS} | {
    "interrupt": _stopped_by("interrupt"),
    "interrupt_twice": _stopped_by("interrupt", "interrupt"),
    "close": _stopped_by("close"),
    "close_twice": _stopped_by("close", "close"),
    "interrupt_then_close": _stopped_by("interrupt", "close"),
    "close_then_interrupt": _stopped_by("close", "interrupt"),
}


async def converse_and_stop(way: str, conversation: Conversation, parked: Parked) -> None:
    """`Conversation.arun`, stopped."""
    around = Surroundings(parked)
    await CONVERSED[way](conversation, parked, around)
    around.assert_has_looked()
