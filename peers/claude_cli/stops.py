"""Every way to stop a query and a client: it waits until the tool ticks, stops, and looks at the moment when
control is back.

Two give no place to wait. After a bare `break` the program looks on, with the event loop standing still,
until what was signalled is gone. A program that is killed says when, and its judge looks on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any

import anyio
import sniffio
import trio

from quiesce.claude import ClaudeSDKClient, query

from .stage import Stage

GAP = 0.02  # seconds between one cancel and the next: within the stop that the first began

Program = Callable[[Stage], Awaitable[None]]
Work = Callable[[], Awaitable[None]]


async def consume(messages: AsyncIterable[Any]) -> None:
    async for _ in messages:
        pass


def on_trio() -> bool:
    return sniffio.current_async_library() == "trio"


# What both have in common


async def another_task_closes(stage: Stage, read: Work, close: Callable[[], Awaitable[object]]) -> None:
    """While one task reads, which then sees the end of the messages."""
    ended: list[bool] = []

    async def reader() -> None:
        await read()
        ended.append(True)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(reader)
            await stage.at_work()
            stage.asked()
            await close()
            stage.look()
    assert ended, "the reader did not come to the end of the messages"


async def cancelled(stage: Stage, work: Work, times: int) -> None:
    """A task that is cancelled so many times; it looks as the cancel comes out."""
    came_out: list[bool] = []

    async def observed() -> None:
        try:
            await work()
        except anyio.get_cancelled_exc_class():
            stage.look()
            came_out.append(True)
            raise

    if on_trio():
        scopes = [trio.CancelScope() for _ in range(times)]

        async def inside(depth: int) -> None:
            if depth:
                with scopes[depth - 1]:
                    await inside(depth - 1)
            else:
                await observed()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(inside, times)
            await stage.at_work()
            stage.asked()
            for scope in scopes:
                scope.cancel()
                await trio.sleep(GAP)
    else:
        task = asyncio.ensure_future(observed())
        await stage.at_work()
        stage.asked()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(GAP)
        await asyncio.wait({task})
        assert task.cancelled(), f"not cancelled but {task!r}"
    assert came_out, "the cancel did not come out"


async def timed_out(stage: Stage, work: Work) -> None:
    """Two timeouts, one in the other: the outer one ends while the stop that the inner one began is on."""

    async def observed() -> None:
        try:
            await work()
        except anyio.get_cancelled_exc_class():
            stage.look()
            raise

    await (_timed_out_on_trio if on_trio() else _timed_out_on_asyncio)(stage, observed)


async def _timed_out_on_trio(stage: Stage, work: Work) -> None:
    outer, inner = trio.CancelScope(), trio.CancelScope()

    async def limited() -> None:
        with outer, inner:
            await work()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(limited)
        await stage.at_work()
        stage.asked()
        inner.deadline = trio.current_time()
        outer.deadline = inner.deadline + GAP
    assert inner.cancelled_caught or outer.cancelled_caught, "no timeout"


async def _timed_out_on_asyncio(stage: Stage, work: Work) -> None:
    outer, inner = asyncio.timeout(None), asyncio.timeout(None)

    async def limited() -> None:
        async with outer, inner:
            await work()

    task = asyncio.ensure_future(limited())
    await stage.at_work()
    stage.asked()
    now = asyncio.get_running_loop().time()
    inner.reschedule(now)
    outer.reschedule(now + GAP)
    await asyncio.wait({task})
    assert not task.cancelled(), "cancelled, though it has timed out"
    assert isinstance(task.exception(), TimeoutError), f"{task.exception()!r}, though it has timed out"


# A query


def ask(stage: Stage) -> Any:
    return query(prompt=stage.ticking, options=stage.options())


async def block_ends(stage: Stage) -> None:
    async with ask(stage) as messages:
        await anext(aiter(messages))
        await stage.at_work()
        stage.asked()
    stage.look()


async def aclose(stage: Stage) -> None:
    messages = ask(stage)
    iterator = aiter(messages)
    await anext(iterator)
    await stage.at_work()
    stage.asked()
    await messages.aclose()
    stage.look()


async def closed_by_another_task(stage: Stage) -> None:
    messages = ask(stage)
    await another_task_closes(stage, lambda: consume(messages), messages.close)


async def bare_break(stage: Stage) -> None:
    async for _ in ask(stage):
        await stage.at_work()
        stage.asked()
        break
    stage.look_on()


async def left_to_the_loop(stage: Stage) -> None:
    """Nobody closes it: the program's main function returns.

    On trio it is held, for tasks cannot be left; on asyncio a task reads it.
    """
    if on_trio():
        iterator = aiter(ask(stage))
        HELD.append(iterator)
        await anext(iterator)
    else:
        HELD.append(asyncio.ensure_future(consume(ask(stage))))
    await stage.at_work()
    stage.asked()


async def waits_to_be_killed(stage: Stage) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(consume, ask(stage))
        await stage.at_work()
        stage.say({"at": "ready"})


HELD: list[object] = []  # what must not be collected before the event loop ends


async def not_stopped(stage: Stage) -> None:
    """Whether one would see it if something were left."""
    async with ask(stage) as messages:
        await anext(aiter(messages))
        await stage.at_work()
        stage.asked()
        stage.look()
        stage.say({"at": "stopped", **stage.seen})
        await anyio.sleep(3600)


# A client


async def talk(stage: Stage) -> None:
    async with ClaudeSDKClient(stage.options()) as client:
        await client.query(stage.ticking)
        await consume(client.receive_response())


async def client_block_ends(stage: Stage) -> None:
    async with ClaudeSDKClient(stage.options()) as client:
        await client.query(stage.ticking)
        await stage.at_work()
        stage.asked()
    stage.look()


async def disconnect(stage: Stage) -> None:
    client = ClaudeSDKClient(stage.options())
    await client.connect(stage.ticking)
    await stage.at_work()
    stage.asked()
    await client.disconnect()
    stage.look()


async def disconnected_by_another_task(stage: Stage) -> None:
    client = ClaudeSDKClient(stage.options())
    await client.connect(stage.ticking)
    await another_task_closes(stage, lambda: consume(client.receive_messages()), client.disconnect)


async def client_left_to_the_loop(stage: Stage) -> None:
    client = ClaudeSDKClient(stage.options())
    HELD.append(client)
    await client.connect(stage.ticking)
    await stage.at_work()
    stage.asked()


async def client_waits_to_be_killed(stage: Stage) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(talk, stage)
        await stage.at_work()
        stage.say({"at": "ready"})


NOT_STOPPED = "query: not stopped, to see that it is seen"

STOPS: dict[str, Program] = {
    NOT_STOPPED: not_stopped,
    "query: end of `async with`": block_ends,
    "query: aclose()": aclose,
    "query: closed by another task": closed_by_another_task,
    "query: cancelled once": lambda stage: cancelled(stage, lambda: consume(ask(stage)), 1),
    "query: cancelled twice": lambda stage: cancelled(stage, lambda: consume(ask(stage)), 2),
    "query: nested timeouts": lambda stage: timed_out(stage, lambda: consume(ask(stage))),
    "query: bare break": bare_break,
    "query: end of the event loop": left_to_the_loop,
    "query: program killed": waits_to_be_killed,
    "client: end of `async with`": client_block_ends,
    "client: disconnect()": disconnect,
    "client: disconnected by another task": disconnected_by_another_task,
    "client: cancelled once": lambda stage: cancelled(stage, lambda: talk(stage), 1),
    "client: cancelled twice": lambda stage: cancelled(stage, lambda: talk(stage), 2),
    "client: nested timeouts": lambda stage: timed_out(stage, lambda: talk(stage)),
    "client: end of the event loop": client_left_to_the_loop,
    "client: program killed": client_waits_to_be_killed,
}
