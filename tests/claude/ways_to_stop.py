"""Every way to stop a query, and every way to stop a client, that gives a place to wait.

A way starts it, waits until the CLI is at work, and stops it; some stop it a second time, in the middle of that. It returns when whoever used it has
control back, and lets nothing else run between that moment and its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import trio

from quiesce import Grace, Scope
from quiesce.claude import ClaudeAgentOptions, ClaudeSDKClient, query
from tests.kernel.temperaments import on_trio

PATIENT = Grace(
    cancel=9, terminate=3, kill=5
)  # for what a CLI in order does at once, however slow the machine
HASTY = Grace(cancel=0.3, terminate=0.2, kill=5)


@dataclass
class Stage:
    """What is to be stopped, and when."""

    options: ClaudeAgentOptions
    at_work: Callable[[], Awaitable[None]]  # returns when the CLI is where it is to be stopped
    look: Callable[[], None]  # at the moment when control is back
    grace: Grace = PATIENT

    def query(self) -> Any:
        return query(prompt="work", options=self.options, grace=self.grace)

    def client(self) -> ClaudeSDKClient:
        return ClaudeSDKClient(self.options, grace=self.grace)


Way = Callable[[Stage], Awaitable[None]]


async def _consume(messages: Any) -> None:
    async for _ in messages:
        pass


async def _first(messages: Any) -> None:
    """One message, so that it runs."""
    async for _ in messages:
        return


# A query -----------------------------------------------------------------------------------------------


async def the_block_ends(stage: Stage) -> None:
    async with stage.query() as messages:
        await _first(messages)
        await stage.at_work()
    stage.look()


async def the_body_fails(stage: Stage) -> None:
    with pytest.raises(LookupError):
        async with stage.query() as messages:
            await _first(messages)
            await stage.at_work()
            raise LookupError("the body")
    stage.look()


async def aclose(stage: Stage) -> None:
    messages = stage.query()
    iterator = aiter(messages)
    await anext(iterator)
    await stage.at_work()
    await messages.aclose()
    stage.look()


async def closed_by_another_task(stage: Stage) -> None:
    """While the one that reads waits for a message: it gets the end of the iteration."""
    ended: list[str] = []

    async def read(messages: Any) -> None:
        await _consume(messages)
        ended.append("read")

    messages = stage.query()
    async with Scope() as scope:
        reader = scope.spawn(read, messages)
        await stage.at_work()
        report = await messages.close()
        stage.look()
        await reader.wait()
    assert ended == ["read"]
    assert report.clean, str(report)


async def _cancelled(
    stage: Stage,
    main: Callable[[], Awaitable[None]],
    times: int,
    reached: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Somebody's task, cancelled so many times; its cancel comes out of it, and then it looks around."""
    came_out: list[str] = []
    reached = reached or stage.at_work

    async def observed() -> None:
        try:
            await main()
        except anyio.get_cancelled_exc_class():
            stage.look()
            came_out.append("cancelled")
            raise

    if not on_trio():
        task = asyncio.create_task(observed())
        await reached()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.002)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert came_out == ["cancelled"]
        return
    scopes = [trio.CancelScope() for _ in range(times)]

    async def inside(depth: int) -> None:
        if not depth:
            await observed()
            return
        with scopes[depth - 1]:
            await inside(depth - 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(inside, times)
        await reached()
        for scope in scopes:
            scope.cancel()
            await trio.sleep(0.002)
    assert came_out == ["cancelled"]


async def cancelled_while_it_reads(stage: Stage) -> None:
    await _cancelled(stage, lambda: _consume(stage.query()), 1)


async def cancelled_twice(stage: Stage) -> None:
    await _cancelled(stage, lambda: _consume(stage.query()), 2)


async def cancelled_five_times_in_a_block(stage: Stage) -> None:
    async def main() -> None:
        async with stage.query() as messages:
            await _consume(messages)

    await _cancelled(stage, main, 5)


async def cancelled_in_the_body(stage: Stage) -> None:
    """While it does something else, between two messages."""

    async def main() -> None:
        async with stage.query() as messages:
            await _first(messages)
            await anyio.sleep(3600)

    await _cancelled(stage, main, 2)


async def nested_timeouts(stage: Stage) -> None:
    """The outer one ends while the inner one's stop is going on."""
    async with stage.query() as messages:
        await _first(messages)
        await stage.at_work()
        with anyio.move_on_after(0.03) as outer, anyio.move_on_after(0.02) as inner:
            await _consume(messages)
        stage.look()
        assert inner.cancelled_caught or outer.cancelled_caught


async def cancelled_while_it_closes(stage: Stage) -> None:
    closing = anyio.Event()

    async def main() -> None:
        messages = stage.query()
        iterator = aiter(messages)
        await anext(iterator)
        await stage.at_work()
        closing.set()
        await messages.close()
        raise AssertionError("not cancelled")

    await _cancelled(stage, main, 3, closing.wait)


async def its_scope_is_closed(stage: Stage) -> None:
    scope = await Scope.open("owner")
    scope.spawn(lambda: _consume(stage.query()))
    await stage.at_work()
    report = await scope.close()
    stage.look()
    assert report.clean, str(report)


QUERY: dict[str, Way] = {
    way.__name__: way
    for way in (
        the_block_ends,
        the_body_fails,
        aclose,
        closed_by_another_task,
        cancelled_while_it_reads,
        cancelled_twice,
        cancelled_five_times_in_a_block,
        cancelled_in_the_body,
        nested_timeouts,
        cancelled_while_it_closes,
        its_scope_is_closed,
    )
}


# A client ----------------------------------------------------------------------------------------------


async def client_block_ends(stage: Stage) -> None:
    async with stage.client() as client:
        await client.query("work")
        await stage.at_work()
    stage.look()


async def client_body_fails(stage: Stage) -> None:
    with pytest.raises(LookupError):
        async with stage.client() as client:
            await client.query("work")
            await stage.at_work()
            raise LookupError("the body")
    stage.look()


async def disconnected_by_another_task(stage: Stage) -> None:
    """While one reads: it gets the end of the iteration, or the error of a CLI that had died before."""
    client = stage.client()
    await client.connect("work")
    ended: list[str] = []

    async def read() -> None:
        await _consume(client.receive_messages())
        ended.append("read")

    async with Scope() as scope:
        reader = scope.spawn(read)
        await stage.at_work()
        await client.disconnect()
        stage.look()
        await reader.wait()
    assert ended == ["read"]


async def client_cancelled_while_it_reads(stage: Stage) -> None:
    async def main() -> None:
        async with stage.client() as client:
            await client.query("work")
            await _consume(client.receive_response())

    await _cancelled(stage, main, 1)


async def client_cancelled_three_times(stage: Stage) -> None:
    async def main() -> None:
        async with stage.client() as client:
            await client.query("work")
            await anyio.sleep(3600)

    await _cancelled(stage, main, 3)


async def disconnect_is_cancelled(stage: Stage) -> None:
    """As `asyncio.wait_for(client.disconnect(), ...)` does."""
    client = stage.client()
    await client.connect("work")
    await stage.at_work()
    with anyio.move_on_after(0.005):
        await client.disconnect()
    stage.look()
    await client.disconnect()


CLIENT: dict[str, Way] = {
    way.__name__: way
    for way in (
        client_block_ends,
        client_body_fails,
        disconnected_by_another_task,
        client_cancelled_while_it_reads,
        client_cancelled_three_times,
        disconnect_is_cancelled,
    )
}
