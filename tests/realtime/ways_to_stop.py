"""Every way to stop a session that gives a place to wait.

A way opens it, waits until it is where it is to be stopped, and stops it; some stop it a second time, in the middle of that. It looks around at the moment
when whoever used it has control back. The session may have ended by then: whoever reads takes that calmly, and waits on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import pytest
import trio

from quiesce import Scope
from quiesce.realtime import RealtimeSession
from quiesce.wire import ConnectionEnded
from tests.kernel.temperaments import on_trio


@dataclass
class Stage:
    """What is to be stopped, and when."""

    session: Callable[[], RealtimeSession]  # makes one; the last one made is stopped
    at_work: Callable[[RealtimeSession], Awaitable[None]]  # returns when it is where it is to be stopped
    look: Callable[[], None]  # at the moment when control is back


Way = Callable[[Stage], Awaitable[None]]


async def read(session: RealtimeSession) -> None:
    """All that comes; and wait for somebody who stops this."""
    try:
        async for _ in session:
            pass
    except ConnectionEnded:
        pass
    await anyio.sleep_forever()


async def the_block_ends(stage: Stage) -> None:
    async with stage.session() as session:
        await stage.at_work(session)
    stage.look()


async def the_body_fails(stage: Stage) -> None:
    with pytest.raises(LookupError, match="the body"):
        async with stage.session() as session:
            await stage.at_work(session)
            raise LookupError("the body")
    stage.look()


async def closed_by_another_task_while_one_reads(stage: Stage) -> None:
    session = stage.session()
    ended: list[str] = []

    async def consume() -> None:
        try:
            async for _ in session:
                pass
        except ConnectionEnded:
            pass
        ended.append("reader")

    async def close() -> None:
        report = await session.close()
        stage.look()
        assert report.clean, str(report)

    await session.enter()
    async with Scope() as scope:
        reader = scope.spawn(consume)
        await stage.at_work(session)
        await scope.spawn(close).wait()
        await reader.wait()
    assert ended == ["reader"]


async def closed_by_three_at_once(stage: Stage) -> None:
    session = stage.session()
    await session.enter()
    await stage.at_work(session)

    async def close() -> None:
        await session.close()
        stage.look()

    async with Scope() as scope:
        for _ in range(3):
            scope.spawn(close)


async def cancelled_from_outside_and_waited_for(stage: Stage) -> None:
    """`cancel()` waits for nobody; the end of the events is not the end of the clean-up, `close()` is."""
    session = stage.session()
    await session.enter()
    await stage.at_work(session)
    session.cancel("enough")
    session.cancel("now")
    await session.close()
    stage.look()


async def _cancelled(stage: Stage, main: Callable[[RealtimeSession], Awaitable[None]], times: int) -> None:
    """Somebody's task, cancelled so many times; its cancel comes out of it, and then it looks around."""
    came_out: list[str] = []
    session = stage.session()

    async def observed() -> None:
        try:
            await main(session)
        except anyio.get_cancelled_exc_class():
            stage.look()
            came_out.append("cancelled")
            raise

    if not on_trio():
        task = asyncio.create_task(observed())
        await stage.at_work(session)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.002)
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        scopes = [trio.CancelScope() for _ in range(times)]

        async def inside(depth: int) -> None:
            if not depth:
                await observed()
                return
            with scopes[depth - 1]:
                await inside(depth - 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(inside, times)
            await stage.at_work(session)
            for scope in scopes:
                scope.cancel()
                await trio.sleep(0.002)
    assert came_out == ["cancelled"]


async def _read_in_a_block(session: RealtimeSession) -> None:
    async with session:
        await read(session)


async def cancelled_while_it_reads(stage: Stage) -> None:
    await _cancelled(stage, _read_in_a_block, 1)


async def cancelled_three_times(stage: Stage) -> None:
    await _cancelled(stage, _read_in_a_block, 3)


async def nested_timeouts_while_it_closes(stage: Stage) -> None:
    session = stage.session()
    await session.enter()
    await stage.at_work(session)
    with anyio.move_on_after(0.004), anyio.move_on_after(0.002):
        await session.close()
    stage.look()
    assert (await session.close()).clean


async def out_of_time(stage: Stage) -> None:
    session = stage.session()
    with pytest.raises(TimeoutError):
        with anyio.fail_after(None) as limit:
            async with session:
                await stage.at_work(session)
                limit.deadline = anyio.current_time() + 0.01
                await read(session)
    stage.look()


async def its_scope_is_closed(stage: Stage) -> None:
    owner = await Scope.open("owner")
    session = stage.session()

    async def use() -> None:
        async with session:
            await read(session)

    owner.spawn(use)
    await stage.at_work(session)
    report = await owner.close()
    stage.look()
    assert report.clean, str(report)


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        the_block_ends,
        the_body_fails,
        closed_by_another_task_while_one_reads,
        closed_by_three_at_once,
        cancelled_from_outside_and_waited_for,
        cancelled_while_it_reads,
        cancelled_three_times,
        nested_timeouts_while_it_closes,
        out_of_time,
        its_scope_is_closed,
    )
}
