"""Tasks of trio that no nursery of the scenario's holds, and scopes that are torn apart."""

from __future__ import annotations

import trio

from quiesce.audit import Limits

from .entry import TICK, Entry, Finds

NOT_ASYNCIO = "written with what only trio has; the same shape on asyncio is an entry of its own"

# A system task is nobody's.


async def poll() -> None:
    await trio.sleep_forever()  # stuck: system-poller


async def polls_in_a_system_task() -> None:
    trio.lowlevel.spawn_system_task(poll)  # leak: system-poller
    await trio.sleep(TICK)


async def polls_in_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(TICK)
        nursery.cancel_scope.cancel()


# Work that is started for the program, not for the caller.


async def save() -> None:
    await trio.sleep(3 * TICK)


async def saves_in_a_system_task() -> None:
    trio.lowlevel.spawn_system_task(save)  # leak: system-save
    await trio.sleep(TICK)


async def saves_in_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(save)
        await trio.sleep(TICK)


# A session cancels its task, and does not wait for it.


class HastySession:
    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.is_over = trio.Event()

    async def __aenter__(self) -> None:
        trio.lowlevel.spawn_system_task(self.tool_call)  # leak: session-left-early

    async def __aexit__(self, *exc: object) -> None:
        self.scope.cancel()

    async def tool_call(self) -> None:
        with self.scope:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
        self.is_over.set()


class PatientSession(HastySession):
    async def __aexit__(self, *exc: object) -> None:
        self.scope.cancel()
        with trio.CancelScope(shield=True):
            await self.is_over.wait()


async def leaves_before_its_task_ends() -> None:
    async with HastySession():
        await trio.sleep(TICK)


async def leaves_after_its_task_ended() -> None:
    async with PatientSession():
        await trio.sleep(TICK)


# A worker with a deadline of its own ends without a word when that is cancelled.


async def work(done: trio.Event) -> None:
    with trio.move_on_after(3600):
        await trio.sleep(TICK)
        done.set()


async def work_to_the_end(done: trio.Event) -> None:
    try:
        with trio.move_on_after(3600):
            await trio.sleep(TICK)
    finally:
        done.set()


async def supervises_by_event() -> None:
    done = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, done)
        await done.wait()  # stuck: worker-with-deadline


async def supervises_by_what_always_comes() -> None:
    done = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work_to_the_end, done)
        await done.wait()


ENTRIES = [
    Entry(
        "system-poller",
        polls_in_a_system_task,
        polls_in_a_nursery,
        (Finds("leaked", "poll", "baseline", leak="system-poller", stuck="system-poller"),),
        worlds=("trio",),
        left_out=NOT_ASYNCIO,
    ),
    Entry(
        "system-save",
        saves_in_a_system_task,
        saves_in_a_nursery,
        (Finds("late", "save", "baseline", leak="system-save"),),
        worlds=("trio",),
        left_out=NOT_ASYNCIO,
    ),
    Entry(
        "session-left-early",
        leaves_before_its_task_ends,
        leaves_after_its_task_ended,
        (Finds("outlived", "HastySession.tool_call", "baseline", leak="session-left-early"),),
        worlds=("trio",),
        left_out=NOT_ASYNCIO,
    ),
    Entry(
        "worker-with-deadline",
        supervises_by_event,
        supervises_by_what_always_comes,
        (
            Finds(
                "hang",
                "supervises_by_event",
                "descendant/early",
                stuck="worker-with-deadline",
                severity="warning",
            ),
        ),
        {"stops": "descendant", "phases": "early,late", "limits": Limits(hang_after=0.1)},
        worlds=("trio",),
        left_out=NOT_ASYNCIO,
    ),
]
