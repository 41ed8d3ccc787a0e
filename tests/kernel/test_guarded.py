"""Demand 15: a primary with guards beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio

from quiesce import ChildCancelled, Grace, Reason, Scope, ScopeClosed, current_scope, current_token, guarded
from quiesce.kernel.scope.lifecycle import ScopeCore
from tests.kernel.temperaments import (
    Stubborn,
    an_innocent_bystander,
    cancellation,
    fails,
    fails_in_clean_up,
    quick,
    sleeper,
    tidy_up,
    turns,
    virtual_asyncio,
    virtual_worlds,
)
from tests.world import asyncio_only, trio_only


class Tripwire(Exception):
    pass


async def answers(value: Any, after: float) -> Any:
    await anyio.sleep(after)
    return value


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


# The result -------------------------------------------------------------------------------------------------


async def test_the_primarys_result_is_returned() -> None:
    assert await guarded(partial(quick, 42), partial(quick, "ignored")) == 42


async def test_without_guards_it_is_a_plain_call_in_a_child() -> None:
    assert await guarded(partial(answers, "yes", 0.01)) == "yes"
    with pytest.raises(KeyError, match="gone"):
        await guarded(partial(fails, KeyError("gone"), 0.01))


@virtual_worlds
async def test_the_result_is_held_until_every_guard_has_returned() -> None:
    began = anyio.current_time()
    assert await guarded(partial(answers, 1, 1), partial(answers, None, 5), partial(answers, None, 3)) == 1
    assert anyio.current_time() - began == pytest.approx(5)


@virtual_worlds
async def test_a_guard_that_is_done_early_changes_nothing() -> None:
    began = anyio.current_time()
    assert await guarded(partial(answers, 1, 5), quick) == 1
    assert anyio.current_time() - began == pytest.approx(5)


async def test_a_guard_that_fails_after_the_primary_has_finished_takes_the_result_back() -> None:
    with pytest.raises(Tripwire, match="late"):
        await guarded(partial(quick, "an answer"), partial(fails, Tripwire("late"), 0.02))


# The first failure ------------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_silent_primary_is_stopped_at_once_when_a_guard_fails() -> None:
    log: list[str] = []
    began = anyio.current_time()
    error = Tripwire("off topic")
    with pytest.raises(Tripwire) as caught:
        await guarded(partial(sleeper, log, "model call"), partial(fails, error, 1))
    assert caught.value is error
    assert log == ["model call stops", "model call is tidy"]
    assert anyio.current_time() - began == pytest.approx(1)  # and not after 30 s of silence


async def test_the_error_is_raised_when_everybodys_clean_up_is_over() -> None:
    log: list[str] = []
    with pytest.raises(Tripwire):
        await guarded(
            partial(sleeper, log, "primary", 0.02),
            partial(fails, Tripwire(), 0.01),
            partial(sleeper, log, "other guard", 0.03),
        )
    assert sorted(log) == ["other guard is tidy", "other guard stops", "primary is tidy", "primary stops"]


async def test_a_failing_primary_stops_its_guards() -> None:
    log: list[str] = []
    error = ConnectionError("model gone")
    with pytest.raises(ConnectionError) as caught:
        await guarded(partial(fails, error, 0.01), partial(sleeper, log, "guard", 0.02))
    assert caught.value is error
    assert log == ["guard stops", "guard is tidy"]


async def test_a_guard_that_fails_before_its_first_await() -> None:
    log: list[str] = []
    with pytest.raises(Tripwire):
        await guarded(partial(sleeper, log, "primary"), partial(fails, Tripwire()))
    assert log in ([], ["primary stops", "primary is tidy"])  # stopped, or never begun


@pytest.mark.worlds("asyncio-eager")
async def test_an_eager_guard_that_fails_at_once_keeps_the_primary_from_starting() -> None:
    log: list[str] = []
    with pytest.raises(Tripwire):
        await guarded(partial(sleeper, log, "primary"), partial(fails, Tripwire()))
    assert log == []


async def test_the_one_that_is_stopped_learns_why() -> None:
    reasons: list[Reason | None] = []
    error = Tripwire("off topic")

    async def primary() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            reasons.append(current_token().reason)

    with pytest.raises(Tripwire):
        await guarded(primary, partial(fails, error, 0.01))
    assert reasons[0] is not None
    assert reasons[0].kind == "error"
    assert reasons[0].error is error
    assert "off topic" in reasons[0].message


async def test_an_error_that_is_a_group_stays_the_group_that_it_was() -> None:
    group = ExceptionGroup("mine", [ValueError(1), KeyError(2)])
    with pytest.raises(ExceptionGroup) as caught:
        await guarded(sleeper, partial(fails, group, 0.01))
    assert caught.value is group


@pytest.mark.parametrize("by_primary", [True, False])
async def test_system_exit_is_contained_and_raised_as_itself_in_the_caller(by_primary: bool) -> None:
    log: list[str] = []
    error = SystemExit(3)
    sides = [partial(fails, error, 0.01), partial(sleeper, log, "the other", 0.02)]
    with pytest.raises(SystemExit) as caught:
        await guarded(*(sides if by_primary else reversed(sides)))
    assert caught.value is error
    assert log == ["the other stops", "the other is tidy"]


@asyncio_only
@pytest.mark.parametrize("by_primary", [True, False])
async def test_one_that_cancels_itself_has_failed_and_the_caller_is_not_cancelled(by_primary: bool) -> None:
    async def awaits_something_cancelled() -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    sides: list[Callable[[], Awaitable[Any]]] = [awaits_something_cancelled, partial(answers, 1, 0.01)]
    with pytest.raises(ChildCancelled, match="awaits_something_cancelled"):
        await guarded(*(sides if by_primary else reversed(sides)))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


# Both at once -----------------------------------------------------------------------------------------------


@virtual_worlds
@pytest.mark.parametrize("guard_first", [True, False])
async def test_both_fail_in_the_same_tick_and_the_guards_verdict_wins(guard_first: bool) -> None:
    """Trap 12: a race in one tick."""
    gate = anyio.Event()
    order: list[str] = []

    async def side(name: str, patience: int, error: Exception) -> None:
        await turns(patience)  # who waits first is woken first
        order.append(name)
        await gate.wait()
        raise error

    async def open_the_gate() -> None:
        await anyio.sleep(1)
        gate.set()

    primary = partial(side, "primary", 3 if guard_first else 0, ConnectionError("primary"))
    guard = partial(side, "guard", 0 if guard_first else 3, Tripwire("verdict"))
    async with Scope() as scope:
        scope.spawn(open_the_gate)
        with pytest.raises(Tripwire) as caught:
            await guarded(primary, guard)
    assert order == (["guard", "primary"] if guard_first else ["primary", "guard"])
    assert "ConnectionError('primary')" in notes_of(caught.value)


async def test_two_guards_in_the_same_tick_the_first_is_raised_and_the_other_is_a_note() -> None:
    gate = anyio.Event()

    async def guard(error: Exception) -> None:
        await gate.wait()
        raise error

    async def primary() -> None:
        await anyio.sleep(0.01)
        gate.set()
        await anyio.sleep_forever()

    with pytest.raises(Tripwire) as caught:
        await guarded(primary, partial(guard, Tripwire("one")), partial(guard, Tripwire("two")))
    both = {"Tripwire('one')", "Tripwire('two')"}
    raised = repr(caught.value)
    assert raised in both  # trio runs them in random order
    assert (both - {raised}).pop() in notes_of(caught.value)


async def test_a_verdict_during_the_cancel_but_not_because_of_it_wins() -> None:
    async def guard() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await anyio.sleep(0.03)
            except asyncio.CancelledError:  # a native cancel gets through anyio's shield
                pass
        raise Tripwire("found it anyway")

    with pytest.raises(Tripwire) as caught:
        await guarded(partial(fails, ConnectionError("primary"), 0.01), guard)
    assert "ConnectionError('primary')" in notes_of(caught.value)


async def test_a_guards_failing_clean_up_is_not_a_verdict() -> None:
    with pytest.raises(ConnectionError) as caught:
        await guarded(
            partial(fails, ConnectionError("primary"), 0.01),
            partial(fails_in_clean_up, OSError("socket"), 0.01),
        )
    assert "fails_in_clean_up also failed: OSError('socket')" in notes_of(caught.value)


async def test_a_primarys_failing_clean_up_is_a_note_on_the_verdict() -> None:
    with pytest.raises(Tripwire) as caught:
        await guarded(partial(fails_in_clean_up, OSError("socket")), partial(fails, Tripwire(), 0.01))
    assert "fails_in_clean_up also failed: OSError('socket')" in notes_of(caught.value)


async def test_a_group_made_only_of_failed_clean_ups_is_not_a_verdict() -> None:
    async def guard() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(fails_in_clean_up, OSError("one"))
            group.start_soon(fails_in_clean_up, OSError("two"))

    with pytest.raises(ConnectionError) as caught:
        await guarded(partial(fails, ConnectionError("primary"), 0.01), guard)
    assert "OSError('one')" in notes_of(caught.value)


async def test_the_same_error_from_two_sides_gets_no_note_about_itself() -> None:
    error = Tripwire("shared")
    with pytest.raises(Tripwire) as caught:
        await guarded(partial(fails, error, 0.01), partial(fails, error, 0.01))
    assert caught.value is error
    assert notes_of(error) == ""


async def test_with_a_time_to_cooperate_leaving_because_of_the_token_is_not_a_verdict() -> None:
    async def cooperative_guard() -> None:
        while True:
            current_token().raise_if_cancelled()
            await anyio.sleep(0.005)

    with pytest.raises(ConnectionError):
        await guarded(
            partial(fails, ConnectionError("primary"), 0.01),
            cooperative_guard,
            grace=Grace(cooperate=0.5),
        )


# The caller is cancelled ------------------------------------------------------------------------------------


@asyncio_only
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_the_caller_cancelled_once_twice_or_three_times(times: int) -> None:
    log: list[str] = []

    async def call() -> None:
        await guarded(partial(sleeper, log, "primary", 0.05), partial(sleeper, log, "guard", 0.05))

    task = asyncio.create_task(call())
    await anyio.sleep(0.01)
    for _ in range(times):
        task.cancel("enough")
        await anyio.sleep(0.01)
    await asyncio.wait([task])
    assert task.cancelled()
    assert task.cancelling() == times
    assert sorted(log) == ["guard is tidy", "guard stops", "primary is tidy", "primary stops"]


@asyncio_only
async def test_asyncio_timeout_around_it_raises_timeout_error() -> None:
    log: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await guarded(partial(sleeper, log, "primary", 0.03), partial(sleeper, log, "guard", 0.03))
    assert len(log) == 4
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_inside_a_cancelled_anyio_scope_all_is_drained_first() -> None:
    log: list[str] = []
    with anyio.move_on_after(0.01) as scope:
        await guarded(partial(sleeper, log, "primary", 0.03), partial(sleeper, log, "guard", 0.03))
    assert scope.cancelled_caught
    assert sorted(log) == ["guard is tidy", "guard stops", "primary is tidy", "primary stops"]


@trio_only
async def test_a_trio_deadline_reaches_the_children_as_a_timeout() -> None:
    kinds: list[str] = []

    async def primary() -> None:
        try:
            await trio.sleep_forever()
        finally:
            reason = current_token().reason
            kinds.append(reason.kind if reason is not None else "none")

    with trio.move_on_after(1) as scope:
        await guarded(primary, sleeper)
    assert scope.cancelled_caught
    assert kinds == ["timeout"]


async def test_an_error_beside_the_callers_cancel_is_a_note_on_it() -> None:
    caught: list[BaseException] = []

    async def call() -> None:
        try:
            await guarded(partial(fails_in_clean_up, OSError("socket")), sleeper)
        except BaseException as exc:
            caught.append(exc)
            raise

    async with Scope() as scope:
        handle = scope.spawn(call)
        await turns()
        handle.cancel()
    assert isinstance(caught[0], cancellation())
    assert "OSError('socket')" in notes_of(caught[0])


@asyncio_only
@pytest.mark.parametrize("again_after", [None, 0, 1, 2])
async def test_cancelled_at_every_turn_of_the_loop_it_leaves_nothing_and_ends_in_one_of_two_ways(
    again_after: int | None,
) -> None:
    async def side(steps: int) -> int:
        try:
            await turns(steps)
            return steps
        except asyncio.CancelledError:
            running.append(-1)
            await turns(2)
            running.append(1)
            raise

    for turn in range(16):
        running: list[int] = []
        task = asyncio.ensure_future(guarded(partial(side, 4), partial(side, 2), partial(side, 6)))
        await turns(turn)
        asked = task.cancel()
        if again_after is not None:
            await turns(again_after)
            task.cancel()
        await asyncio.wait([task])
        assert sum(running) == 0, f"a clean-up was cut, cancelled at turn {turn}"
        assert task.cancelled() if asked else task.result() == 4


async def test_a_scope_that_stops_takes_the_call_with_it() -> None:
    log: list[str] = []
    scope = await Scope.open()
    handle = scope.spawn(
        guarded, partial(sleeper, log, "primary", 0.02), partial(sleeper, log, "guard", 0.02)
    )
    await turns()
    report = await scope.close()
    assert report.clean
    assert handle.state == "cancelled"
    assert len(log) == 4


# Nothing outlives it ----------------------------------------------------------------------------------------


@virtual_worlds
async def test_what_ignores_its_cancellation_is_logged_by_name_and_stays_owned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stubborn = Stubborn()
    scope = await Scope.open("owner")
    began = anyio.current_time()

    async def call() -> None:
        with pytest.raises(Tripwire):
            await guarded(
                stubborn, partial(fails, Tripwire(), 0.5), grace=Grace(cancel=1, terminate=1, kill=0)
            )

    with caplog.at_level(logging.WARNING, "quiesce"):
        await scope.spawn(call).wait()
    assert anyio.current_time() - began == pytest.approx(2.5)
    assert "Stubborn" in caplog.text
    assert "test_guarded.py" in caplog.text
    report = await scope.close(deadline=0.1)
    assert [left.name for left in report.left] == ["Stubborn"]
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_worlds
async def test_the_callers_cancel_is_raised_within_the_grace_though_somebody_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stubborn = Stubborn()
    began = anyio.current_time()
    with caplog.at_level(logging.WARNING, "quiesce"), anyio.move_on_after(1) as scope:
        await guarded(stubborn, grace=Grace(cancel=0.3, terminate=0.1, kill=0.1))
    assert scope.cancelled_caught
    assert anyio.current_time() - began == pytest.approx(1.5)
    assert "Stubborn" in caplog.text
    stubborn.let_go()
    await turns(5)
    assert stubborn.gone


@virtual_worlds
async def test_the_late_error_of_a_leftover_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def refuses_then_fails() -> None:
        end = anyio.current_time() + 5
        while anyio.current_time() < end:
            try:
                await tidy_up(end - anyio.current_time())
            except asyncio.CancelledError:
                pass
        raise OSError("late")

    with pytest.raises(Tripwire):
        await guarded(
            refuses_then_fails,
            partial(fails, Tripwire(), 0.1),
            grace=Grace(cancel=0.1, terminate=0.1, kill=0.1),
        )
    assert "OSError" not in caplog.text
    await anyio.sleep(10)
    assert "OSError: late" in caplog.text


async def test_what_they_start_in_the_current_scope_is_waited_for() -> None:
    log: list[str] = []

    async def helper() -> None:
        await anyio.sleep(0.02)
        log.append("helper done")

    async def primary() -> str:
        current_scope().spawn(helper)
        return "early"

    assert await guarded(primary) == "early"
    assert log == ["helper done"]


async def test_the_failure_of_such_a_helper_is_a_failure() -> None:
    async def primary() -> None:
        current_scope().spawn(fails, OSError("helper"), 0.01)
        await anyio.sleep_forever()

    with pytest.raises(OSError, match="helper"):
        await guarded(primary, sleeper)


async def test_scopes_left_open_inside_are_stopped_with_it() -> None:
    log: list[str] = []
    held: list[Scope] = []

    async def primary() -> str:
        session = await Scope.open("session")
        held.append(session)
        session.spawn(sleeper, log, "inner", 0.01)
        await turns()
        return "done"

    assert await guarded(primary) == "done"
    assert log == ["inner stops", "inner is tidy"]


async def test_no_bystander_is_disturbed() -> None:
    async with an_innocent_bystander():
        with pytest.raises(Tripwire):
            await guarded(sleeper, partial(fails, Tripwire(), 0.01))


# Stopped from inside or by its owner ------------------------------------------------------------------------


async def test_an_owner_that_closes_stops_a_call_of_somebody_else() -> None:
    log: list[str] = []
    outcome: list[BaseException] = []
    owner = await Scope.open("owner")

    async def call() -> None:
        try:
            await guarded(partial(sleeper, log, "primary", 0.01), sleeper, scope=owner)
        except BaseException as exc:
            outcome.append(exc)

    async with Scope() as mine:
        mine.spawn(call)
        await turns()
        report = await owner.close(reason="enough")
    assert report.clean
    assert log == ["primary stops", "primary is tidy"]
    assert isinstance(outcome[0], ChildCancelled)
    assert "enough" in str(outcome[0])


async def test_a_primary_that_closes_the_callers_scope_does_not_deadlock() -> None:
    log: list[str] = []
    outer = await Scope.open("outer", grace=Grace(cancel=5, terminate=5, kill=5))
    began = anyio.current_time()

    async def primary() -> None:
        report = await outer.close()
        log.append(f"closed, {'clean' if report.clean else 'not clean'}")

    handle = outer.spawn(guarded, primary, sleeper)
    await handle.wait()
    assert log == ["closed, clean"]
    assert anyio.current_time() - began < 4
    assert (await outer.close()).clean


async def test_a_primary_that_closes_its_own_scope_has_no_result() -> None:
    async def primary() -> str:
        await current_scope().close()
        return "a result that no guard has allowed"

    with pytest.raises(ChildCancelled, match="sleeper"):
        await guarded(primary, sleeper)


async def test_in_a_closed_scope_it_is_refused() -> None:
    scope = await Scope.open("shop")
    await scope.close()
    with pytest.raises(ScopeClosed, match="shop"):
        await guarded(quick, scope=scope)


async def test_a_task_that_cannot_be_started_ends_the_call_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    scope = await Scope.open(grace=Grace(cancel=60))
    start, started = ScopeCore.start, list[object]()

    def fails_the_second_time(self: ScopeCore, *args: Any) -> None:
        started.append(args[0])
        if len(started) == 2:
            self.children.pop(args[0], None)
            raise RuntimeError("no more tasks")
        start(self, *args)

    began = anyio.current_time()
    with monkeypatch.context() as patch:
        patch.setattr(ScopeCore, "start", fails_the_second_time)
        with pytest.raises(RuntimeError, match="no more tasks"):
            await guarded(partial(quick, 1), partial(sleeper, log, "guard"), quick, scope=scope)
    assert len(started) == 2
    assert log in (["guard stops", "guard is tidy"], [])
    assert anyio.current_time() - began < 10
    assert (await scope.close()).clean


# Bad use ----------------------------------------------------------------------------------------------------


async def test_coroutines_instead_of_functions_are_a_clear_error() -> None:
    with pytest.raises(TypeError, match="not a coroutine") as caught:
        await guarded(quick(1), sleeper(), fails(ValueError()))  # type: ignore[arg-type]
    assert "functools.partial" in notes_of(caught.value)


async def test_something_that_is_no_function_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match="not int"):
        await guarded(quick, 3)  # type: ignore[arg-type]


async def test_a_sync_function_is_a_clear_error() -> None:
    def sync_guard() -> int:
        return 1

    with pytest.raises(TypeError) as caught:
        await guarded(partial(answers, 1, 0.01), sync_guard)  # type: ignore[arg-type]
    assert "sync_guard" in notes_of(caught.value)
    assert "to_thread" in notes_of(caught.value)


# Real programs ----------------------------------------------------------------------------------------------


@virtual_asyncio
async def test_a_caller_in_a_task_group_that_fails() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(guarded(partial(sleeper, log, "primary", 1), partial(sleeper, log, "guard", 1)))
            await asyncio.sleep(1)
            raise OSError
    assert len(log) == 4


async def test_calls_inside_calls() -> None:
    log: list[str] = []

    async def inner() -> str:
        return await guarded(partial(answers, "deep", 0.02), partial(sleeper, log, "inner guard", 0.01))

    with pytest.raises(Tripwire):
        await guarded(inner, partial(fails, Tripwire(), 0.01))
    assert log == ["inner guard stops", "inner guard is tidy"]
    assert await guarded(partial(guarded, partial(answers, "deep", 0.01), quick), quick) == "deep"


async def test_many_calls_at_once() -> None:
    async def one(number: int) -> None:
        if number % 3:
            assert await guarded(partial(answers, number, 0.01), partial(answers, None, 0.005)) == number
        else:
            with pytest.raises(Tripwire):
                await guarded(sleeper, partial(fails, Tripwire(), 0.01))

    async with Scope() as scope:
        for number in range(100):
            scope.spawn(one, number)


@trio_only
async def test_a_trio_caller_that_is_cancelled_already_starts_nothing() -> None:
    log: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await guarded(partial(sleeper, log, "primary"))
    assert log == []
