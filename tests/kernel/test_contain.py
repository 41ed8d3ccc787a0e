"""Demand 14: tasks whose context descends from a block, whoever started them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Self

import anyio
import pytest

from quiesce import Grace, Inflight, Reason, Scope, contain, current_scope, current_token, guarded, shielded
from quiesce.kernel.base.rungs import STALLED
from quiesce.kernel.loops.asyncio_child import AsyncioHandle, OwnedTask
from tests.kernel.temperaments import sleeper, turns, virtual_asyncio
from tests.world import asyncio_only, trio_only

pytestmark = asyncio_only

QUICK = Grace(cancel=0.05, terminate=0.05, kill=0.0)
# For tests that count cancels. On a busy machine, two rungs that are shorter than `STALLED` may be due in one turn
# of the loop: the task then gets both cancels as one. Of longer ones, the second is never due before the task has had
# a turn.
TWO_TURNS = Grace(cancel=2 * STALLED, terminate=2 * STALLED, kill=0.0)
PATIENT = Grace(cancel=60)
SOON = 10.0  # seconds that a machine that stalls may take for what takes none; who waits in vain waits for a minute


def start(fn: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
    """As a library would: a task that nobody waits for."""
    task: asyncio.Task[Any] = asyncio.ensure_future(fn(*args))
    _held.add(task)
    task.add_done_callback(_held.discard)
    return task


_held: set[asyncio.Task[Any]] = set()


class Cleaner:
    """Cleans up for a while when it is cancelled, and counts the cancels it got."""

    def __init__(self, seconds: float = 0.03) -> None:
        self.seconds = seconds
        self.cancels = 0
        self.tidy = False

    async def __call__(self) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            self.cancels += 1
            try:
                await asyncio.sleep(self.seconds)
                self.tidy = True
            except asyncio.CancelledError:
                self.cancels += 1
                raise


class Refuser:
    """Swallows every cancel until it is let go; as a block, at its end, so that it does not outlive a test that fails."""

    def __init__(self) -> None:
        self.cancels = 0
        self.free = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.free = True

    async def __call__(self) -> None:
        while not self.free:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.cancels += 1


async def fails_in(seconds: float, error: Exception) -> None:
    await asyncio.sleep(seconds)
    raise error


# Whose tasks ------------------------------------------------------------------------------------------------


async def test_a_task_that_a_library_left_behind_is_cancelled_and_has_cleaned_up() -> None:
    cleaner = Cleaner()
    async with contain() as box:
        task = start(cleaner)
        await turns()
        assert box.report is None
    assert task.cancelled()
    assert cleaner.cancels == 1
    assert cleaner.tidy
    assert box.report is not None
    assert box.report.clean
    assert [(outcome.name, outcome.state) for outcome in box.report.outcomes] == [
        ("Cleaner.__call__", "cancelled")
    ]


async def test_trap_30_tasks_of_tasks_of_tasks_are_found() -> None:
    cleaners = [Cleaner(), Cleaner(), Cleaner()]

    async def library(depth: int) -> None:
        start(cleaners[depth])
        if depth:
            start(library, depth - 1)

    async with contain() as box:
        start(library, 2)
        await turns(6)
    assert all(cleaner.tidy and cleaner.cancels == 1 for cleaner in cleaners)
    assert box.report is not None
    assert len(box.report.outcomes) == 3


async def test_tasks_from_before_beside_and_after_the_block_are_nobody_elses_business() -> None:
    async def beside() -> None:
        await ready.wait()
        inside.append(start(asyncio.sleep, 0.03))

    ready, inside = asyncio.Event(), list[asyncio.Task[Any]]()
    before = start(asyncio.sleep, 0.05)
    other = start(beside)
    async with contain():
        ready.set()
        await turns()
    after = start(asyncio.sleep, 0.01)
    await asyncio.wait([before, other, after, *inside])
    assert not any(task.cancelled() for task in [before, other, after, *inside])


async def test_a_task_that_is_done_is_not_reported() -> None:
    async with contain() as box:
        await start(asyncio.sleep, 0)
    assert box.report is not None
    assert box.report.outcomes == []
    assert box.report.clean


@pytest.mark.real_time
async def test_tasks_that_come_by_way_of_callbacks_and_threads_are_found() -> None:
    cleaners = [Cleaner(), Cleaner()]
    loop = asyncio.get_running_loop()

    def in_a_thread() -> None:
        loop.call_soon_threadsafe(start, cleaners[1])

    async with contain():
        loop.call_soon(start, cleaners[0])
        await asyncio.to_thread(in_a_thread)
        await turns()
    assert all(cleaner.tidy for cleaner in cleaners)


async def test_a_task_with_a_context_of_its_own_that_descends_is_found() -> None:
    cleaner = Cleaner()
    async with contain():
        asyncio.get_running_loop().create_task(cleaner(), context=contextvars.copy_context())
        await turns()
    assert cleaner.tidy


async def test_a_task_with_an_empty_context_is_missed_as_documented() -> None:
    async with contain() as box:
        task = asyncio.get_running_loop().create_task(asyncio.sleep(0.02), context=contextvars.Context())
        await turns()
    assert box.report is not None
    assert box.report.outcomes == []
    await task
    assert not task.cancelled()


async def test_a_task_that_is_inside_a_scope_of_its_own_is_found() -> None:
    log: list[str] = []
    elsewhere = await Scope.open("elsewhere")

    async def library(owner: Scope | None) -> None:
        async with Scope("inner", scope=owner) as scope:
            scope.spawn(sleeper, log, "child", 0.01)
            await asyncio.sleep(1000)

    async with contain() as box:
        tasks = [start(library, None), start(library, elsewhere)]
        await turns()
    assert all(task.cancelled() for task in tasks)
    assert log == ["child stops"] * 2 + ["child is tidy"] * 2
    assert box.report is not None
    assert box.report.clean
    await elsewhere.close()


async def test_a_scope_with_an_owner_outside_is_left_to_that_owner() -> None:
    cleaner = Cleaner()
    app = await Scope.open("app")

    async def service() -> None:
        start(cleaner)
        await asyncio.sleep(1000)

    async with contain() as box:
        session = await Scope.open("session", scope=app)
        session.spawn(service)
        await turns()
    assert box.report is not None
    assert box.report.outcomes == []
    assert cleaner.cancels == 0
    async with contain():
        pass
    await app.close()
    for task in list(_held):
        task.cancel()
    await asyncio.wait(list(_held))


@pytest.mark.worlds("asyncio-eager")
async def test_eager_tasks_are_found() -> None:
    cleaner = Cleaner()
    async with contain() as box:
        start(cleaner)  # has run up to its first await by now
        start(asyncio.sleep, 0)
    assert cleaner.tidy
    assert box.report is not None
    assert len(box.report.outcomes) == 2


# Quiesce's own inside it ------------------------------------------------------------------------------------


async def test_scopes_opened_inside_are_stopped_through_the_containment() -> None:
    log: list[str] = []
    async with contain() as box:
        session = await Scope.open("session")
        session.spawn(sleeper, log, "child", 0.02)
        current_scope().spawn(sleeper, log, "own", 0.01)
        await turns()
    assert session.state == "settled"
    assert sorted(log) == ["child is tidy", "child stops", "own is tidy", "own stops"]
    assert box.report is not None
    assert box.report.clean


async def test_what_was_opened_in_the_block_lasts_while_the_tasks_in_it_clean_up() -> None:
    log: list[str] = []

    async def library() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.02)
            log.append(f"the session is {session.state}")

    async with contain():
        session = await Scope.open("session")
        session.spawn(sleeper, log, "session")
        start(library)
        await turns()
    assert log == ["the session is open", "session stops", "session is tidy"]


async def test_a_clean_up_in_the_body_of_somebodys_scope_is_not_cut() -> None:
    cleaner = Cleaner()

    async def library() -> None:
        async with Scope("inner"):
            await cleaner()

    async with contain():
        task = start(library)
        await turns()
        task.cancel()
        await turns()
    assert cleaner.cancels == 1
    assert cleaner.tidy


async def test_tasks_that_a_child_of_an_inner_scope_started_are_found() -> None:
    cleaner = Cleaner()

    async def child() -> None:
        start(cleaner)
        await asyncio.sleep(1000)

    async with contain():
        session = await Scope.open("session")
        session.spawn(child)
        await turns()
    assert cleaner.tidy
    assert session.state == "settled"


async def test_shielded_clean_up_inside_it_is_not_cut() -> None:
    log: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.02)
        log.append("flushed")

    async def library() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await shielded(slow)

    async with contain():
        start(library)
        await turns()
    assert log == ["flushed"]


async def test_closing_the_current_scope_inside_does_not_end_the_containment() -> None:
    cleaner = Cleaner()
    began = anyio.current_time()
    async with contain(grace=PATIENT) as box:
        start(cleaner)
        await turns()
        await current_scope().close()
        assert cleaner.cancels == 0
    assert cleaner.tidy
    assert box.report is not None
    assert box.report.clean
    assert anyio.current_time() - began < SOON


async def test_its_token_is_cancelled_with_the_reason() -> None:
    reasons: list[Reason | None] = []

    async def library() -> None:
        token = current_token()
        try:
            await asyncio.sleep(1000)
        finally:
            reasons.append(token.reason)

    async with contain(name="tools"):
        start(library)
        await turns()
    assert reasons[0] is not None
    assert reasons[0].kind == "parent"
    assert "tools" in reasons[0].message


# Cancelled once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["await", "gather", "wait_for", "task group", "two task groups"])
async def test_a_task_that_gets_its_cancel_from_another_is_cancelled_once(how: str) -> None:
    cleaners = [Cleaner(), Cleaner()]

    async def library() -> None:
        if how == "await":
            await start(cleaners[0])
        elif how == "gather":
            await asyncio.gather(*(cleaner() for cleaner in cleaners))
        elif how == "wait_for":
            await asyncio.wait_for(start(cleaners[0]), 100)
        elif how == "task group":
            async with asyncio.TaskGroup() as group:
                for cleaner in cleaners:
                    group.create_task(cleaner())
        else:
            async with asyncio.TaskGroup() as outer:
                outer.create_task(nested())

    async def nested() -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(cleaners[0]())
            await asyncio.sleep(1000)

    for _ in range(5):  # in whatever order the tasks are found
        cleaners[:] = [Cleaner(), Cleaner()]
        async with contain() as box:
            start(library)
            await turns(6)
        used = [cleaner for cleaner in cleaners if cleaner.cancels]
        assert used
        assert all(cleaner.cancels == 1 and cleaner.tidy for cleaner in used)
        assert box.report is not None
        assert box.report.clean


async def test_a_child_of_the_block_hands_its_cancel_on_too() -> None:
    cleaners = [Cleaner(), Cleaner()]

    async def child() -> None:
        async with asyncio.TaskGroup() as group:
            for cleaner in cleaners:
                group.create_task(cleaner())

    for _ in range(5):
        cleaners[:] = [Cleaner(), Cleaner()]
        async with contain() as box:
            current_scope().spawn(child)
            await turns(6)
        assert all(cleaner.cancels == 1 and cleaner.tidy for cleaner in cleaners)
        assert box.report is not None
        assert box.report.clean


async def test_one_that_awaits_another_without_handing_its_cancel_on() -> None:
    cleaner = Cleaner()

    async def library() -> None:
        task = start(cleaner)
        await asyncio.wait([task])

    async def shields() -> None:
        await asyncio.shield(start(cleaner))

    for leaves in (library, shields):
        cleaner = Cleaner()
        async with contain():
            start(leaves)
            await turns()
        assert cleaner.cancels == 1
        assert cleaner.tidy


async def test_members_of_a_task_group_whose_owner_swallowed_its_cancel_are_cancelled_in_the_end() -> None:
    cleaner = Cleaner(0)

    async def library() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(cleaner())
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async with contain(grace=Grace(cancel=0.05, terminate=1, kill=1)) as box:
        start(library)
        await turns(6)
    assert cleaner.cancels == 1
    assert box.report is not None
    assert box.report.clean


@pytest.mark.parametrize("inside", ["plain", "gather", "shield", "wait_for"])
async def test_a_clean_up_that_is_under_way_when_the_block_ends_is_not_cut(inside: str) -> None:
    log: list[str] = []

    async def flush() -> None:
        await asyncio.sleep(0.03)
        log.append("flushed")

    async def library() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            if inside == "plain":
                await flush()
            elif inside == "gather":
                await asyncio.gather(flush(), asyncio.sleep(0.01))
            elif inside == "shield":
                await asyncio.shield(flush())
            else:
                await asyncio.wait_for(flush(), 1)

    async with contain() as box:
        task = start(library)
        await turns()
        task.cancel()
        await turns(4)
    assert log == ["flushed"]
    assert box.report is not None
    assert box.report.clean


@virtual_asyncio
async def test_what_a_clean_up_does_not_wait_for_is_cancelled_at_once() -> None:
    beside, members = Cleaner(1), Cleaner(0.01)

    async def library() -> None:
        gathered = asyncio.gather(members())
        try:
            await beside()  # takes its time to clean up, and `gathered` is awaited only then
        finally:
            await asyncio.wait([gathered])

    async with contain() as box:
        task = start(library)
        await turns()
        task.cancel()
        await turns(4)
        began = anyio.current_time()
    assert members.tidy
    assert members.cancels == beside.cancels == 1
    assert anyio.current_time() - began < 1.005
    assert box.report is not None
    assert box.report.clean


@virtual_asyncio
async def test_one_that_swallowed_an_earlier_cancel_gets_ours_at_once() -> None:
    swallowed: list[str] = []

    async def library() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
        swallowed.append("once")
        await asyncio.sleep(1000)

    began = anyio.current_time()
    async with contain():
        task = start(library)
        await turns()
        task.cancel()
        await turns()
        assert swallowed == ["once"]
    assert task.cancelled()
    assert anyio.current_time() - began < 1


async def test_a_cancelled_body_whose_gather_is_cleaning_up_is_left_with_the_clean_up_done() -> None:
    cleaners = [Cleaner(), Cleaner()]

    async def use() -> None:
        async with contain():
            await asyncio.gather(*(cleaner() for cleaner in cleaners))

    task = start(use)
    await turns()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert all(cleaner.cancels == 1 and cleaner.tidy for cleaner in cleaners)


async def test_a_gather_that_failed_leaves_its_other_members_to_the_containment() -> None:
    """Trap 8: gather leaves siblings running when one fails."""
    cleaner = Cleaner()
    with pytest.raises(OSError, match="one"):
        async with contain() as box:
            await asyncio.gather(fails_in(0.01, OSError("one")), cleaner())
    assert cleaner.tidy
    assert box.report is not None
    assert box.report.clean


async def test_a_gather_that_nobody_awaits_is_not_complained_of() -> None:
    cleaners = [Cleaner(), Cleaner()]
    async with contain():
        forgotten = asyncio.gather(*(cleaner() for cleaner in cleaners))
        await turns()
    assert all(cleaner.tidy for cleaner in cleaners)
    assert forgotten.done()
    del forgotten
    gc.collect()  # where asyncio would say "exception was never retrieved", and this test would fail


async def test_anyio_task_groups_inside() -> None:
    log: list[str] = []

    async def member() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
                log.append("tidy")

    async def library() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(member)
            group.start_soon(member)

    async with contain() as box:
        start(library)
        async with anyio.create_task_group() as group:  # and one in the body itself
            group.start_soon(turns)
        await turns(6)
    assert log == ["tidy", "tidy"]
    assert box.report is not None
    assert box.report.clean


# Keeping ----------------------------------------------------------------------------------------------------


async def test_keepers_are_left_alone() -> None:
    cleaner, kept = Cleaner(), Cleaner()
    async with contain(keep=lambda task: task.get_name() == "keep me") as box:
        start(cleaner)
        keeper = start(kept)
        keeper.set_name("keep me")
        await turns()
    assert cleaner.tidy
    assert kept.cancels == 0
    assert box.report is not None
    assert len(box.report.outcomes) == 1
    keeper.cancel()
    await asyncio.wait([keeper])


async def test_what_an_inner_containment_kept_is_taken_by_the_outer_one() -> None:
    kept = Cleaner()
    async with contain() as outer:
        async with contain(keep=lambda task: True) as inner:
            start(kept)
            await turns()
        assert kept.cancels == 0
    assert kept.cancels == 1
    assert kept.tidy
    assert inner.report is not None
    assert inner.report.outcomes == []
    assert outer.report is not None
    assert len(outer.report.outcomes) == 1


async def test_an_inner_containment_takes_its_own_only() -> None:
    first, second = Cleaner(), Cleaner()
    async with contain() as outer:
        start(first)
        async with contain() as inner:
            start(second)
            await turns()
        assert second.tidy
        assert first.cancels == 0
    assert first.tidy
    assert second.cancels == 1
    for box in (inner, outer):
        assert box.report is not None
        assert len(box.report.outcomes) == 1


async def test_what_an_inner_containment_could_not_end_is_taken_by_the_outer_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with contain(name="outer") as outer:
        with Refuser() as refuser:
            with caplog.at_level(logging.WARNING, "quiesce"):
                async with contain(name="inner", grace=TWO_TURNS) as inner:
                    task = start(refuser)
                    await turns()
            assert inner.report is not None
            assert [left.name for left in inner.report.left] == ["Refuser.__call__"]
            assert "test_contain.py" in inner.report.left[0].stuck_at
            assert "Refuser.__call__" in caplog.text
            assert refuser.cancels == 2
    assert task.done()
    assert outer.report is not None
    assert outer.report.clean
    assert [(outcome.name, outcome.state) for outcome in outer.report.outcomes] == [
        ("Refuser.__call__", "finished")
    ]


async def test_a_containment_in_a_task_inside_has_its_own_tasks_to_itself() -> None:
    cleaner = Cleaner()
    inner = contain(name="inner")

    async def library() -> None:
        async with inner:
            start(cleaner)
            await asyncio.sleep(1000)

    async with contain(name="outer") as outer:
        start(library)
        await turns(6)
    assert cleaner.cancels == 1
    assert cleaner.tidy
    assert inner.report is not None
    assert outer.report is not None
    assert [outcome.name for outcome in inner.report.outcomes] == ["Cleaner.__call__"]
    assert [outcome.name.rpartition(".")[2] for outcome in outer.report.outcomes] == ["library"]
    assert inner.report.clean
    assert outer.report.clean


async def test_what_is_in_a_containment_that_never_ends_is_named_by_the_outer_one() -> None:
    cleaner = Cleaner()
    with Refuser() as refuser:

        async def library() -> None:
            async with contain(name="inner", grace=Grace()):
                start(cleaner)
                await refuser()

        async with contain(name="outer", grace=QUICK) as outer:
            task = start(library)
            await turns(6)
        assert outer.report is not None
        names = {left.name.rpartition(".")[2] for left in outer.report.left}
        assert names == {"library", "__call__", "inner"}
    await asyncio.wait([task])
    while _held:
        await asyncio.wait(list(_held))
    assert cleaner.cancels == 1


async def test_a_predicate_that_fails_keeps_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(task: object) -> bool:
        raise RuntimeError("broken predicate")

    cleaner = Cleaner()
    async with contain(keep=broken):
        start(cleaner)
        await turns()
    assert cleaner.tidy
    assert "broken predicate" in caplog.text


# Bounded ----------------------------------------------------------------------------------------------------


async def test_what_refuses_is_named_after_the_grace_and_stays_owned() -> None:
    owner = await Scope.open("owner")
    with Refuser() as refuser:
        began = anyio.current_time()
        async with contain(grace=TWO_TURNS, scope=owner) as box:
            start(refuser)
            await turns()
        assert anyio.current_time() - began < SOON
        assert refuser.cancels == 2
        assert box.report is not None
        left = box.report.left[0]
        assert (left.kind, left.name) == ("task", "Refuser.__call__")
        if sys.version_info < (3, 12):
            assert "test_contain.py" in left.made_at
        report = await owner.close(deadline=0.05)
        assert [left.name for left in report.left] == ["Refuser.__call__"]
    assert (await owner.close()).clean


async def test_in_debug_mode_the_report_says_where_a_task_was_made() -> None:
    refuser = Refuser()
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    try:
        async with contain(grace=QUICK) as box:
            task = start(refuser)
            await turns()
    finally:
        loop.set_debug(False)
        refuser.free = True
    await asyncio.wait([task])
    assert box.report is not None
    assert "test_contain.py" in box.report.left[0].made_at


async def test_tasks_that_appear_while_others_clean_up_are_found_in_the_end() -> None:
    late = Cleaner()

    async def library() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.01)
            start(late)

    async with contain() as box:
        start(library)
        await turns()
    assert late.cancels in {0, 1}  # 0: cancelled before its first step
    assert box.report is not None
    assert box.report.clean
    assert len(box.report.outcomes) == 2


@pytest.mark.real_time
async def test_a_task_that_starts_itself_anew_for_ever_is_named_when_time_is_over() -> None:
    alive = True

    async def phoenix() -> None:
        try:
            await asyncio.sleep(0.001)
        finally:
            if alive:
                start(phoenix)

    began = anyio.current_time()
    async with contain(grace=QUICK) as box:
        start(phoenix)
        await turns()
    alive = False
    assert anyio.current_time() - began < SOON
    assert box.report is not None
    assert {left.name.rpartition(".")[2] for left in box.report.left} == {"phoenix"}
    await asyncio.sleep(0.01)


async def test_errors_of_adopted_tasks_are_retrieved_and_reported() -> None:
    async def library(error: Exception) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            raise error

    errors = [OSError("one"), KeyError("two")]
    async with contain() as box:
        for error in errors:
            start(library, error)
        await turns()
    assert box.report is not None
    assert {repr(error) for error in box.report.errors} == {repr(error) for error in errors}
    assert sorted(outcome.state for outcome in box.report.outcomes) == ["failed", "failed"]
    gc.collect()  # where asyncio would say "never retrieved", and this test would fail


async def test_a_thousand_tasks() -> None:
    cleaners = [Cleaner(0) for _ in range(1000)]
    async with contain() as box:
        for cleaner in cleaners:
            start(cleaner)
        await turns()
    assert all(cleaner.cancels == 1 for cleaner in cleaners)
    assert box.report is not None
    assert len(box.report.outcomes) == 1000


async def test_what_was_adopted_is_not_kept_in_memory() -> None:
    async with contain() as box:
        task = start(Cleaner(0))
        await turns()
    gone = weakref.ref(task)
    del task, box
    await turns()
    gc.collect()
    assert gone() is None


# The body ---------------------------------------------------------------------------------------------------


async def test_an_error_of_the_body_is_raised_after_the_drain() -> None:
    cleaner = Cleaner()
    error = ValueError("body")
    with pytest.raises(ValueError, match="body") as caught:
        async with contain() as box:
            start(cleaner)
            await turns()
            raise error
    assert caught.value is error
    assert cleaner.tidy
    assert box.report is not None
    assert box.report.reason is not None
    assert box.report.reason.error is error


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_the_closer_cancelled_while_draining(times: int) -> None:
    cleaner = Cleaner(0.1)

    async def use() -> None:
        async with contain():
            start(cleaner)
            await turns()

    task = start(use)
    await turns(6)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([task])
    assert task.cancelled()
    assert task.cancelling() == times
    assert cleaner.cancels == 1
    assert cleaner.tidy


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_the_body_cancelled(times: int) -> None:
    cleaner = Cleaner(0.1)
    after: list[str] = []

    async def use() -> None:
        async with contain():
            start(cleaner)
            await asyncio.sleep(1000)
        after.append("went on")

    task = start(use)
    await turns()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([task])
    assert task.cancelled()
    assert cleaner.cancels == 1
    assert cleaner.tidy
    assert after == []


@pytest.mark.parametrize("again_after", [None, 0, 1, 2])
async def test_cancelled_at_every_turn_of_the_loop_it_leaves_nothing(again_after: int | None) -> None:
    async def use() -> str:
        async with contain():
            start(cleaner)
            await turns(3)
        return "finished"

    for turn in range(1, 14):
        cleaner = Cleaner(0.001)
        task = start(use)
        await turns(turn)
        asked = task.cancel()
        if again_after is not None:
            await turns(again_after)
            task.cancel()
        await asyncio.wait([task])
        assert cleaner.cancels <= 1, f"cancelled at turn {turn}"
        assert cleaner.tidy == bool(cleaner.cancels)  # or it was cancelled before its first step
        assert not _held - {task}
        assert task.cancelled() if asked else task.result() == "finished"


async def test_inside_a_cancelled_anyio_scope_nothing_is_cut() -> None:
    cleaner = Cleaner()
    with anyio.move_on_after(0.02) as scope:
        async with contain():
            start(cleaner)
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert cleaner.cancels == 1
    assert cleaner.tidy


# A swallowed cancel -----------------------------------------------------------------------------------------


async def swallows_one() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(1000)


@pytest.mark.parametrize("something_to_drain", [True, False])
async def test_a_cancel_that_code_inside_swallowed_is_raised_at_the_end(something_to_drain: bool) -> None:
    cleaner = Cleaner()
    after: list[str] = []

    async def use() -> None:
        async with contain():
            if something_to_drain:
                start(cleaner)
            await swallows_one()
            after.append("the library went on")
        after.append("not reached")

    task = start(use)
    await turns()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert after == ["the library went on"]
    assert cleaner.tidy is something_to_drain


async def test_a_swallowed_asyncio_timeout_around_it_is_still_a_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            async with contain():
                await swallows_one()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_swallowed_anyio_cancel_is_caught_by_its_scope() -> None:
    with anyio.move_on_after(0.02) as scope:
        async with contain():
            await swallows_one()
        pytest.fail("the cancel was lost")
    assert scope.cancelled_caught
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancel_that_was_not_delivered_yet_is_raised_once() -> None:
    caught: list[str] = []

    async def use() -> None:
        try:
            async with contain():
                task = asyncio.current_task()
                assert task is not None
                task.cancel()  # and no await after it
        finally:
            await asyncio.sleep(0)  # would raise the second time
            caught.append("clean-up done")

    task = start(use)
    await asyncio.wait([task])
    assert task.cancelled()
    assert caught == ["clean-up done"]


@pytest.mark.parametrize("which", ["asyncio.timeout", "anyio", "wait_for", "task group"])
async def test_a_cancel_that_was_taken_back_properly_is_none_of_ours(which: str) -> None:
    async with contain():
        if which == "asyncio.timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(1000)
        elif which == "anyio":
            with anyio.move_on_after(0.01):
                await asyncio.sleep(1000)
        elif which == "wait_for":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.sleep(1000), 0.01)
        else:
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(fails_in(0.01, OSError()))
                    await asyncio.sleep(1000)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_earlier_cancel_that_somebody_swallowed_before_the_block_is_none_of_ours() -> None:
    async def use() -> str:
        await swallows_one()
        async with contain():
            await asyncio.sleep(0)
        return "went on"

    task = start(use)
    await turns()
    task.cancel()
    assert await task == "went on"


# Stopped by its owner ---------------------------------------------------------------------------------------


async def test_an_owner_that_closes_stops_the_body_and_waits_for_the_drain() -> None:
    cleaner = Cleaner()
    owner = await Scope.open("owner")
    after: list[str] = []

    async def use() -> None:
        async with contain(scope=owner):
            start(cleaner)
            await asyncio.sleep(1000)
        after.append("went on after the block")
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    task = start(use)
    await turns()
    report = await owner.close()
    assert report.clean
    assert cleaner.cancels == 1
    assert cleaner.tidy
    await task
    assert after == ["went on after the block"]


async def test_a_scope_around_it_that_closes() -> None:
    cleaner = Cleaner()
    scope = await Scope.open("outer")

    async def use() -> None:
        async with contain():
            start(cleaner)
            await asyncio.sleep(1000)

    handle = scope.spawn(use)
    await turns()
    report = await scope.close()
    assert report.clean
    assert handle.state == "cancelled"
    assert cleaner.cancels == 1
    assert cleaner.tidy


async def test_an_owner_out_of_time_names_the_block() -> None:
    owner = await Scope.open("owner", grace=QUICK)
    leave = asyncio.Event()

    async def use() -> None:
        async with contain(scope=owner, name="tools"):
            while not leave.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await leave.wait()

    task = start(use)
    await turns()
    report = await owner.close()
    assert [(left.kind, left.name) for left in report.left] == [("containment", "tools")]
    assert "test_contain.py" in report.left[0].stuck_at
    leave.set()
    await asyncio.wait([task])
    assert (await owner.close()).clean


async def test_a_task_inside_that_closes_the_scope_around_it() -> None:
    outer = await Scope.open("outer", grace=PATIENT)
    reports = []
    began = anyio.current_time()

    async def use() -> None:
        async with contain(grace=PATIENT):
            start(closer)
            await asyncio.sleep(1000)

    async def closer() -> None:
        reports.append(await outer.close())

    await outer.spawn(use).wait()
    await turns()
    assert anyio.current_time() - began < SOON
    assert (await outer.close()).clean


async def test_a_task_inside_that_awaits_the_task_at_hand_is_not_cancelled_and_does_not_cancel_it() -> None:
    results: list[object] = []

    async def use() -> str:
        me = asyncio.current_task()
        assert me is not None

        async def waits_for_me() -> None:
            results.append(await me)

        async def through_gather() -> None:
            results.extend(await asyncio.gather(me))

        async with contain(grace=QUICK) as box:
            start(waits_for_me)
            start(through_gather)
            await turns()
        assert box.report is not None
        assert box.report.clean
        assert [outcome.state for outcome in box.report.outcomes] == ["closing", "closing"]
        return "done"

    assert await start(use) == "done"
    await turns(5)
    assert results == ["done", "done"]


@virtual_asyncio
async def test_such_a_task_does_not_hold_up_a_containment_further_out() -> None:
    async def use() -> float:
        me = asyncio.current_task()
        assert me is not None

        async def waits_for_me() -> None:
            await me

        began = anyio.current_time()
        async with contain() as outer, contain():
            start(waits_for_me)
            await turns()
        assert outer.report is not None
        assert [outcome.state for outcome in outer.report.outcomes] == ["closing"]
        return anyio.current_time() - began

    assert await start(use) < 1
    await turns(5)


# Python 3.11 ------------------------------------------------------------------------------------------------


class Factory:
    """Somebody else's task factory."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner
        self.made = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        self.made += 1
        if self.inner is not None:
            return self.inner(loop, coro, **kwargs)
        return asyncio.Task(coro, loop=loop, **kwargs)


async def test_the_task_factory_is_as_it_was_when_the_last_containment_has_closed() -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    first, second = contain(), contain()
    await first.__aenter__()
    await second.__aenter__()
    await second.__aexit__(None, None, None)
    cleaner = Cleaner()
    start(cleaner)
    await turns()
    await first.__aexit__(None, None, None)
    assert cleaner.tidy
    assert loop.get_task_factory() is before


async def test_somebody_elses_task_factory_is_used_and_put_back() -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    theirs, cleaner = Factory(), Cleaner()
    loop.set_task_factory(theirs)
    try:
        async with contain():
            start(cleaner)
            asyncio.get_running_loop().create_task(asyncio.sleep(0), context=contextvars.copy_context())
            await turns()
        assert loop.get_task_factory() is theirs
    finally:
        loop.set_task_factory(before)
    assert theirs.made == 2
    assert cleaner.tidy


async def test_a_task_factory_that_somebody_put_around_ours_stays() -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    cleaner = Cleaner()
    try:
        async with contain():
            theirs = Factory(loop.get_task_factory())
            loop.set_task_factory(theirs)
            start(cleaner)
            await turns()
        assert cleaner.tidy
        assert loop.get_task_factory() is theirs
        await start(asyncio.sleep, 0)
        again = Cleaner()
        async with contain():
            start(again)
            await turns()
        assert again.tidy
        assert loop.get_task_factory() is theirs
    finally:
        loop.set_task_factory(before)


async def test_children_of_scopes_inside_are_not_taken_for_other_peoples_tasks() -> None:
    log: list[str] = []
    app = await Scope.open("app")
    async with contain() as box:
        handle = app.spawn(sleeper, log, "service")
        await turns()
    assert box.report is not None
    assert box.report.outcomes == []
    assert not handle.done
    await app.close()


def test_a_loop_that_is_gone_is_no_reason_to_complain() -> None:
    """A task in the middle of each of these, when its loop was closed under it, is closed by the collector."""

    async def in_all_of_them() -> None:
        async with contain(), Inflight() as inflight:
            inflight.start("a", asyncio.sleep, 1000)
            await guarded(partial(asyncio.sleep, 1000), partial(shielded, asyncio.sleep, 1000))

    loop = asyncio.new_event_loop()
    complaints: list[str] = []
    loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    task = loop.create_task(in_all_of_them())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    del task, loop
    gc.collect()  # an error in here would be an unraisable exception, and fail this test
    assert set(complaints) == {"Task was destroyed but it is pending!"}


# Bad use ----------------------------------------------------------------------------------------------------


@trio_only
async def test_on_trio_it_says_that_nurseries_do_that() -> None:
    with pytest.raises(RuntimeError, match="nursery"):
        async with contain():
            pytest.fail("entered")


async def test_inside_an_async_generator_it_is_refused() -> None:
    async def numbers() -> AsyncIterator[int]:
        async with contain():
            yield 1

    with pytest.raises(RuntimeError, match="async generator"):
        await anext(numbers())


async def test_inside_an_async_context_manager_it_works() -> None:
    cleaner = Cleaner()

    @contextlib.asynccontextmanager
    async def tools() -> AsyncIterator[None]:
        async with contain():
            yield

    async with tools():
        start(cleaner)
        await turns()
    assert cleaner.tidy


async def test_on_an_exit_stack_it_works() -> None:
    cleaner = Cleaner()
    async with contextlib.AsyncExitStack() as stack:
        box = await stack.enter_async_context(contain())
        start(cleaner)
        await turns()
    assert cleaner.tidy
    assert box.report is not None


async def test_it_is_used_once() -> None:
    box = contain(name="tools")
    async with box:
        pass
    with pytest.raises(RuntimeError, match="'tools' was used before"):
        async with box:
            pytest.fail("entered")


async def test_a_predicate_that_is_none_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match="keep"):
        contain(keep="all")  # type: ignore[arg-type]


@asyncio_only
async def test_failures_of_its_own_scope_are_counted_where_they_are_too_many_to_list() -> None:
    async def fail(number: int) -> None:
        raise ValueError(number)

    async with contain() as containment:
        for number in range(150):
            current_scope().spawn(fail, number)
        await anyio.sleep(0.01)
    report = containment.report
    assert report is not None
    assert len(report.errors) == 100
    assert "50 earlier failures are not listed" in report.notes


async def test_children_inside_a_containment_have_the_kernels_own_class_of_task() -> None:
    """On 3.11 the containment's task factory stands in the way: look at its `quiesce_inner` instead."""
    async with contain(), Scope() as scope:
        handle = scope.spawn(sleeper)
        await turns()
        assert isinstance(handle, AsyncioHandle)
        assert isinstance(handle._task, OwnedTask)
        handle.cancel()


async def test_a_clean_up_that_fails_in_its_own_scope_makes_the_report_unclean() -> None:
    async def fail_late() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("the clean-up failed")

    async with contain() as containment:
        current_scope().spawn(fail_late)
        await turns()
    report = containment.report
    assert report is not None
    assert [str(error) for error in report.errors] == ["the clean-up failed"]
    assert not report.clean
    assert not report.left
