"""Demand 5: the two policies for a child's error."""

from __future__ import annotations

import asyncio
import gc
import logging

import anyio
import pytest
import trio

from quiesce import Handle, Reason, Scope, current_token
from tests.kernel.temperaments import (
    an_innocent_bystander,
    cancellation,
    fails,
    fails_in_clean_up,
    forever,
    quick,
    sleeper,
    turns,
    virtual_worlds,
)
from tests.world import asyncio_only, trio_only


def texts(group: BaseExceptionGroup[BaseException]) -> list[str]:
    return [str(error) for error in group.exceptions]


# stop -------------------------------------------------------------------------------------------------------


async def test_the_first_failure_stops_the_siblings_and_the_body_and_is_raised_in_a_group() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup, match="'crew'") as caught:
        async with Scope("crew") as scope:
            scope.spawn(sleeper, log, "sibling", 0.01)
            await turns()
            scope.spawn(fails, ValueError("child"), 0.01)
            try:
                await forever()
            finally:
                log.append("body left")
    assert texts(caught.value) == ["child"]
    assert sorted(log) == ["body left", "sibling is tidy", "sibling stops"]
    assert scope.state == "settled"
    assert scope.reason is not None
    assert scope.reason.kind == "error"
    assert str(scope.reason.error) == "child"


async def test_only_the_body_and_the_children_are_cancelled_and_nobody_beside_them() -> None:
    async with an_innocent_bystander():
        with pytest.raises(ExceptionGroup):
            async with Scope() as scope:
                scope.spawn(fails, ValueError(), 0.01)
                await forever()


async def test_every_failure_is_in_the_group_those_of_clean_up_too() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(fails_in_clean_up, KeyError("second"))
            await turns()
            scope.spawn(fails, ValueError("first"))
            await forever()
    assert texts(caught.value) == ["first", "'second'"]
    assert scope.report is not None
    assert scope.report.errors == list(caught.value.exceptions)


async def test_the_error_of_the_body_and_those_of_children_are_raised_together() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(fails_in_clean_up, KeyError("child"))
            await turns()
            raise ValueError("body")
    assert texts(caught.value) == ["body", "'child'"]


async def test_a_body_that_fails_because_it_was_stopped_comes_after_the_cause() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(fails, ValueError("child"), 0.01)
            try:
                await forever()
            finally:
                raise KeyError("body")
    assert texts(caught.value) == ["child", "'body'"]


async def test_a_body_that_swallows_its_cancel_still_sees_the_error_at_the_end() -> None:
    log = []
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(fails, ValueError("child"), 0.01)
            try:
                await forever()
            except cancellation():
                log.append("swallowed")
    assert log == ["swallowed"]
    assert texts(caught.value) == ["child"]
    await anyio.sleep(0)


@asyncio_only
async def test_the_body_is_uncancelled_at_the_exit() -> None:
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    for _ in range(3):
        with pytest.raises(ExceptionGroup):
            async with Scope() as scope:
                scope.spawn(fails, ValueError())
                await forever()
        assert task.cancelling() == before
        await asyncio.sleep(0)
        async with asyncio.timeout(1):
            await asyncio.sleep(0)


@asyncio_only
async def test_the_count_of_cancels_returns_to_where_it_was_also_if_that_was_not_zero() -> None:
    counts = []

    async def host() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            counts.append(task.cancelling())
            with pytest.raises(ExceptionGroup):
                async with Scope() as scope:
                    scope.spawn(fails, ValueError())
                    await forever()
            counts.append(task.cancelling())
            await asyncio.sleep(0)
            raise

    task = asyncio.create_task(host())
    await turns()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert counts == [1, 1]


async def test_a_child_that_fails_while_the_block_already_waits() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "sibling", 0.01)
            scope.spawn(fails, ValueError("late"), 0.02)
    assert texts(caught.value) == ["late"]
    assert log == ["sibling stops", "sibling is tidy"]
    await anyio.sleep(0)


async def test_a_child_that_fails_in_its_first_step() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            handle = scope.spawn(fails, ValueError("at once"))
            await forever()
    assert texts(caught.value) == ["at once"]
    assert handle.state == "failed"


async def test_without_a_block_the_failure_stops_the_siblings_and_close_reports_it() -> None:
    log: list[str] = []
    scope = await Scope.open()
    scope.spawn(sleeper, log, "sibling", 0.01)
    await turns()
    scope.spawn(fails, error := ValueError("child"))
    await anyio.sleep(0.03)
    assert log == ["sibling stops", "sibling is tidy"]
    assert scope.state == "settled"
    report = await scope.close()
    assert report.errors == [error]
    assert report.reason is not None
    assert report.reason.kind == "error"
    assert report.reason.error is error


async def test_siblings_know_why_they_are_stopped() -> None:
    reasons: list[Reason | None] = []

    async def sibling() -> None:
        try:
            await forever()
        finally:
            reasons.append(current_token().reason)

    with pytest.raises(ExceptionGroup):
        async with Scope() as scope:
            scope.spawn(sibling)
            await turns()
            scope.spawn(fails, error := ValueError("child"), name="culprit")
            await forever()
    assert reasons[0] is not None
    assert reasons[0].kind == "error"
    assert reasons[0].error is error
    assert "culprit" in reasons[0].message


# Whose cancel, at the same time -----------------------------------------------------------------------------


@asyncio_only
async def test_a_cancel_from_outside_wins_and_the_errors_are_its_cause() -> None:
    async def host() -> None:
        async with Scope() as scope:
            scope.spawn(fails_in_clean_up, ValueError("child"))
            await forever()

    task = asyncio.create_task(host())
    await turns()
    task.cancel("theirs")
    await asyncio.wait([task])
    assert task.cancelled()
    with pytest.raises(asyncio.CancelledError) as caught:
        task.result()
    cause = find_cause(caught.value)
    assert isinstance(cause, BaseExceptionGroup)
    assert texts(cause) == ["child"]


def find_cause(error: BaseException | None) -> BaseException | None:
    """The group behind a cancellation, which asyncio may have wrapped once more on its way."""
    while error is not None and not isinstance(error, BaseExceptionGroup):
        error = error.__cause__ or error.__context__
    return error


@asyncio_only
async def test_a_cancel_from_outside_in_the_same_tick_as_a_failure() -> None:
    async def host() -> None:
        async with Scope() as scope:
            hosted.append(scope)
            await forever()

    for theirs_first in (True, False):
        hosted: list[Scope] = []
        gate = asyncio.Event()

        async def child(gate: asyncio.Event = gate) -> None:
            await gate.wait()
            raise ValueError("child")

        task = asyncio.create_task(host())
        await turns()
        hosted[0].spawn(child)
        await turns()
        if theirs_first:
            task.cancel("theirs")
            gate.set()
        else:
            gate.set()
            await asyncio.sleep(0)
            task.cancel("theirs")
        await asyncio.wait([task])
        assert task.cancelled(), f"theirs first: {theirs_first}"
        assert task.cancelling() == 1


@asyncio_only
async def test_a_timeout_at_the_same_time_as_a_failure_is_a_timeouterror() -> None:
    async def child() -> None:
        await asyncio.sleep(0.02)
        raise ValueError("child")

    with pytest.raises((TimeoutError, ExceptionGroup)) as caught:
        async with asyncio.timeout(0.02):
            async with Scope() as scope:
                scope.spawn(child)
                await forever()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    if isinstance(caught.value, TimeoutError):  # the timer was first, or came while the block drained
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    await asyncio.sleep(0)


@virtual_worlds
async def test_a_timeout_while_the_block_drains_after_a_failure_is_a_timeouterror() -> None:
    log: list[str] = []
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.5):
            async with Scope() as scope:
                scope.spawn(sleeper, log, "sibling", 1.0)
                await turns()
                scope.spawn(fails, ValueError("child"))
                await forever()
    assert log == ["sibling stops", "sibling is tidy"]
    await anyio.sleep(0)


@trio_only
async def test_on_trio_a_cancel_around_the_block_wins_over_the_errors_of_children() -> None:
    with trio.CancelScope() as around:
        async with Scope() as scope:
            scope.spawn(fails_in_clean_up, ValueError("child"))
            await turns()
            around.cancel()
            await trio.sleep_forever()
    assert around.cancelled_caught
    assert scope.report is not None
    assert [str(error) for error in scope.report.errors] == ["child"]


async def test_an_error_inside_a_group_of_the_stopped_body_is_not_lost() -> None:
    """The body waits in a task group of its own, and something in there fails because of the stop."""
    with pytest.raises(BaseExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(fails, ValueError("child"), 0.01)
            async with anyio.create_task_group() as group:
                group.start_soon(fails_in_clean_up, KeyError("in the group"))
    flat = flatten(caught.value)
    assert "child" in flat
    assert "'in the group'" in flat


def flatten(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for inner in error.exceptions for text in flatten(inner)]
    return [str(error)]


# What is not wrapped ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_a_lone_exit_from_the_body_is_not_wrapped(kind: type[BaseException]) -> None:
    log: list[str] = []
    with pytest.raises(kind) as caught:
        async with Scope() as scope:
            scope.spawn(sleeper, log)
            await turns()
            raise kind("lone")
    assert caught.value.args == ("lone",)
    assert log == ["sleeper stops", "sleeper is tidy"]


async def test_errors_of_children_beside_an_exit_of_the_body_are_noted_on_it() -> None:
    with pytest.raises(SystemExit) as caught:
        async with Scope("crew") as scope:
            scope.spawn(fails_in_clean_up, ValueError("child"))
            await turns()
            raise SystemExit(3)
    assert caught.value.code == 3
    assert any("child" in note and "crew" in note for note in caught.value.__notes__)


async def test_a_systemexit_in_a_child_is_that_childs_failure() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with Scope() as scope:
            handle = scope.spawn(fails, SystemExit(3))
            await forever()
    assert handle.state == "failed"
    assert isinstance(handle.error, SystemExit)
    assert caught.value.subgroup(SystemExit) is not None


async def test_a_systemexit_in_a_supervised_child_is_reported() -> None:
    seen: list[BaseException] = []
    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: seen.append(error))
    handle = scope.spawn(fails, SystemExit(3))
    await handle.wait()
    assert [type(error) for error in seen] == [SystemExit]
    assert (await scope.close()).errors == seen


async def test_a_child_that_raises_generatorexit_has_failed() -> None:
    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    handle = scope.spawn(fails, GeneratorExit("odd"))
    await handle.wait()
    assert handle.state == "failed"
    await scope.close()


# report -----------------------------------------------------------------------------------------------------


async def test_a_supervisor_lets_the_siblings_live_and_tells_its_callback() -> None:
    told: list[tuple[str, str, str]] = []

    def on_child_error(handle: Handle, error: BaseException) -> None:
        told.append((handle.name, handle.state, str(error)))

    async with Scope(on_error="report", on_child_error=on_child_error) as scope:
        sibling = scope.spawn(anyio.sleep, 0.03)
        scope.spawn(fails, ValueError("one"), 0.01, name="culprit")
        await anyio.sleep(0.02)
        assert sibling.state == "running"
        assert scope.state == "open"
        body_lives = True
    assert body_lives
    assert told == [("culprit", "failed", "one")]
    assert sibling.state == "finished"
    assert scope.report is not None
    assert [str(o) for o in scope.report.outcomes] == ["culprit: failed, ValueError: one"]


async def test_without_a_callback_the_error_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Scope("crew", on_error="report") as scope:
        scope.spawn(fails, ValueError("one"), name="culprit")
    [record] = [record for record in caplog.records if record.name == "quiesce"]
    assert record.levelno == logging.ERROR
    assert "culprit" in record.getMessage()
    assert "'crew'" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "one"
    assert scope.report is not None
    assert [str(error) for error in scope.report.errors] == ["one"]


async def test_an_error_of_the_callback_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def on_child_error(handle: Handle, error: BaseException) -> None:
        raise KeyError("callback")

    async with Scope(on_error="report", on_child_error=on_child_error) as scope:
        sibling = scope.spawn(anyio.sleep, 0.02)
        scope.spawn(fails, ValueError("one"))
    assert sibling.state == "finished"
    assert any(record.exc_info and "callback" in str(record.exc_info[1]) for record in caplog.records)


async def test_a_callback_may_spawn_a_replacement() -> None:
    starts = []

    async def worker(attempt: int) -> None:
        starts.append(attempt)
        await anyio.sleep(0)
        if attempt < 3:
            raise ValueError(attempt)

    def restart(handle: Handle, error: BaseException) -> None:
        scope.spawn(worker, error.args[0] + 1)

    async with Scope(on_error="report", on_child_error=restart) as scope:
        scope.spawn(worker, 1)
    assert starts == [1, 2, 3]


async def test_a_callback_may_stop_the_scope() -> None:
    log: list[str] = []

    def give_up(handle: Handle, error: BaseException) -> None:
        scope.cancel(Reason("error", "giving up", error))

    async with Scope(on_error="report", on_child_error=give_up) as scope:
        scope.spawn(sleeper, log)
        await turns()
        scope.spawn(fails, ValueError("one"))
        await forever()
    assert log == ["sleeper stops", "sleeper is tidy"]
    assert scope.reason is not None
    assert scope.reason.message == "giving up"


async def test_the_body_of_a_supervisor_raises_its_own_error_bare() -> None:
    with pytest.raises(ValueError, match="body"):
        async with Scope(on_error="report"):
            raise ValueError("body")


async def test_a_supervisor_that_runs_for_months_keeps_a_bounded_list_of_failures() -> None:
    count = 0

    def on_child_error(handle: Handle, error: BaseException) -> None:
        nonlocal count
        count += 1

    scope = await Scope.open(on_error="report", on_child_error=on_child_error)
    for n in range(250):
        scope.spawn(fails, ValueError(n))
    await turns(5)
    report = await scope.close()
    assert count == 250
    assert len(report.errors) == 100
    assert report.errors[-1].args == (249,) or len({error.args for error in report.errors}) == 100
    assert any("150" in note for note in report.notes)
    assert report.ended == 250


async def test_with_stop_no_failure_is_dropped_from_the_group() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            for n in range(150):
                scope.spawn(fails_in_clean_up, ValueError(n))
            await turns()
            scope.spawn(fails, ValueError("first"))
    assert len(caught.value.exceptions) == 151


@asyncio_only
async def test_no_error_of_a_child_is_ever_never_retrieved() -> None:
    """The world fails this test if its loop complains."""
    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    scope.spawn(fails, ValueError("one"))
    scope.spawn(fails_in_clean_up, ValueError("two"))
    scope.spawn(fails, asyncio.CancelledError("three"))
    scope.spawn(fails, asyncio.InvalidStateError("four"))
    await turns()
    report = await scope.close()
    assert sorted(str(error) for error in report.errors) == ["four", "one", "two"]
    del scope, report
    gc.collect()
    await asyncio.sleep(0)


async def test_a_sync_function_is_a_failure_that_says_what_to_do() -> None:
    def not_async() -> int:
        return 1

    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    handle = scope.spawn(not_async)
    await handle.wait()
    assert isinstance(handle.error, TypeError)
    assert any("not_async" in note and "to_thread" in note for note in handle.error.__notes__)
    await scope.close()
    await quick()
