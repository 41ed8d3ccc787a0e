"""Async generators and context managers: dropped, closed by somebody else, or reaching into their consumer."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio

from .entry import ASYNCIO, NOT_TRIO_TASKS, TICK, Entry, Finds

# A consumer leaves its generator in the middle.


async def tokens() -> AsyncGenerator[int, None]:
    for number in range(2):
        await anyio.sleep(0)
        yield number  # stuck: dropped-generator


async def drops_its_stream() -> None:
    async for _ in tokens():
        await anyio.sleep(TICK)  # stop: dropped-generator


async def closes_its_stream() -> None:
    async with aclosing(tokens()) as stream:
        async for _ in stream:
            await anyio.sleep(TICK)


# ... and somebody else still holds it.

held: list[AsyncGenerator[int, None]] = []


async def forgets_a_stream_that_is_held() -> None:
    held[:] = [tokens()]
    async for _ in held[0]:
        await anyio.sleep(TICK)


async def closes_a_stream_that_is_held() -> None:
    held[:] = [tokens()]
    try:
        async for _ in held[0]:
            await anyio.sleep(TICK)
    finally:
        with anyio.CancelScope(shield=True):
            await held[0].aclose()


# A task group round a yield: its scope cancels whoever has entered it, not whoever reads.


async def read() -> None:
    await anyio.sleep(TICK)


async def query_in_a_group() -> AsyncIterator[int]:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        for number in range(2):
            await anyio.sleep(0)
            yield number
        group.cancel_scope.cancel()


async def query_without_a_group() -> AsyncIterator[int]:
    for number in range(2):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
        yield number


# The same in a context manager, closed by another task than the one that opened it.


@asynccontextmanager
async def connection_in_a_group() -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        yield
        group.cancel_scope.cancel()


@asynccontextmanager
async def connection_in_a_deadline() -> AsyncIterator[None]:
    with anyio.fail_after(3600):
        await anyio.sleep(0)
        yield


@asynccontextmanager
async def connection_after_a_deadline() -> AsyncIterator[None]:
    with anyio.fail_after(3600):
        await anyio.sleep(0)
    yield


# A reader that only its context manager's exit would end.


class Reader:
    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def __aenter__(self) -> Reader:
        self.task = asyncio.create_task(read_lines(self.lines))  # leak: dropped-reader
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def read_lines(lines: asyncio.Queue[bytes]) -> None:
    while True:
        await lines.get()


class DroppableReader(Reader):
    async def __aenter__(self) -> Reader:
        await super().__aenter__()
        weakref.finalize(self, self.task.cancel)
        return self


ENTRIES = [
    Entry(
        "dropped-generator",
        drops_its_stream,
        closes_its_stream,
        (
            Finds(
                "generator",
                "tokens",
                "cancel/early",
                stuck="dropped-generator",
                stop="dropped-generator",
            ),
        ),
        {"stops": "cancel"},
    ),
    Entry(
        "held-generator",
        forgets_a_stream_that_is_held,
        closes_a_stream_that_is_held,
        (Finds("generator", "tokens", "cancel/early", stuck="dropped-generator", says="still held"),),
        {"stops": "cancel"},
        tidy=held.clear,
    ),
    Entry(
        "group-across-yield",
        query_in_a_group,
        query_without_a_group,
        (Finds("bystander", "query_in_a_group", "drop/early", says="nobody asked for that"),),
        {"stops": "drop"},
        worlds=ASYNCIO,
        also={("unretrieved", "query_in_a_group.aclose"): "closing it in the collector's task fails too"},
    ),
    Entry(
        "group-closed-elsewhere",
        connection_in_a_group,
        connection_after_a_deadline,
        (Finds("bystander", "connection_in_a_group", "close/early", says="nobody asked for that"),),
        {"stops": "close"},
        worlds=ASYNCIO,
    ),
    Entry(
        "deadline-closed-elsewhere",
        connection_in_a_deadline,
        connection_after_a_deadline,
        (Finds("close", "connection_in_a_deadline", "close/early"),),
        {"stops": "close"},
    ),
    Entry(
        "dropped-reader",
        Reader,
        DroppableReader,
        (Finds("destroyed", "read_lines", "drop/early", leak="dropped-reader"),),
        {"stops": "close,drop"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
]
