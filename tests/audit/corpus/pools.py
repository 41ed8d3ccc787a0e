"""Slots, locks and connections that are lost: nothing is left running, and only a check of one's own can tell."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from .entry import ASYNCIO, LONG, NOT_TRIO_CALLBACKS, NOT_TRIO_CANCEL, NOT_TRIO_TASKS, TICK, Entry, Finds


class Slot:
    """One connection, taken or not. The check looks at the slot of the run that has just ended."""

    last: Slot | None = None

    def __init__(self) -> None:
        self.is_free = True
        Slot.last = self

    def take(self) -> None:
        assert self.is_free
        self.is_free = False

    def give_back(self) -> None:
        self.is_free = True


def the_slot_is_free() -> bool:
    last, Slot.last = Slot.last, None
    return last is None or last.is_free


CHECK = {"check": the_slot_is_free}


# A pool hands a slot over to a waiter that may be cancelled before it learns of it.


class LosingPool:
    def __init__(self) -> None:
        self.slot = Slot()
        self.waiters: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        if self.slot.is_free:
            self.slot.take()
            return
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await waiter  # stop: late-slot
        except asyncio.CancelledError:
            self.was_cancelled(waiter)
            raise

    def was_cancelled(self, waiter: asyncio.Future[None]) -> None:
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def release(self) -> None:
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the slot is taken from hand to hand
                return
        self.slot.give_back()

    async def hold(self) -> None:
        await self.acquire()
        try:
            await asyncio.sleep(TICK)
        finally:
            self.release()

    async def be_used(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.hold())
            await asyncio.sleep(0)
            await self.hold()


class Pool(LosingPool):
    def was_cancelled(self, waiter: asyncio.Future[None]) -> None:
        if waiter.done() and not waiter.cancelled():
            self.release()
        else:
            super().was_cancelled(waiter)


async def uses_a_losing_pool() -> None:
    await LosingPool().be_used()


async def uses_a_pool() -> None:
    await Pool().be_used()


# A slot is given to a task to give back, and the task never runs.


async def serve(slot: Slot) -> None:
    try:
        await asyncio.sleep(TICK)
    finally:
        slot.give_back()


async def trusts_the_task_to_start() -> None:
    slot = Slot()
    async with asyncio.TaskGroup() as group:
        slot.take()
        group.create_task(serve(slot))


async def gives_back_when_the_task_is_done() -> None:
    slot = Slot()
    async with asyncio.TaskGroup() as group:
        slot.take()
        group.create_task(asyncio.sleep(TICK)).add_done_callback(lambda _: slot.give_back())


# Between taking and `try` there is an await.


async def awaits_before_its_try() -> None:
    slot = Slot()
    slot.take()
    await anyio.sleep(TICK)  # stop: half-open
    try:
        await anyio.sleep(TICK)
    finally:
        slot.give_back()


async def tries_before_it_awaits() -> None:
    slot = Slot()
    slot.take()
    try:
        await anyio.sleep(TICK)
        await anyio.sleep(TICK)
    finally:
        slot.give_back()


# Clean-up that awaits before it gives back, as it does when it is stopped only.


@asynccontextmanager
async def says_goodbye_first(slot: Slot, *, attempts: int) -> AsyncIterator[None]:
    """Gives back after a goodbye; a goodbye that is cancelled is tried again, `attempts` times in all."""
    slot.take()
    try:
        yield
    except anyio.get_cancelled_exc_class():
        for left in reversed(range(attempts)):
            try:
                await anyio.sleep(TICK)
                break
            except anyio.get_cancelled_exc_class():
                if not left:
                    raise
        slot.give_back()
        raise
    slot.give_back()


@asynccontextmanager
async def gives_back_whatever_happens(slot: Slot) -> AsyncIterator[None]:
    slot.take()
    try:
        yield
    except anyio.get_cancelled_exc_class():
        await anyio.sleep(TICK)
        raise
    finally:
        slot.give_back()


async def survives_one_cancel() -> None:
    async with says_goodbye_first(Slot(), attempts=1):
        await anyio.sleep(TICK)


async def survives_two_cancels() -> None:
    async with says_goodbye_first(Slot(), attempts=2):
        await anyio.sleep(TICK)


async def survives_any_cancel() -> None:
    async with gives_back_whatever_happens(Slot()):
        await anyio.sleep(TICK)


# A lock that is given back by whoever gets to it.


async def releases_after_a_goodbye() -> None:
    slot = Slot()
    slot.take()
    try:
        await anyio.sleep(TICK)
    except anyio.get_cancelled_exc_class():
        await anyio.sleep(0)  # in a cancelled scope this is where it ends
        slot.give_back()
        raise
    slot.give_back()


async def releases_after_a_shielded_goodbye() -> None:
    slot = Slot()
    slot.take()
    try:
        await anyio.sleep(TICK)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0)
        slot.give_back()
        raise
    slot.give_back()


# The clean-up after a timeout is itself left in the middle.


async def flush() -> None:
    await asyncio.sleep(LONG)


async def leaves_a_flush_to_itself() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        await asyncio.shield(flush())  # leak: stopped-clean-up
        raise


async def waits_for_its_flush() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        flushing = asyncio.ensure_future(flush())
        while not flushing.done():
            try:
                await asyncio.wait([flushing])
            except asyncio.CancelledError:
                continue
        raise


ENTRIES = [
    Entry(
        "late-slot",
        uses_a_losing_pool,
        uses_a_pool,
        (Finds("check", "the_slot_is_free", "cancel/late", stop="late-slot", only=("cancel/late",)),),
        {"stops": "cancel", **CHECK},
        worlds=ASYNCIO,
        left_out="in trio a task that has been rescheduled gets its value; a cancel then waits for the next await",
    ),
    Entry(
        "never-started",
        trusts_the_task_to_start,
        gives_back_when_the_task_is_done,
        (Finds("check", "the_slot_is_free", "shutdown/unstarted"),),
        {"stops": "shutdown", "phases": "unstarted", **CHECK},
        worlds=("asyncio", "uvloop"),
        left_out=f"an eager task has always started; {NOT_TRIO_CALLBACKS}",
    ),
    Entry(
        "half-open",
        awaits_before_its_try,
        tries_before_it_awaits,
        (Finds("check", "the_slot_is_free", "cancel/early", on_trio="cancel/unstarted", stop="half-open"),),
        {"stops": "cancel,scope,timeout,raise", **CHECK},
    ),
    Entry(
        "second-cancel",
        survives_one_cancel,
        survives_any_cancel,
        (
            Finds(
                "check",
                "the_slot_is_free",
                "twice/early",
                only=("twice/early", "twice/late", "thrice/early", "thrice/late"),
            ),
        ),
        {"stops": "cancel,twice,thrice", **CHECK},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_CANCEL,
    ),
    Entry(
        "third-cancel",
        survives_two_cancels,
        survives_any_cancel,
        (Finds("check", "the_slot_is_free", "thrice/early", only=("thrice/early", "thrice/late")),),
        {"stops": "cancel,twice,thrice", **CHECK},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_CANCEL,
    ),
    Entry(
        "level-cancel",
        releases_after_a_goodbye,
        releases_after_a_shielded_goodbye,
        (Finds("check", "the_slot_is_free", "scope/early"),),
        {"stops": "scope", **CHECK},
    ),
    Entry(
        "stopped-clean-up",
        leaves_a_flush_to_itself,
        waits_for_its_flush,
        (Finds("late", "flush", "timeout/early", leak="stopped-clean-up", depth=2),),
        {"stops": "timeout", "depth": 2},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
]
