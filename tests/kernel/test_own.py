"""Demand 12: anybody's async context manager, held in an owner task."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self
from unittest.mock import MagicMock

import anyio
import anyio.abc
import pytest
import trio

from quiesce import Grace, Reason, Scope, ScopeClosed, current_scope
from quiesce.kernel.base.source_places import label_of
from quiesce.kernel.own.context_manager_owner import NotHeld
from quiesce.kernel.own.owned import Held, name_of, own
from tests.kernel.temperaments import (
    Stubborn,
    an_innocent_bystander,
    cancel_soon,
    cancellation,
    in_the_background,
    sleeper,
    swallows,
    tidy_up,
    turns,
    virtual_worlds,
)
from tests.world import World, asyncio_only, trio_only

SHORT = Grace(cancel=0.1, terminate=0.1, kill=0.0)


class Recorder:
    """A context manager that writes down what happens to it, and in which task."""

    def __init__(
        self,
        log: list[Any] | None = None,
        name: str = "it",
        *,
        entering: float = 0.0,
        leaving: float = 0.0,
        suppresses: bool = False,
        fails_entering: BaseException | None = None,
        fails_leaving: BaseException | None = None,
    ) -> None:
        self.log = [] if log is None else log
        self.name = name
        self.entering = entering
        self.leaving = leaving
        self.suppresses = suppresses
        self.fails_entering = fails_entering
        self.fails_leaving = fails_leaving
        self.exit: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] | None = None
        self.tasks: list[int] = []

    async def __aenter__(self) -> Self:
        self.tasks.append(anyio.get_current_task().id)
        if self.entering:
            await anyio.sleep(self.entering)
        if self.fails_entering is not None:
            raise self.fails_entering
        self.log.append(f"{self.name} entered")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.tasks.append(anyio.get_current_task().id)
        self.exit = (kind, error, traceback)
        self.log.append(f"{self.name} leaving")
        if self.leaving:
            await tidy_up(self.leaving)
        self.log.append(f"{self.name} left")
        if self.fails_leaving is not None:
            raise self.fails_leaving
        return self.suppresses


class Pool:
    """What a library with a task group inside gives to its users."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self.group = group
        self.beats = 0
        self.stopped = False

    async def beat(self) -> None:
        try:
            while True:
                self.beats += 1
                await anyio.sleep(0.01)
        finally:
            self.stopped = True

    async def crash(self, error: Exception) -> None:
        raise error

    async def ask(self) -> int:
        await anyio.sleep(0.01)
        return self.beats


@asynccontextmanager
async def pool() -> AsyncIterator[Pool]:
    """As MCP clients and many SDKs are built: it must be left by the task that entered it."""
    async with anyio.create_task_group() as group:
        made = Pool(group)
        group.start_soon(made.beat)
        try:
            yield made
        finally:
            group.cancel_scope.cancel()


async def run_elsewhere(fn: Callable[[], Awaitable[Any]]) -> Any:
    """Run `fn` in a task of its own that has ended when this returns."""
    results = []

    async def call() -> None:
        results.append(await fn())

    async with anyio.create_task_group() as group:
        group.start_soon(call)
    return results[0]


async def opened_elsewhere(cm: Any, **options: Any) -> Held[Any]:
    held: Held[Any] = await run_elsewhere(lambda: own(cm, **options).open())
    return held


# One task ---------------------------------------------------------------------------------------------------


async def test_a_block_gives_the_value_and_leaves_at_its_end() -> None:
    log: list[Any] = []
    async with own(Recorder(log)) as it:
        assert isinstance(it, Recorder)
        log.append("body")
    assert log == ["it entered", "body", "it leaving", "it left"]
    assert it.exit == (None, None, None)


async def test_it_is_entered_and_left_in_one_task_that_is_not_the_users() -> None:
    recorder = Recorder()
    async with own(recorder):
        mine = anyio.get_current_task().id
    assert len(set(recorder.tasks)) == 1
    assert mine not in recorder.tasks


async def test_a_task_group_inside_is_entered_in_one_task_used_from_three_and_closed_from_a_fourth() -> None:
    async with an_innocent_bystander():
        held = await opened_elsewhere(pool())
        made = held.value
        counts = []

        async def use() -> None:
            counts.append(await held.value.ask())

        async with anyio.create_task_group() as users:
            for _ in range(3):
                users.start_soon(use)
        report = await run_elsewhere(held.close)
    assert len(counts) == 3
    assert min(counts) >= 1
    assert made.stopped
    assert report.clean
    assert held.report is report


async def test_opened_in_a_fixture_and_closed_in_its_finaliser() -> None:
    """As async fixtures do: set-up and tear-down are steps of a generator, driven from different tasks."""

    async def fixture() -> AsyncIterator[Pool]:
        held = await own(pool()).open()
        yield held.value
        await held.close()

    steps = fixture()
    made = await run_elsewhere(steps.__anext__)
    assert await made.ask() >= 1
    with pytest.raises(StopAsyncIteration):
        await run_elsewhere_raising(steps.__anext__)
    assert made.stopped


async def run_elsewhere_raising(fn: Callable[[], Awaitable[Any]]) -> None:
    caught: list[BaseException] = []

    async def call() -> None:
        try:
            await fn()
        except BaseException as error:
            caught.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
    raise caught[0]


async def test_two_of_them_are_closed_first_in_first_out() -> None:
    first = await own(pool()).open()
    second = await own(pool()).open()
    one, two = first.value, second.value
    assert (await first.close()).clean
    assert one.stopped
    assert not two.stopped
    assert await two.ask() >= 1
    assert (await second.close()).clean
    assert two.stopped


async def test_two_blocks_overlap_in_an_exit_stack_and_a_task() -> None:
    log: list[Any] = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(own(Recorder(log, "one")))
        await stack.enter_async_context(own(Recorder(log, "two")))
    assert log == ["one entered", "two entered", "two leaving", "two left", "one leaving", "one left"]


@asyncio_only
async def test_trap_07_a_timeout_inside_belongs_to_the_owner_and_not_to_the_opener() -> None:
    @asynccontextmanager
    async def limited() -> AsyncIterator[str]:
        async with asyncio.timeout(0.02):
            yield "limited"

    held = await opened_elsewhere(limited())
    assert held.value == "limited"
    await anyio.sleep(0.04)
    assert held.failed
    with pytest.raises(NotHeld, match="TimeoutError") as caught:
        _ = held.value
    assert isinstance(caught.value.__cause__, TimeoutError)
    with pytest.raises(TimeoutError):
        await held.close()


@asyncio_only
async def test_a_timeout_inside_that_does_not_pass_does_no_harm() -> None:
    @asynccontextmanager
    async def limited() -> AsyncIterator[None]:
        async with asyncio.timeout(5):
            yield

    held = await opened_elsewhere(limited())
    assert (await held.close()).clean


# Contexts ---------------------------------------------------------------------------------------------------

colour: ContextVar[str] = ContextVar("colour", default="none")


async def test_it_runs_in_a_copy_of_the_openers_context_and_sets_nothing_in_it() -> None:
    seen = []

    @asynccontextmanager
    async def paints() -> AsyncIterator[None]:
        seen.append(colour.get())
        token = colour.set("inside")
        yield
        seen.append(colour.get())
        colour.reset(token)

    colour.set("outside")
    async with own(paints()):
        assert colour.get() == "outside"
        colour.set("changed by the body")
    assert seen == ["outside", "inside"]
    assert colour.get() == "changed by the body"


async def test_what_the_body_spawns_belongs_to_the_scope_around_it() -> None:
    async with Scope("outer") as outer:
        async with own(Recorder()):
            assert current_scope() is outer
        assert current_scope() is outer


async def test_what_the_context_manager_spawns_ends_with_it() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def spawns() -> AsyncIterator[None]:
        current_scope().spawn(sleeper, log, "helper", 0.01)
        yield

    async with own(spawns()):
        await turns()
        assert log == []
    assert log == ["helper stops", "helper is tidy"]


async def test_the_error_of_a_task_that_the_context_manager_spawned_reaches_the_body() -> None:
    error = ValueError("helper")

    async def helper() -> None:
        await anyio.sleep(0.01)
        raise error

    @asynccontextmanager
    async def spawns() -> AsyncIterator[None]:
        current_scope().spawn(helper)
        yield

    with pytest.raises(ValueError) as caught:
        async with own(spawns()):
            await anyio.sleep_forever()
    assert caught.value is error


# Closing ----------------------------------------------------------------------------------------------------


async def test_close_waits_until_it_has_been_left() -> None:
    log: list[Any] = []
    held = await own(Recorder(log, leaving=0.05)).open()
    await held.close(reason="enough")
    assert log[-1] == "it left"
    assert held.token.cancelled
    assert held.token.reason == Reason("user", "enough")


async def test_close_twice_and_from_three_tasks_at_once_leaves_once() -> None:
    log: list[Any] = []
    held = await own(Recorder(log, leaving=0.05)).open()
    async with anyio.create_task_group() as closers:
        for _ in range(3):
            closers.start_soon(held.close)
    report = await held.close()
    assert report.clean
    assert log == ["it entered", "it leaving", "it left"]


async def test_close_from_inside_does_not_wait_for_itself() -> None:
    reports = []

    @asynccontextmanager
    async def closes_itself() -> AsyncIterator[None]:
        async def close() -> None:
            reports.append(await helds[0].close())

        async with anyio.create_task_group() as group:
            go = anyio.Event()

            async def later() -> None:
                await go.wait()
                await close()

            group.start_soon(later)
            yield go  # type: ignore[misc]

    helds: list[Held[Any]] = []
    before = anyio.current_time()
    helds.append(await own(closes_itself(), grace=Grace(cancel=60)).open())
    helds[0].value.set()
    await turns(5)
    report = await helds[0].close()
    assert report.clean
    assert len(reports) == 1
    assert anyio.current_time() - before < 10


async def test_closing_from_inside_the_leaving_does_not_cancel_the_leaving() -> None:
    log: list[Any] = []
    helds: list[Held[None]] = []

    @asynccontextmanager
    async def closes_itself() -> AsyncIterator[None]:
        yield
        await helds[0].close()
        await anyio.sleep(0.02)
        log.append("left")

    helds.append(await own(closes_itself()).open())
    await helds[0].close()
    assert log == ["left"]


async def test_close_from_an_async_generators_finaliser() -> None:
    held = await own(pool()).open()
    made = held.value

    async def uses() -> AsyncIterator[int]:
        try:
            while True:
                yield await held.value.ask()
        finally:
            await held.close()

    steps = uses()
    await steps.__anext__()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # trio's own, about the generator
        del steps
        gc.collect()
    while not made.stopped:
        await anyio.sleep(0.01)
    assert (await held.close()).clean


@asyncio_only
@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_a_closer_that_is_cancelled_finishes_leaving_and_then_gets_its_cancel(cancels: int) -> None:
    log: list[Any] = []
    held = await own(Recorder(log, leaving=0.1)).open()

    async def close() -> None:
        try:
            await held.close()
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    closer = asyncio.ensure_future(close())
    for _ in range(cancels):
        await asyncio.sleep(0.01)
        closer.cancel()
    await asyncio.wait([closer])
    assert closer.cancelled()
    assert log == ["it entered", "it leaving", "it left", "cancelled"]
    assert held.report is not None
    assert held.report.clean


async def test_a_closer_inside_a_cancelled_anyio_scope_finishes_leaving() -> None:
    log: list[Any] = []
    held = await own(Recorder(log, leaving=0.05)).open()
    with anyio.CancelScope() as outer:
        outer.cancel()
        await held.close()
        log.append("not reached")
    assert outer.cancelled_caught
    assert log == ["it entered", "it leaving", "it left"]


@virtual_worlds
async def test_one_that_does_not_leave_is_bounded_by_its_grace_and_named() -> None:
    release = anyio.Event()

    @asynccontextmanager
    async def clings() -> AsyncIterator[None]:
        yield
        while not release.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await release.wait()
            except asyncio.CancelledError:
                pass

    held = await own(clings()).open()
    before = anyio.current_time()
    report = await held.close(deadline=0.1)
    assert anyio.current_time() - before == pytest.approx(0.1)
    assert [left.name for left in report.left] == [
        "test_one_that_does_not_leave_is_bounded_by_its_grace_and_named.<locals>.clings"
    ]
    assert "in test_one_that_does_not_leave" in report.left[0].stuck_at
    assert "test_own.py" in report.left[0].made_at
    release.set()
    assert (await held.close()).clean


@virtual_worlds
async def test_one_that_leaves_slowly_is_cancelled_when_its_time_is_over() -> None:
    log: list[Any] = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        yield
        try:
            await anyio.sleep(10)
        except cancellation():
            log.append("cancelled")
            raise

    held = await own(slow(), grace=SHORT).open()
    before = anyio.current_time()
    report = await held.close()
    assert report.clean
    assert log == ["cancelled"]
    assert anyio.current_time() - before == pytest.approx(0.1)


@virtual_worlds
async def test_a_block_whose_context_manager_does_not_leave_ends_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = anyio.Event()

    @asynccontextmanager
    async def clings() -> AsyncIterator[None]:
        yield
        while not release.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await release.wait()
            except asyncio.CancelledError:
                pass

    before = anyio.current_time()
    owned = own(clings(), name="leech", grace=SHORT)
    async with owned:
        pass
    assert anyio.current_time() - before == pytest.approx(0.2)
    assert owned.report is not None
    assert [left.name for left in owned.report.left] == ["leech"]
    assert "leech" in caplog.text
    release.set()
    await turns(5)


@virtual_worlds
async def test_one_that_waits_on_purpose_can_be_given_the_time() -> None:
    log: list[Any] = []
    async with own(anyio.create_task_group(), grace=Grace(cancel=float("inf"))) as group:
        group.start_soon(anyio.sleep, 60)
        group.start_soon(note_after, log, 30)
    assert log == ["done"]


async def note_after(log: list[Any], seconds: float) -> None:
    await anyio.sleep(seconds)
    log.append("done")


async def test_the_error_of_leaving_is_raised_to_everybody_who_closes() -> None:
    error = OSError("broken pipe")
    held = await own(Recorder(fails_leaving=error)).open()
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            await held.close()
        assert caught.value is error
    assert held.error is error
    assert held.report is not None
    assert not held.report.left
    assert not held.report.clean
    assert held.report.errors == [error]


async def test_a_cancelled_closer_keeps_its_cancel_and_is_told_of_the_error() -> None:
    error = OSError("broken pipe")
    held = await own(Recorder(leaving=0.02, fails_leaving=error)).open()
    seen: list[BaseException] = []
    with anyio.CancelScope() as outer:
        outer.cancel()
        try:
            await held.close()
        except BaseException as cancelled:
            seen.append(cancelled)
            raise
    assert isinstance(seen[0], cancellation())
    assert seen[0].__cause__ is error


# Opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["open", "block"])
async def test_an_error_while_entering_is_raised_itself(form: str) -> None:
    error = ConnectionError("refused")
    recorder = Recorder(entering=0.01, fails_entering=error)
    with pytest.raises(ConnectionError) as caught:
        if form == "open":
            await own(recorder).open()
        else:
            async with own(recorder):
                pytest.fail("entered")
    assert caught.value is error
    assert recorder.exit is None


@pytest.mark.parametrize("form", ["open", "block"])
async def test_a_cancelled_open_leaves_nothing_half_entered(form: str) -> None:
    log: list[Any] = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            await anyio.sleep(10)
        finally:
            log.append("stops")
            await tidy_up(0.02)
            log.append("is tidy")
        yield

    with anyio.move_on_after(0.01) as outer:
        try:
            if form == "open":
                await own(slow()).open()
            else:
                async with own(slow()):
                    log.append("body")
        finally:
            log.append("open is over")
    assert outer.cancelled_caught
    assert log == ["stops", "is tidy", "open is over"]


@asyncio_only
@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_an_open_cancelled_again_and_again_drains_first(cancels: int) -> None:
    log: list[Any] = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.1)
            log.append("is tidy")
        yield

    async def opens() -> None:
        try:
            await own(slow()).open()
        finally:
            log.append("open is over")

    opener = asyncio.ensure_future(opens())
    for _ in range(cancels):
        await asyncio.sleep(0.01)
        opener.cancel()
    await asyncio.wait([opener])
    assert opener.cancelled()
    assert log == ["is tidy", "open is over"]


@asyncio_only
async def test_a_timeout_around_open_is_a_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await own(Recorder(entering=10)).open()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_trap_05_an_open_cancelled_in_the_tick_of_its_success_is_left_again() -> None:
    """Whatever the backend makes of that race, entered means left."""
    log: list[Any] = []
    for delay in range(6):
        recorder = Recorder(log, str(delay))
        helds: list[Held[Recorder]] = []
        scope = anyio.CancelScope()

        async def opens(
            scope: anyio.CancelScope = scope,
            recorder: Recorder = recorder,
            helds: list[Held[Recorder]] = helds,
        ) -> None:
            with scope:
                helds.append(await own(recorder).open())

        async with anyio.create_task_group() as group:
            group.start_soon(opens)
            await turns(delay)
            scope.cancel()
        if helds:
            assert (await helds[0].close()).clean
        assert log.count(f"{delay} entered") == log.count(f"{delay} left")
    assert "5 entered" in log


@pytest.mark.worlds("asyncio", "uvloop", "trio")  # an eager one has begun by then
async def test_one_whose_opener_is_cancelled_before_it_begins_does_not_begin() -> None:
    """It would meet the scope that it is to use stopped already, and its complaint would go with the cancellation."""

    @asynccontextmanager
    async def uses_its_scope() -> AsyncIterator[None]:
        current_scope().spawn(sleeper)
        yield

    for _ in range(30):  # trio shuffles who is first
        with anyio.CancelScope() as opener:
            opener.cancel()
            with pytest.raises(cancellation()) as caught:
                await own(uses_its_scope()).open()
            assert caught.value.__cause__ is None
            raise caught.value
        assert opener.cancelled_caught


async def test_one_that_will_not_be_cancelled_while_entering_is_left_though_open_was_cancelled() -> None:
    log: list[Any] = []

    @asynccontextmanager
    async def stubborn() -> AsyncIterator[None]:
        await swallows(0.05)
        log.append("entered")
        yield
        log.append("left")

    with anyio.move_on_after(0.01) as outer:
        await own(stubborn()).open()
    assert outer.cancelled_caught
    assert log == ["entered", "left"]


async def test_a_stop_of_the_owner_scope_while_entering_ends_open_with_an_error() -> None:
    scope = await Scope.open("session")
    caught: list[BaseException] = []

    async def opens() -> None:
        try:
            await own(Recorder(entering=10), scope=scope).open()
        except NotHeld as error:
            caught.append(error)

    async with in_the_background(opens):
        await turns()
        assert (await scope.close(reason="enough")).clean
        await turns()
    assert "enough" in str(caught[0])
    assert "being entered" in str(caught[0])


@asyncio_only
async def test_entering_that_is_cancelled_from_inside_is_an_error_and_not_the_openers_cancel() -> None:
    class CancelsItself(Recorder):
        async def __aenter__(self) -> Self:
            raise asyncio.CancelledError("not you")

    with pytest.raises(NotHeld, match="cancelled from inside"):
        await own(CancelsItself()).open()


@virtual_worlds
async def test_one_that_cannot_be_stopped_while_entering_does_not_hold_up_its_opener_for_ever() -> None:
    stubborn = Stubborn()

    @asynccontextmanager
    async def never_entered() -> AsyncIterator[None]:
        await stubborn()
        yield

    scope = await Scope.open("session")
    before = anyio.current_time()

    async def opens() -> None:
        with pytest.raises(NotHeld, match="being entered"):
            await own(never_entered(), scope=scope, grace=SHORT).open()
        assert anyio.current_time() - before == pytest.approx(0.2)

    async with anyio.create_task_group() as group:
        group.start_soon(opens)
        await turns(5)
        report = await scope.close(deadline=0.3)
        assert len(report.left) == 1
    stubborn.let_go()
    assert (await scope.close()).clean


# Failing in use ---------------------------------------------------------------------------------------------


async def test_a_failure_inside_cancels_the_body_and_is_raised_at_its_end() -> None:
    error = ValueError("crash")
    log: list[Any] = []
    async with an_innocent_bystander():
        with pytest.raises(ExceptionGroup) as caught:
            async with own(pool()) as made:
                made.group.start_soon(made.crash, error)
                try:
                    await anyio.sleep_forever()
                finally:
                    log.append("body told")
    assert caught.value.exceptions == (error,)
    assert log == ["body told"]
    assert made.stopped
    await anyio.sleep(0.01)  # and nothing of the cancel is left in this task


async def test_the_error_is_raised_as_it_was_without_our_cancel_as_its_context() -> None:
    seen: list[tuple[BaseException, BaseException | None]] = []

    @asynccontextmanager
    async def watched() -> AsyncIterator[Pool]:
        try:
            async with pool() as made:
                yield made
        except BaseException as error:
            seen.append((error, error.__context__))
            raise

    with pytest.raises(ExceptionGroup) as caught:
        async with own(watched()) as made:
            made.group.start_soon(made.crash, ValueError("crash"))
            await anyio.sleep_forever()
    assert seen == [(caught.value, caught.value.__context__)]


async def test_users_are_told_at_once_while_it_still_cleans_up() -> None:
    log: list[Any] = []

    @asynccontextmanager
    async def tidies() -> AsyncIterator[Pool]:
        try:
            async with anyio.create_task_group() as group:
                yield Pool(group)
        finally:
            await tidy_up(0.1)
            log.append("is tidy")

    held = await own(tidies()).open()
    made = held.value
    made.group.start_soon(made.crash, ValueError("crash"))
    await anyio.sleep(0.01)
    assert log == []
    assert held.failed
    assert held.token.cancelled
    with pytest.raises(NotHeld, match="ended by itself"):
        _ = held.value
    with pytest.raises(ExceptionGroup):
        await held.close()
    assert log == ["is tidy"]
    with pytest.raises(NotHeld, match=r"crash.*") as caught:
        _ = held.value
    assert caught.value.__cause__ is held.error
    assert "test_own.py" in str(caught.value)
    assert "tidies" in str(caught.value)


async def test_one_that_catches_its_own_cancel_ends_the_block_quietly_as_async_with_does() -> None:
    @asynccontextmanager
    async def limited() -> AsyncIterator[None]:
        with anyio.move_on_after(0.02):
            yield

    log = []
    async with own(limited()):
        log.append("body")
        await anyio.sleep(10)
        log.append("never")
    log.append("after")
    assert log == ["body", "after"]
    await anyio.sleep(0.01)


async def test_one_that_ended_by_itself_is_told_to_who_uses_it_and_closes_without_error() -> None:
    @asynccontextmanager
    async def limited() -> AsyncIterator[None]:
        with anyio.move_on_after(0.02):
            yield

    held = await own(limited()).open()
    await anyio.sleep(0.05)
    with pytest.raises(NotHeld, match="ended by itself"):
        _ = held.value
    assert held.failed
    assert (await held.close()).clean


async def test_a_failure_that_nobody_looks_at_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    held = await own(pool()).open()
    held.value.group.start_soon(held.value.crash, ValueError("unseen"))
    await anyio.sleep(0.02)
    del held
    gc.collect()
    assert "its error was never retrieved" in caplog.text
    assert "unseen" in caplog.text


async def test_a_body_that_is_cancelled_while_it_fails_inside_keeps_its_cancel() -> None:
    seen: list[BaseException] = []
    with anyio.CancelScope() as outer:
        try:
            async with own(pool()) as made:
                made.group.start_soon(made.crash, ValueError("crash"))
                outer.cancel()
                await anyio.sleep_forever()
        except BaseException as error:
            seen.append(error)
            raise
    assert outer.cancelled_caught
    assert isinstance(seen[0], cancellation())


# The body's exception ---------------------------------------------------------------------------------------


async def test_the_bodys_exception_reaches_the_context_manager_in_its_own_task() -> None:
    error = ValueError("body")
    recorder = Recorder()
    with pytest.raises(ValueError) as caught:
        async with own(recorder):
            raise error
    assert caught.value is error
    assert recorder.exit is not None
    assert recorder.exit[:2] == (ValueError, error)
    assert recorder.exit[2] is not None
    assert len(set(recorder.tasks)) == 1
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert "hold" not in frames


async def test_a_transaction_rolls_back() -> None:
    log = []

    @asynccontextmanager
    async def transaction() -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            await anyio.sleep(0.01)
            log.append("rolled back")
            raise
        else:
            log.append("committed")

    with pytest.raises(KeyError):
        async with own(transaction()):
            raise KeyError("body")
    async with own(transaction()):
        pass
    assert log == ["rolled back", "committed"]


async def test_what_the_context_manager_suppresses_is_suppressed() -> None:
    async with own(Recorder(suppresses=True)) as recorder:
        raise ValueError("body")
    assert recorder.exit is not None
    assert recorder.exit[0] is ValueError


@virtual_worlds
async def test_an_exception_is_not_suppressed_by_a_clean_up_that_had_to_be_cancelled() -> None:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[None]:
        try:
            yield
        except ValueError:
            await anyio.sleep(100)

    with pytest.raises(ValueError, match="body"):
        async with own(transaction(), grace=SHORT):
            raise ValueError("body")


@virtual_worlds
async def test_a_block_does_not_wait_for_anybody_to_cooperate() -> None:
    before = anyio.current_time()
    async with own(Recorder(), grace=Grace(cooperate=5)):
        pass
    assert anyio.current_time() == before


async def test_what_the_context_manager_raises_instead_is_raised_with_the_bodys_as_context() -> None:
    body, instead = ValueError("body"), OSError("instead")
    with pytest.raises(OSError) as caught:
        async with own(Recorder(fails_leaving=instead)):
            raise body
    assert caught.value is instead
    assert instead.__context__ is body


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, SystemExit, KeyError])
async def test_odd_exceptions_pass_through_unchanged(kind: type[BaseException]) -> None:
    error = kind("odd")
    recorder = Recorder()
    caught: list[BaseException] = []
    try:
        async with own(recorder):
            raise error
    except BaseException as passed:
        caught.append(passed)
    assert caught == [error]
    assert recorder.exit is not None
    assert recorder.exit[1] is error


async def test_a_generator_that_holds_one_can_be_closed() -> None:
    recorder = Recorder()

    async def items() -> AsyncIterator[int]:
        async with own(recorder):
            yield 1
            yield 2

    steps = items()
    assert await steps.__anext__() == 1
    await steps.aclose()  # type: ignore[attr-defined]
    assert recorder.exit is not None
    assert recorder.exit[0] is GeneratorExit


# A cancelled body -------------------------------------------------------------------------------------------


async def test_a_cancelled_body_is_not_committed_and_clean_up_can_await() -> None:
    log = []

    @asynccontextmanager
    async def transaction() -> AsyncIterator[None]:
        try:
            yield
        except cancellation():
            await anyio.sleep(0.05)
            log.append("rolled back")
            raise
        else:
            log.append("committed")

    with anyio.move_on_after(0.01) as outer:
        try:
            async with own(transaction()):
                await anyio.sleep_forever()
        finally:
            log.append("after the block")
    assert outer.cancelled_caught
    assert log == ["rolled back", "after the block"]


async def test_a_cancel_is_never_suppressed() -> None:
    log = []
    with anyio.move_on_after(0.01) as outer:
        async with own(Recorder(suppresses=True)):
            await anyio.sleep_forever()
        log.append("after the block")
        await anyio.sleep(0)
        log.append("and on")
    assert outer.cancelled_caught
    assert log == []


async def test_a_cancelled_body_with_a_task_group_inside_is_drained_before_the_cancel_goes_on() -> None:
    async with an_innocent_bystander():
        with anyio.move_on_after(0.02) as outer:
            async with own(pool()) as made:
                await anyio.sleep_forever()
        assert outer.cancelled_caught
        assert made.stopped


@asyncio_only
async def test_a_timeout_around_the_block_is_a_timeout_error() -> None:
    recorder = Recorder(leaving=0.05)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            async with own(recorder):
                await asyncio.sleep(10)
    assert recorder.log[-1] == "it left"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@asyncio_only
async def test_a_body_cancelled_three_times_is_left_in_peace_and_then_cancelled() -> None:
    recorder = Recorder(leaving=0.1)

    async def uses() -> None:
        async with own(recorder):
            await asyncio.sleep(10)

    user = asyncio.ensure_future(uses())
    for _ in range(3):
        await asyncio.sleep(0.01)
        user.cancel()
    await asyncio.wait([user])
    assert user.cancelled()
    assert recorder.log == ["it entered", "it leaving", "it left"]


async def test_what_fails_while_a_cancelled_body_is_left_is_the_cause_of_the_cancel() -> None:
    error = OSError("broken pipe")
    seen: list[BaseException] = []
    with anyio.move_on_after(0.01):
        try:
            async with own(Recorder(fails_leaving=error)):
                await anyio.sleep_forever()
        except BaseException as cancelled:
            seen.append(cancelled)
            raise
    assert isinstance(seen[0], cancellation())
    assert seen[0].__cause__ is error


async def test_the_cause_of_a_callers_cancel_never_holds_somebody_elses_cancel() -> None:
    """Task groups inside raise a group: of the cancel that was raised in them, and of what failed in their clean-up."""
    error = OSError("broken pipe")
    seen: list[BaseException] = []

    @asynccontextmanager
    async def fails_in_parallel() -> AsyncIterator[None]:
        try:
            yield
        except BaseException as cancelled:
            raise BaseExceptionGroup(
                "both", [cancelled, BaseExceptionGroup("more", [error, cancelled])]
            ) from None

    with anyio.move_on_after(0.01):
        try:
            async with own(fails_in_parallel()):
                await anyio.sleep_forever()
        except BaseException as cancelled:
            seen.append(cancelled)
            raise
    assert isinstance(seen[0], cancellation())
    cause = seen[0].__cause__
    assert isinstance(cause, ExceptionGroup), "a group of cancels is a BaseExceptionGroup"
    [more] = cause.exceptions
    assert isinstance(more, ExceptionGroup)
    assert more.exceptions == (error,)


async def test_a_group_of_nothing_but_cancels_is_no_cause_of_a_callers_cancel() -> None:
    seen: list[BaseException] = []

    @asynccontextmanager
    async def groups() -> AsyncIterator[None]:
        try:
            yield
        except BaseException as cancelled:
            raise BaseExceptionGroup("cancels", [cancelled]) from None

    with anyio.move_on_after(0.01):
        try:
            async with own(groups()):
                await anyio.sleep_forever()
        except BaseException as cancelled:
            seen.append(cancelled)
            raise
    assert isinstance(seen[0], cancellation())
    assert seen[0].__cause__ is None


# Owners -----------------------------------------------------------------------------------------------------


async def test_the_scope_around_it_closes_what_was_left_open() -> None:
    log: list[Any] = []
    async with Scope("outer"):
        held = await own(Recorder(log)).open()
    assert log == ["it entered", "it leaving", "it left"]
    with pytest.raises(NotHeld, match="was left"):
        _ = held.value
    assert (await held.close()).clean


async def test_children_end_before_what_they_were_given() -> None:
    log: list[Any] = []

    async def uses(held: Held[Recorder]) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await tidy_up(0.02)
            log.append(f"value still there: {held.value is not None}")

    scope = await Scope.open("session")
    held = await own(Recorder(log), scope=scope).open()
    scope.spawn(uses, held)
    await turns()
    assert (await scope.close()).clean
    assert log == ["it entered", "value still there: True", "it leaving", "it left"]


async def test_two_in_one_scope_are_left_last_opened_first() -> None:
    log: list[Any] = []
    scope = await Scope.open()
    one = await own(Recorder(log, "one", leaving=0.02), scope=scope).open()
    two = await own(Recorder(log, "two", leaving=0.02), scope=scope).open()
    await scope.close()
    assert log[2:] == ["two leaving", "two left", "one leaving", "one left"]
    assert (await one.close()).clean
    assert (await two.close()).clean


async def test_what_the_body_uses_is_left_after_the_interrupted_body_has_left() -> None:
    log: list[Any] = []
    async with Scope() as scope, own(Recorder(log)):
        scope.cancel()
        try:
            await anyio.sleep_forever()
        finally:
            await tidy_up(0.02)
            log.append("body is tidy")
    assert log == ["it entered", "body is tidy", "it leaving", "it left"]


async def test_a_block_whose_scope_is_closed_by_somebody_else_ends_with_an_error() -> None:
    scope = await Scope.open("session")
    caught: list[BaseException] = []
    recorder = Recorder()

    async def uses() -> None:
        try:
            async with own(recorder, scope=scope):
                await anyio.sleep_forever()
        except NotHeld as error:
            caught.append(error)

    async with in_the_background(uses):
        await turns(5)
        assert (await scope.close(reason="enough")).clean
        await turns(5)
    assert "enough" in str(caught[0])
    assert recorder.exit is not None


async def test_a_child_with_a_block_is_stopped_with_its_scope() -> None:
    recorder = Recorder(leaving=0.02)

    async def uses() -> None:
        async with own(recorder):
            await anyio.sleep_forever()

    scope = await Scope.open("session")
    scope.spawn(uses)
    await turns(5)
    report = await scope.close()
    assert report.clean
    assert [outcome.state for outcome in report.outcomes] == ["cancelled"]
    assert recorder.log == ["it entered", "it leaving", "it left"]


async def test_a_scope_that_has_ended_takes_no_more() -> None:
    async with Scope("over") as scope:
        pass
    with pytest.raises(ScopeClosed, match="open 'Recorder' in"):
        await own(Recorder(), scope=scope).open()


async def test_dropped_without_close_it_warns_and_is_left() -> None:
    log: list[Any] = []
    box = [await own(Recorder(log)).open()]
    with pytest.warns(ResourceWarning, match=r"'Recorder', made at .*test_own\.py.*without close"):
        box.clear()
    while log[-1] != "it left":
        await anyio.sleep(0.01)


async def test_what_fails_after_it_was_dropped_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(leaving=0.01, fails_leaving=OSError("broken pipe"))
    box = [await own(recorder).open()]
    with pytest.warns(ResourceWarning):
        box.clear()
    while recorder.log[-1] != "it left":
        await anyio.sleep(0.01)
    assert "broken pipe" in caplog.text


@pytest.mark.real_time
async def test_dropped_in_another_thread_it_is_left_by_the_loops_own() -> None:
    log: list[Any] = []
    box = [await own(Recorder(log)).open()]
    seen: list[str] = []

    def drop() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            box.clear()
            gc.collect()
        seen.extend(str(warning.message) for warning in caught)

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert len(seen) == 1
    while log[-1] != "it left":
        await anyio.sleep(0.01)


async def test_closed_and_dropped_it_warns_of_nothing() -> None:
    held = await own(Recorder()).open()
    await held.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del held
        gc.collect()


def test_held_until_the_loop_is_gone_it_is_left_and_closing_is_refused(world: World) -> None:
    log: list[Any] = []
    helds: list[Held[Any]] = []

    async def main() -> None:
        async with Scope():
            helds.append(await own(Recorder(log)).open())

    world.run(main)
    assert log[-1] == "it left"
    helds.clear()
    gc.collect()


@asyncio_only
async def test_a_held_one_belongs_to_its_loop() -> None:
    held = await own(Recorder()).open()
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(held.close())
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "another event loop" in str(caught[0])
    await held.close()


# Bad use ----------------------------------------------------------------------------------------------------


async def test_what_is_no_async_context_manager_is_refused_with_a_hint() -> None:
    async def coroutine() -> None:
        pass

    async def generator() -> AsyncIterator[int]:
        yield 1

    cases: list[tuple[Any, str]] = [
        (threading.Lock(), "sync context manager"),
        (generator(), "asynccontextmanager"),
        (generator, "asynccontextmanager"),
        (coroutine(), r"own\(await"),
        (coroutine, "call it"),
        (Recorder, "'Recorder': call it"),
        (3, "no __aenter__"),
    ]
    for thing, hint in cases:
        with pytest.raises(TypeError, match=hint):
            own(thing)


@pytest.mark.parametrize("form", ["open", "block"])
async def test_it_is_opened_once(form: str) -> None:
    owned = own(Recorder(), name="socket")
    async with owned:
        with pytest.raises(RuntimeError, match=r"'socket'.* was opened before"):
            if form == "open":
                await owned.open()
            else:
                await owned.__aenter__()


def test_it_needs_a_running_loop() -> None:
    opening = own(Recorder()).open()
    with pytest.raises(RuntimeError, match="running event loop"):
        opening.send(None)


async def test_a_mock_can_be_held() -> None:
    mock = MagicMock()
    async with own(mock):
        pass
    mock.__aexit__.assert_awaited_once()


@pytest.mark.time_limit(3)
def test_a_mock_has_a_name() -> None:
    assert name_of(MagicMock()) == label_of(MagicMock()) == "MagicMock"


async def test_negative_deadlines_are_refused() -> None:
    held = await own(Recorder()).open()
    with pytest.raises(ValueError, match="deadline"):
        await held.close(deadline=-1)
    await held.close()


async def test_it_says_what_it_is() -> None:
    held = await own(Recorder(), name="socket").open()
    assert repr(held) == "<Held 'socket' held>"
    await held.close()
    assert repr(held) == "<Held 'socket' settled>"
    assert repr(own(Recorder(), name="socket")) == "<Owned 'socket'>"


async def test_a_cancel_that_comes_while_a_held_thing_is_left_goes_before_the_error_of_its_body() -> None:
    @asynccontextmanager
    async def slow_to_leave() -> AsyncIterator[None]:
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)

    reached = []
    around = current_scope()
    with anyio.CancelScope() as outer:
        try:
            async with own(slow_to_leave()):
                around.spawn(cancel_soon, outer)
                raise LookupError("in the body")
        except LookupError:
            reached.append("the error")
        reached.append("the next line")
    assert outer.cancelled_caught
    assert not reached


@trio_only
async def test_a_block_of_own_that_another_task_leaves_says_that_trio_does_not_allow_that() -> None:
    @asynccontextmanager
    async def connection() -> AsyncIterator[str]:
        yield "connection"

    block = own(connection(), name="connection")
    entered, refused = trio.Event(), trio.Event()

    async def enters_and_leaves() -> None:
        assert await block.__aenter__() == "connection"
        entered.set()
        await refused.wait()
        assert not await block.__aexit__(None, None, None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enters_and_leaves)
        await entered.wait()
        with pytest.raises(RuntimeError, match=r"'connection' was entered .* own\(\.\.\.\)\.open\(\)"):
            await block.__aexit__(None, None, None)
        refused.set()
    assert block.report is not None
    assert block.report.clean
