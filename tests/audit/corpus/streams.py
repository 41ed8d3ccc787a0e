"""Async generators and context managers: dropped, closed by somebody else, or reaching into their consumer."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio

from .entry import ASYNCIO, NOT_TRIO_TASKS, TICK, Entry, Finds

BREAKS_TRIO = "asyncio cancels an innocent task where trio itself breaks down: an entry each"

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


async def query_in_a_group() -> AsyncGenerator[int, None]:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)  # leak: group-in-a-dropped-generator
        for number in range(2):
            await anyio.sleep(0)
            yield number
        group.cancel_scope.cancel()


async def drops_its_query() -> None:
    async for _ in query_in_a_group():
        await anyio.sleep(TICK)  # stop: group-in-a-dropped-generator


async def closes_its_query() -> None:
    async with aclosing(query_without_a_group()) as query:
        async for _ in query:
            await anyio.sleep(TICK)


async def query_without_a_group() -> AsyncGenerator[int, None]:
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

    async def __aenter__(self) -> None:
        self.task = asyncio.create_task(read_lines(self.lines))  # leak: dropped-reader
        await asyncio.sleep(0)

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def read_lines(lines: asyncio.Queue[bytes]) -> None:
    while True:
        await lines.get()


class DroppableReader(Reader):
    async def __aenter__(self) -> None:
        await super().__aenter__()
        weakref.finalize(self, self.task.cancel)


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
        (Finds("generator", "tokens", "cancel/early", stuck="dropped-generator", says="still referenced"),),
        {"stops": "cancel"},
        tidy=held.clear,
    ),
    Entry(
        "group-across-yield",
        query_in_a_group,
        query_without_a_group,
        (Finds("bystander", "query_in_a_group", "drop/early", says="although nothing cancelled it"),),
        {"stops": "drop"},
        worlds=ASYNCIO,
        left_out=BREAKS_TRIO,
        also={("unretrieved", "query_in_a_group.aclose"): "closing it in the collector's task fails too"},
    ),
    Entry(
        "group-in-a-dropped-generator",
        drops_its_query,
        closes_its_query,
        (
            Finds(
                "outlived",
                "sleep_forever",
                "cancel/early",
                leak="group-in-a-dropped-generator",
                stop="group-in-a-dropped-generator",
            ),
            Finds("generator", "query_in_a_group", "cancel/early", says="dropped"),
            Finds("unretrieved", "query_in_a_group.aclose", "cancel/early", says="in a different task"),
        ),
        {"stops": "cancel"},
        worlds=ASYNCIO,
        left_out=BREAKS_TRIO,
    ),
    Entry(
        "group-in-a-dropped-generator-on-trio",
        drops_its_query,
        closes_its_query,
        (
            Finds(
                "crash",
                "drops_its_query",
                "cancel/early",
                stop="group-in-a-dropped-generator",
                says="Nursery stack corrupted",
            ),
            Finds("outlived", "sleep_forever", "cancel/early", leak="group-in-a-dropped-generator"),
            Finds("generator", "*query_in_a_group", "cancel/early"),
            Finds("replaced", "drops_its_query", "cancel/early", says="stack corrupted"),
        ),
        {"stops": "cancel"},
        worlds=("trio",),
        left_out=BREAKS_TRIO,
    ),
    Entry(
        "group-closed-elsewhere",
        connection_in_a_group,
        connection_after_a_deadline,
        (Finds("bystander", "connection_in_a_group", "close/early", says="although nothing cancelled it"),),
        {"stops": "close"},
        worlds=ASYNCIO,
        left_out=BREAKS_TRIO,
    ),
    Entry(
        "group-across-yield-on-trio",
        query_in_a_group,
        query_without_a_group,
        (Finds("close", "query_in_a_group", "drop/early", says="trio broke down"),),
        {"stops": "drop"},
        worlds=("trio",),
        left_out=BREAKS_TRIO,
    ),
    Entry(
        "group-closed-elsewhere-on-trio",
        connection_in_a_group,
        connection_after_a_deadline,
        (Finds("close", "connection_in_a_group", "close/early", says="trio broke down"),),
        {"stops": "close"},
        worlds=("trio",),
        left_out=BREAKS_TRIO,
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
