"""Calls that own what they start: `guarded`, `shielded`, `contain`, and the table of handlers `Inflight`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio

from quiesce import Inflight, Scope, contain, current_scope, guarded, own, shielded, stream
from quiesce.kernel.inner import WaitQueue, ask_to_leave, core_of, wait_settled, when_ended

from . import ASYNCIO, audited, clock, fail, ledger, pause, tidy_up, work


@audited("guarded")
async def guarded_and_all_agree() -> None:
    ledger.start()
    result = await guarded(partial(work, 1), partial(work, 0.5), partial(work, 2))
    ledger.expect(result == 1, f"the result is {result}")


@audited("guarded")
async def guarded_and_the_guard_objects() -> None:
    ledger.start()
    with suppress(LookupError, ConnectionError):
        await guarded(partial(work, 5), partial(fail, 1), partial(work, 3))
        ledger.expect(False, "a result came out in spite of the guard")


@audited("guarded")
async def guarded_and_the_primary_fails() -> None:
    ledger.start()

    async def primary() -> None:
        current_scope().spawn(work, 3)
        await fail(1)

    with suppress(LookupError, ConnectionError):
        await guarded(primary, partial(work, 3))


@audited("Handle")
async def a_queue_of_tasks_that_take_turns() -> None:
    ledger.start()
    items, queue, ended = list[int](), WaitQueue(), list[str]()

    async def take() -> None:
        await queue.wait_until(lambda: items)
        items.pop()

    async with Scope("turns") as scope:
        for name in ("first", "second"):
            when_ended(scope.spawn(take, name=name), partial(ended.append, name))
        await pause(1)
        for number in range(2):
            items.append(number)
            queue.wake_one()
            await pause(1)
    ledger.expect(not queue, "a task is still in the queue")
    ledger.expect(len(ended) == 2, f"ends that were heard of: {ended}")


@audited("Scope")
async def an_owner_that_waits_until_its_handlers_have_settled() -> None:
    ledger.start()
    async with ledger.scope(Scope("connection")) as connection:
        handlers = ledger.scope(await Scope.open("handlers", on_error="report"))

        async def owner() -> None:
            await pause(1)
            handlers.cancel("the connection ended")
            await wait_settled(core_of(handlers))
            ledger.expect(handlers.state == "settled", f"the handlers are {handlers.state}")

        handlers.spawn(work, 5)
        connection.spawn(owner)
        handlers.spawn(connection.close)  # last: an eager task closes the connection at once
    await handlers.close()


@audited("Handle")
async def a_child_that_leaves_by_itself_when_it_is_asked() -> None:
    ledger.start()
    queue, asked = WaitQueue(), list[bool]()

    async def write() -> None:
        await queue.wait_until(lambda: asked)
        await pause(0.5)

    def leave() -> bool:
        asked.append(True)
        queue.wake_all()
        return True

    async with ledger.scope(Scope("writers")) as scope:
        writer = scope.spawn(write)
        ask_to_leave(writer, leave)
        await pause(1)
        scope.cancel()
        await pause(2)
    ledger.expect(not queue, "it is still in the queue")


@audited("shielded")
async def shielded_in_a_clean_up() -> None:
    ledger.start()

    async def flush() -> None:
        with ledger.entry("what is shielded"):
            await pause(1)

    try:
        await pause(1)
    finally:
        await shielded(flush)


@audited("Scope")
async def words_in_the_clean_up_of_a_child() -> None:
    ledger.start()

    @asynccontextmanager
    async def connection() -> AsyncIterator[None]:
        yield
        await tidy_up(0.1)

    async def numbers() -> AsyncIterator[int]:
        for number in range(2):
            await pause(0.1)
            yield number

    async def child() -> None:
        try:
            await pause(5)
        finally:
            with anyio.CancelScope(shield=True):
                async with Scope("tidy") as tidy:
                    tidy.spawn(work, 0.1)
                    async with own(connection()):
                        await guarded(partial(work, 0.1), partial(work, 0.2))
                async for _ in stream(numbers()):
                    pass

    scope = ledger.scope(await Scope.open("stopped"))
    try:
        scope.spawn(child)
        await pause(0.5)
    finally:
        ledger.report(await scope.close())


@audited("shielded")
async def shielded_in_a_child_of_a_scope_that_stops() -> None:
    ledger.start()

    async def flush() -> None:
        with ledger.entry("what is shielded"):
            await pause(1)

    async def child() -> None:
        try:
            await pause(5)
        finally:
            await shielded(flush)

    scope = ledger.scope(await Scope.open("stops"))
    try:
        scope.spawn(child)
        await pause(1)
    finally:
        ledger.report(await scope.close())


@audited("shielded")
async def shielded_and_out_of_time() -> None:
    ledger.start()
    with suppress(TimeoutError):
        await shielded(work, 10, within=clock.seconds(1))


async def foreign_work(seconds: float) -> None:
    """In a task that is not the kernel's: when all tasks are cancelled at a program's end, so is this, again."""
    try:
        await pause(seconds)
    except asyncio.CancelledError:
        await tidy_up(but_by_others=True)
        raise


@audited("contain", worlds=ASYNCIO)
async def contained_tasks_of_somebody_else() -> None:
    ledger.start()
    async with contain() as box:
        slow, quick = asyncio.create_task(foreign_work(10)), asyncio.create_task(foreign_work(0.5))
        await asyncio.wait([slow, quick], return_when=asyncio.FIRST_COMPLETED)
        quick.exception()
    ledger.report(box.report)


@audited("contain", worlds=ASYNCIO)
async def contained_tasks_that_start_others() -> None:
    ledger.start()

    async def starts_another() -> None:
        try:
            await pause(5)
        finally:
            started.append(asyncio.create_task(foreign_work(5)))

    started: list[asyncio.Task[object]] = []
    async with contain() as box:
        started.append(asyncio.create_task(starts_another()))
        await pause(1)
    ledger.report(box.report)


@audited("contain", worlds=ASYNCIO)
async def contained_code_that_swallows_its_cancel() -> None:
    ledger.start()

    async def library() -> None:
        tasks = [asyncio.create_task(foreign_work(2)), asyncio.create_task(foreign_work(2))]
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            pass  # as real libraries do

    async with contain() as box:
        await library()
    ledger.report(box.report)


@audited("contain", worlds=ASYNCIO)
async def contained_scope_and_stream() -> None:
    ledger.start()

    async def library() -> None:
        started.append(asyncio.create_task(foreign_work(10)))
        async with ledger.scope(Scope("of the library")) as scope:
            scope.spawn(work, 1)
            await pause(0.5)

    started: list[asyncio.Task[None]] = []
    async with contain() as box:
        await library()
    ledger.report(box.report)


@audited("guarded")
async def guarded_in_a_child_of_a_scope_that_stops() -> None:
    ledger.start()

    async def call() -> None:
        await guarded(partial(work, 5), partial(work, 4))

    scope = ledger.scope(await Scope.open("turn"))
    try:
        scope.spawn(call)
        await pause(1)
    finally:
        ledger.report(await scope.close())


@audited("Inflight")
async def inflight_requests() -> None:
    ledger.start()
    async with Inflight("requests", on_error=lambda _, __: None) as inflight:
        first = inflight.start(1, work, 5)
        quick = inflight.start(2, work, 0.5)
        inflight.start(3, fail, 0.2)
        await quick.wait()
        ledger.expect(2 not in inflight, "an id that is done is not forgotten")
        inflight.cancel(1, "not wanted any more")
        inflight.cancel("unknown")
        await first.wait()
        inflight.start(1, work, 5)
        await pause(0)
    ledger.expect(len(inflight) == 0, "the block is over, and ids are at work")
    ledger.report(inflight.report)


@audited("Inflight")
async def inflight_opened_and_closed() -> None:
    ledger.start()
    inflight = await Inflight.open("requests")
    try:
        inflight.start("a", work, 5)
        await pause(1)
    finally:
        ledger.report(await inflight.close())
