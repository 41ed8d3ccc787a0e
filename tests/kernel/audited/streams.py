"""`stream`: other people's async generators, iterated by a task of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from quiesce import Scope, shielded, stream

from . import DROPPED, STARTED_LATE, audited, ledger, pause, tidy_up, work


async def numbers(count: int = 4) -> AsyncIterator[int]:
    try:
        for number in range(count):
            await pause(0.2)
            yield number
    except (GeneratorExit, anyio.get_cancelled_exc_class()):
        await tidy_up()
        raise


async def answers() -> AsyncIterator[int]:
    """One that has tasks of its own, as a streaming client has."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever)
        for number in range(3):
            await pause(0.2)
            yield number
        tasks.cancel_scope.cancel()


@audited("stream")
async def stream_in_a_block_to_its_end() -> None:
    ledger.start()
    async with stream(numbers(3)) as items:
        found = [item async for item in items]
    ledger.expect(found == [0, 1, 2], f"the items are {found}")


@audited("stream")
async def stream_in_a_block_left_early() -> None:
    ledger.start()
    async with stream(numbers()) as items:
        async for item in items:
            if item == 1:
                break
        await pause(0.5)


@audited("stream", ignore={"unawaited sleep_forever*": STARTED_LATE})
async def stream_with_a_task_group_inside() -> None:
    ledger.start()
    async with stream(answers()) as items:
        async for item in items:
            if item == 1:
                break


@audited("stream")
async def stream_with_prefetch() -> None:
    ledger.start()
    async with stream(numbers(), prefetch=2) as items:
        async for item in items:
            await pause(0.3)
            if item == 2:
                break


@audited("stream")
async def stream_closed_with_aclose() -> None:
    ledger.start()
    items = aiter(stream(numbers()))
    try:
        await anext(items)
        await anext(items)
    finally:
        ledger.report(await items.aclose())


@audited("stream")
async def stream_closed_by_another_task() -> None:
    ledger.start()

    async def consume() -> None:
        async for _ in items:
            pass

    async with ledger.scope(Scope("consumer")) as scope, stream(numbers(10)) as items:
        scope.spawn(consume)
        await pause(0.5)
        ledger.report(await shielded(items.close))


@audited("stream")
async def stream_left_by_a_bare_break() -> None:
    ledger.start()
    async with ledger.scope(Scope("around it")) as scope:
        scope.spawn(work, 0.1)
        async for item in stream(numbers()):
            if item == 1:
                break
        await pause(0)


@audited("stream")
async def stream_left_by_a_bare_break_and_closed() -> None:
    ledger.start()
    items = stream(numbers())
    try:
        async for item in items:
            if item == 1:
                break
        ledger.expect(items.token.cancelled, "the loop was left, and the token is not cancelled")
    finally:
        ledger.report(await items.close())


@audited("stream")
async def stream_in_a_bare_loop_to_its_end() -> None:
    ledger.start()
    async with ledger.scope(Scope("around it")):
        async for _ in stream(numbers(2)):
            await pause(0.1)


@audited("stream", ignore={"late *": DROPPED}, ignore_on_trio={"late *": DROPPED})
async def stream_handed_on_by_a_generator() -> AsyncIterator[int]:
    ledger.start()
    async with stream(numbers(3)) as items:
        async for item in items:
            yield item


@audited("stream")
async def streams_one_in_another() -> None:
    ledger.start()

    async def outer() -> AsyncIterator[int]:
        async with stream(numbers(3)) as items:
            async for item in items:
                yield item

    async with stream(outer()) as items:
        async for item in items:
            if item == 1:
                break
