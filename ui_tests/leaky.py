"""Scenarios with real faults, audited for the reports that the browser looks at."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator


async def poll(queue: asyncio.Queue[int]) -> None:
    while True:
        await queue.get()
        await asyncio.sleep(0.5)


async def client_session() -> None:
    """Ends its poller when all goes well, and forgets it when it is stopped."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    poller = asyncio.create_task(poll(queue))
    for number in range(3):
        queue.put_nowait(number)
        await asyncio.sleep(1)
    poller.cancel()
    await asyncio.gather(poller, return_exceptions=True)


async def stubborn() -> None:
    """Takes every cancellation for a reason to try again."""
    for _ in range(3):
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)


class Pool:
    def __init__(self) -> None:
        self.free = 2
        self.waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        if self.free:
            self.free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        await turn  # a slot that is handed over here is lost if the cancellation comes now

    def release(self) -> None:
        while self.waiting:
            turn = self.waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


POOL = Pool()


async def borrow() -> None:
    await POOL.acquire()
    try:
        await asyncio.sleep(1)
    finally:
        POOL.release()


async def busy_pool() -> None:
    POOL.__init__()  # type: ignore[misc]
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(borrow())
        await borrow()


def pool_is_whole() -> None:
    assert POOL.free == 2, f"{2 - POOL.free} of 2 slots are lost"


async def numbers() -> AsyncIterator[int]:
    ticker = asyncio.create_task(asyncio.sleep(60))
    try:
        for number in range(3):
            await asyncio.sleep(1)
            yield number
    finally:
        await asyncio.sleep(0.1)
        ticker.cancel()


async def fetch(number: int) -> None:
    for _ in range(10):
        await asyncio.sleep(0.1 * (number + 1))


async def beat() -> None:
    while True:  # noqa: ASYNC110
        await asyncio.sleep(0.7)


async def crawler() -> None:
    """A few more than a hundred points, and a heartbeat that only a good end ends."""
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(fetch(number))
        heart = asyncio.create_task(beat())
        for _ in range(24):
            await asyncio.sleep(0.05)
    heart.cancel()


async def tidy() -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(asyncio.sleep(number))


async def broken() -> None:
    await asyncio.sleep(1)
    raise RuntimeError("the <database> is not there & never was")


_counter = itertools.count()


async def moody() -> None:
    """Does something else in every run."""
    for _ in range(next(_counter) % 7 + 1):
        await asyncio.sleep(0)
