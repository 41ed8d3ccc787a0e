"""`DelayedCancel`: the cancel of a child waits while it is busy, and comes once."""

from __future__ import annotations

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.kernel.inner import DelayedCancel, ask_to_leave, cancel_without_deadline, insist
from quiesce.kernel.scope.delayed_cancel import CHECK_EVERY
from tests.kernel.temperaments import cancellation, tidy_up, turns, virtual_worlds

pytestmark = virtual_worlds
PATIENT = Grace(cancel=100)


class Work:
    """Counts the cancels that it gets, and says when they came; then it cleans up for a second."""

    def __init__(self) -> None:
        self.busy = True
        self.cancels: list[float] = []

    def is_busy(self, task: object) -> bool:
        assert task is not None
        return self.busy

    async def run(self) -> None:
        try:
            await anyio.sleep_forever()
        except cancellation():
            self.cancels.append(anyio.current_time())
            try:
                await tidy_up(1.0)
            except cancellation():
                self.cancels.append(anyio.current_time())
                raise
            raise


async def test_one_that_is_not_busy_is_cancelled_at_once() -> None:
    work = Work()
    work.busy = False
    scope = await Scope.open(grace=PATIENT)
    DelayedCancel(scope.spawn(work.run), work.is_busy)
    await turns()
    start = anyio.current_time()
    assert (await scope.close()).elapsed == pytest.approx(1.0)
    assert work.cancels == [start]


async def test_one_that_is_busy_is_cancelled_soon_after_it_is_not() -> None:
    work = Work()
    scope = await Scope.open(grace=PATIENT)
    DelayedCancel(scope.spawn(work.run), work.is_busy)
    await turns()
    start = anyio.current_time()
    scope.cancel()
    await anyio.sleep(10)
    assert work.cancels == []
    work.busy = False
    await anyio.sleep(2 * CHECK_EVERY)
    assert work.cancels == [pytest.approx(start + 10, abs=2 * CHECK_EVERY)]
    assert (await scope.close()).clean
    assert len(work.cancels) == 1, "its clean-up was not interrupted"


async def test_a_check_cancels_it_without_waiting() -> None:
    work = Work()
    scope = await Scope.open(grace=PATIENT)
    delayed = DelayedCancel(scope.spawn(work.run), work.is_busy)
    await turns()
    delayed.check()
    assert work.cancels == []
    scope.cancel()
    delayed.check()
    await turns()
    assert work.cancels == [], "it is busy"
    work.busy = False
    now = anyio.current_time()
    delayed.check()
    delayed.check()
    await turns()
    assert work.cancels == [now]
    assert (await scope.close()).clean
    assert len(work.cancels) == 1


# A child that is asked to leave -----------------------------------------------------------------------------------


class Writer:
    """Ends by itself when it is asked, if it wants to."""

    def __init__(self, *, obliging: bool) -> None:
        self.obliging = obliging
        self.asked = 0
        self.cancels: list[float] = []
        self._leave = anyio.Event()

    def leave(self) -> bool:
        self.asked += 1
        return self.obliging

    async def run(self) -> None:
        try:
            await self._leave.wait()
        except cancellation():
            self.cancels.append(anyio.current_time())
            raise


async def test_a_child_that_is_asked_to_leave_gets_no_first_cancel_but_the_second() -> None:
    writer = Writer(obliging=True)
    scope = await Scope.open(grace=Grace(cancel=1, terminate=1, kill=1))
    ask_to_leave(scope.spawn(writer.run), writer.leave)
    await turns()
    began = anyio.current_time()
    assert (await scope.close()).clean
    assert writer.asked == 1
    assert [round(when - began, 3) for when in writer.cancels] == [1.0]


async def test_one_that_cannot_leave_is_cancelled_at_once() -> None:
    writer = Writer(obliging=False)
    scope = await Scope.open(grace=PATIENT)
    ask_to_leave(scope.spawn(writer.run), writer.leave)
    await turns()
    began = anyio.current_time()
    assert (await scope.close()).clean
    assert writer.cancels == [began]


async def test_whoever_insists_delivers_the_cancel_that_was_kept_back_and_no_other() -> None:
    writer = Writer(obliging=True)
    scope = await Scope.open(grace=PATIENT)
    handle = scope.spawn(writer.run)
    ask_to_leave(handle, writer.leave)
    await turns()
    insist(handle)  # nothing was kept back yet
    await turns()
    assert handle.state == "running"
    scope.cancel()
    await turns()
    assert writer.cancels == []
    began = anyio.current_time()
    insist(handle)
    assert (await scope.close()).clean
    insist(handle)  # it has ended
    assert writer.cancels == [began]


async def test_a_cancel_without_a_deadline_comes_once_however_long_the_clean_up_takes() -> None:
    cancels = 0

    async def slow() -> None:
        nonlocal cancels
        try:
            await anyio.sleep_forever()
        except cancellation():
            cancels += 1
            await tidy_up(10)
            raise

    async with Scope(grace=Grace(cancel=1)) as scope:
        handle = scope.spawn(slow)
        await turns()
        cancel_without_deadline(handle)
        await handle.wait()
        cancel_without_deadline(handle)  # it has ended
    assert (handle.state, cancels) == ("cancelled", 1)
