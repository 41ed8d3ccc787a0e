"""Clean-up and supervision that wait for what will never come."""

from __future__ import annotations

import asyncio

import anyio
from anyio.abc import ObjectSendStream

from quiesce.audit import Limits

from .entry import ASYNCIO, NOT_TRIO_CANCEL, TICK, Entry, Finds

# Clean-up waits for a worker that was cancelled with it.


async def work(done: anyio.Event) -> None:
    await anyio.sleep(TICK)
    done.set()


async def work_to_the_end(done: anyio.Event) -> None:
    try:
        await anyio.sleep(TICK)
    finally:
        done.set()


async def waits_for_the_cancelled() -> None:
    done = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(work, done)
        try:
            await anyio.sleep(3 * TICK)
        finally:
            with anyio.CancelScope(shield=True):
                await done.wait()  # stuck: waits-for-the-cancelled


async def waits_for_what_always_comes() -> None:
    done = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(work_to_the_end, done)
        try:
            await anyio.sleep(3 * TICK)
        finally:
            with anyio.CancelScope(shield=True):
                await done.wait()


# A producer gives up at an outage, and does not close its stream.


async def gives_up_silently(send: ObjectSendStream[int]) -> None:
    try:
        await anyio.sleep(TICK)  # stop: open-stream
        await send.send(1)
    except ConnectionError:
        return
    await send.aclose()


async def gives_up_and_closes(send: ObjectSendStream[int]) -> None:
    async with send:
        try:
            await anyio.sleep(TICK)
            await send.send(1)
        except ConnectionError:
            return


async def reads_from_the_silent() -> None:
    send, receive = anyio.create_memory_object_stream[int](1)
    async with receive, anyio.create_task_group() as group:
        group.start_soon(gives_up_silently, send)
        async for _ in receive:  # stuck: open-stream
            pass


async def reads_to_the_end() -> None:
    send, receive = anyio.create_memory_object_stream[int](1)
    async with receive, anyio.create_task_group() as group:
        group.start_soon(gives_up_and_closes, send)
        async for _ in receive:
            pass


# Clean-up polls for what only the cancelled code would have done.


async def polls_for_ever() -> None:
    is_empty = False
    try:
        await anyio.sleep(TICK)
        is_empty = True
    finally:
        with anyio.CancelScope(shield=True):
            while not is_empty:
                await anyio.sleep(0)  # stuck: polls-for-ever


async def polls_for_a_while() -> None:
    is_empty = False
    try:
        await anyio.sleep(TICK)
        is_empty = True
    finally:
        with anyio.CancelScope(shield=True):
            for _ in range(3):
                if not is_empty:
                    await anyio.sleep(0)


# Somebody cancels a worker, and its supervisor never learns of it.


async def supervises_by_event() -> None:
    done = anyio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(work(done))
        await done.wait()  # stuck: supervised-by-event


async def supervises_by_waiting() -> None:
    done = anyio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(work(done))


ENTRIES = [
    Entry(
        "waits-for-the-cancelled",
        waits_for_the_cancelled,
        waits_for_what_always_comes,
        (Finds("hang", "waits_for_the_cancelled", "scope/early", stuck="waits-for-the-cancelled"),),
        {"stops": "scope", "limits": Limits(hang_after=0.1)},
    ),
    Entry(
        "open-stream",
        reads_from_the_silent,
        reads_to_the_end,
        (
            Finds(
                "hang",
                "reads_from_the_silent",
                "raise/late",
                stuck="open-stream",
                stop="open-stream",
            ),
        ),
        {"stops": "raise", "limits": Limits(hang_after=0.1)},
        also={("unclosed", "*MemoryObjectSendStream*"): "the stream that was not closed says so itself"},
    ),
    Entry(
        "polls-for-ever",
        polls_for_ever,
        polls_for_a_while,
        (
            Finds(
                "hang",
                "polls_for_ever",
                "cancel/early",
                on_trio="cancel/unstarted",
                stuck="polls-for-ever",
                says="it runs forever",
            ),
        ),
        {"stops": "cancel", "limits": Limits(steps=500, hang_after=0.1)},
    ),
    Entry(
        "supervised-by-event",
        supervises_by_event,
        supervises_by_waiting,
        (
            Finds(
                "hang",
                "supervises_by_event",
                "descendant/early",
                stuck="supervised-by-event",
                severity="warning",
            ),
        ),
        {"stops": "descendant", "phases": "early,late", "limits": Limits(hang_after=0.1)},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_CANCEL,
    ),
]
