"""Demand 9: `to_thread`. Sync work with a token, a bounded wait on a stop, and no use of what comes too late."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import trio

from quiesce import CancelToken, Grace, Reason, Scope, ScopeClosed, TokenCancelled, current_token
from quiesce.kernel.calls.shielded_call import shielded
from quiesce.kernel.threads import idle_threads
from quiesce.kernel.threads import limiter as limiter_module
from quiesce.kernel.threads.limiter import Slots
from quiesce.kernel.threads.thread_call import to_thread
from tests.kernel.temperaments import an_innocent_bystander, cancellation, on_trio, turns
from tests.world import World, asyncio_only, trio_only

pytestmark = pytest.mark.real_time

SHORT = Grace(cooperate=0, cancel=0.1, terminate=0.4, kill=0.4)  # time for a caller to go that is let go
LONG = Grace(cooperate=0, cancel=60, terminate=30, kill=30)
SLACK = 4.0  # seconds that a machine that stalls may take for nothing; the default grace takes five

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Stuck:
    """Sync work that does not heed its token, until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.token = CancelToken()
        self._let_go = threading.Event()

    def __call__(self, outcome: object = "late") -> object:
        self.token = current_token()
        self.began.set()
        give_up_at = time.monotonic() + 15
        while not self._let_go.is_set() and time.monotonic() < give_up_at:
            time.sleep(0.002)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def let_go(self) -> None:
        self._let_go.set()


@contextmanager
def stuck_work() -> Iterator[Stuck]:
    stuck = Stuck()
    try:
        yield stuck
    finally:
        stuck.let_go()


def heeds_its_token() -> str:
    assert current_token().wait_sync(15)
    return "heard"


async def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < give_up_at, "it never happened"
        await anyio.sleep(0.002)


@contextmanager
def takes(at_least: float, at_most: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    elapsed = time.monotonic() - start
    assert at_least - 0.01 <= elapsed <= at_most + SLACK


# Results and errors ---------------------------------------------------------------------------------------------


async def test_the_result_comes_back() -> None:
    assert await to_thread(divmod, 7, 2) == (3, 1)


async def test_it_runs_in_a_daemon_thread_that_is_called_like_the_work() -> None:
    def work() -> tuple[bool, str, bool]:
        thread = threading.current_thread()
        return thread.daemon, thread.name, thread is threading.main_thread()

    assert await to_thread(work, name="index the files") == (True, "index the files", False)
    daemon, name, _ = await to_thread(work)
    assert (daemon, name.rpartition(".")[2]) == (True, "work")


async def test_an_error_is_raised_as_itself_and_the_scope_does_not_count_it() -> None:
    error = LookupError("gone")

    def fail() -> None:
        raise error

    async with Scope() as scope:
        with pytest.raises(LookupError) as raised:
            await to_thread(fail)
        assert raised.value is error
        assert scope.state == "open"
        assert await to_thread(int, "3") == 3
    assert scope.report is not None
    assert scope.report.errors == []


async def test_the_traceback_shows_the_function_and_none_of_the_machinery_below_it() -> None:
    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError) as raised:
        await to_thread(fail)
    assert raised.traceback[-1].name == "fail"
    assert "_work" not in [entry.name for entry in raised.traceback]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_keyboard_interrupt_and_system_exit_are_delivered_as_the_error(
    kind: type[BaseException],
) -> None:
    error = kind(3)

    def fail() -> None:
        raise error

    with pytest.raises(kind) as raised:
        await to_thread(fail)
    assert raised.value is error


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit, asyncio.CancelledError])
async def test_what_would_confuse_a_coroutine_becomes_a_runtime_error(kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind

    with pytest.raises(RuntimeError, match=f"fail raised {kind.__name__} in its thread") as raised:
        await to_thread(fail)
    assert isinstance(raised.value.__cause__, kind)


async def test_neither_result_nor_error_is_kept_alive_by_the_idle_thread() -> None:
    class Value:
        pass

    class Failure(Exception):
        pass

    def fail() -> None:
        raise Failure

    gc.disable()
    try:
        value = await to_thread(Value)
        seen: list[weakref.ref[object]] = [weakref.ref(value)]
        del value
        try:
            await to_thread(fail)
        except Failure as error:
            seen.append(weakref.ref(error))
        await turns()
        await until(lambda: [ref() for ref in seen] == [None, None])
    finally:
        gc.enable()


# Inside ---------------------------------------------------------------------------------------------------------


async def test_context_variables_come_in_and_changes_stay_inside() -> None:
    variable.set("outer")

    def work() -> str:
        before = variable.get()
        variable.set("inner")
        return before

    assert await to_thread(work) == "outer"
    assert variable.get() == "outer"


async def test_the_thread_has_a_token_of_its_own_below_its_callers() -> None:
    async with Scope() as scope:
        token = await to_thread(current_token)
        assert token is not current_token()
        assert not token.cancelled
        token.cancel("just the thread")
        assert not current_token().cancelled
        assert not scope.token.cancelled
        other = await to_thread(current_token)
        scope.token.cancel("all of it")
        assert other.cancelled


async def test_a_second_call_gets_a_fresh_token_while_the_first_ones_stays_cancelled() -> None:
    with stuck_work() as stuck:
        with anyio.move_on_after(0.02):
            await to_thread(stuck, grace=SHORT)
        assert stuck.token.cancelled
        assert not (await to_thread(current_token)).cancelled
        assert stuck.token.cancelled


async def test_a_thread_that_runs_an_event_loop_of_its_own_can_use_threads_there_too() -> None:
    async def inner() -> str:
        return await asyncio.to_thread(str.upper, "inner")

    assert await to_thread(asyncio.run, inner()) == "INNER"


# Being stopped --------------------------------------------------------------------------------------------------


async def test_a_cancelled_caller_sets_the_token_and_waits_for_a_thread_that_heeds_it() -> None:
    heard: list[str] = []

    def work() -> str:
        heard.append(heeds_its_token())
        return "not used"

    with takes(0.05, 0.05), anyio.move_on_after(0.05) as timeout:
        await to_thread(work, grace=LONG)
        pytest.fail("the cancel was lost")
    assert timeout.cancelled_caught
    assert heard == ["heard"]


async def test_a_caller_that_was_stopped_with_a_reason_hands_it_on() -> None:
    with stuck_work() as stuck:
        async with Scope(grace=SHORT) as scope:
            handle = scope.spawn(to_thread, stuck)
            await until(stuck.began.is_set)
            handle.cancel(Reason("disconnect", "the browser left"))
            # At once, without a turn of the loop.
            assert stuck.token.reason == Reason("disconnect", "the browser left")
            stuck.let_go()
            await handle.wait()
            assert handle.state == "cancelled"


async def test_without_a_better_reason_it_is_cancelled_or_trios_deadline() -> None:
    with stuck_work() as stuck:
        with anyio.move_on_after(0.05):
            await to_thread(stuck, grace=SHORT)
        assert stuck.token.reason is not None
        assert stuck.token.reason.kind == ("timeout" if on_trio() else "cancelled")


async def test_the_reason_of_a_stop_reaches_the_thread() -> None:
    async with Scope() as scope:
        handle = scope.spawn(to_thread, lambda: current_token().wait_sync(10) and current_token().reason)
        await anyio.sleep(0.02)
        scope.cancel(Reason("user", "Esc pressed"), grace=Grace(cooperate=5))
    # It had time to cooperate before anybody was cancelled, so its result is used.
    assert handle.result() == Reason("user", "Esc pressed")


async def test_a_deadline_returns_in_time_and_names_the_thread_where_it_is_stuck() -> None:
    with stuck_work() as stuck:
        scope = await Scope.open(grace=LONG)
        caller = scope.spawn(to_thread, stuck, name="caller")
        await until(stuck.began.is_set)
        with takes(2, 2):
            report = await scope.close(deadline=2)
        assert caller.state == "cancelled"
        (left,) = report.left
        assert (left.kind, left.name) == ("thread", "Stuck")
        assert "test_thread.py" in left.stuck_at
        assert left.stuck_at.endswith("in Stuck.__call__")
        assert "test_thread.py" in left.made_at
        assert "test_a_deadline_returns_in_time" in left.made_at
        outcomes = {outcome.name: outcome.state for outcome in report.outcomes}
        assert outcomes == {"caller": "cancelled", "Stuck": "still running"}

        stuck.let_go()
        again = await scope.close(deadline=5)
        assert again.clean
        assert {outcome.name: outcome.state for outcome in again.outcomes}["Stuck"] == "finished"


async def test_a_function_without_python_code_is_named_as_such() -> None:
    gate = threading.Lock()
    gate.acquire()
    scope = await Scope.open(grace=SHORT)
    scope.spawn(to_thread, gate.acquire)
    await until(lambda: any("acquire" in thread.name for thread in threading.enumerate()))
    await anyio.sleep(0.02)
    # On a machine that stalls its caller may be left, too.
    (left,) = [left for left in (await scope.close()).left if left.kind == "thread"]
    gate.release()
    assert "acquire, which runs no Python code" in left.stuck_at
    assert (await scope.close(deadline=5)).clean


async def test_the_grace_given_to_the_call_goes_before_the_scopes() -> None:
    with stuck_work() as stuck:
        async with Scope(grace=LONG) as scope:
            with takes(0.02 + SHORT.cancel, 0.02 + SHORT.cancel), anyio.move_on_after(0.02):
                await to_thread(stuck, grace=SHORT)
            stuck.let_go()
        assert scope.report is not None
        assert scope.report.clean


async def test_without_a_grace_of_its_own_it_has_the_scopes() -> None:
    with stuck_work() as stuck:
        async with Scope(grace=SHORT):
            with takes(0.02 + SHORT.cancel, 0.02 + SHORT.cancel), anyio.move_on_after(0.02):
                await to_thread(stuck)
            stuck.let_go()


async def test_a_thread_that_was_given_up_bounds_the_end_of_the_block_and_is_named() -> None:
    with stuck_work() as stuck:
        with takes(0.02 + SHORT.cancel + SHORT.total, 0.02 + SHORT.cancel + SHORT.total):
            async with Scope(grace=SHORT) as scope:
                with anyio.move_on_after(0.02):
                    await to_thread(stuck, name="index")
        assert scope.report is not None
        assert [(left.kind, left.name) for left in scope.report.left] == [("thread", "index")]
        assert scope.state == "expired"
        stuck.let_go()
        assert (await scope.close(deadline=5)).clean


async def test_the_caller_waits_through_further_cancels() -> None:
    with stuck_work() as stuck:
        ended: list[float] = []

        async def call() -> None:
            try:
                await to_thread(stuck, grace=LONG)
            finally:
                ended.append(time.monotonic())

        if on_trio():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await until(stuck.began.is_set)
                for _ in range(3):
                    nursery.cancel_scope.cancel()
                    with trio.CancelScope(shield=True):
                        await trio.sleep(0.01)
                assert ended == []
                stuck.let_go()
        else:
            task = asyncio.create_task(call())
            await until(stuck.began.is_set)
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0.01)
            assert not task.done()
            stuck.let_go()
            await asyncio.wait([task], timeout=5)
            assert task.cancelled()
        assert len(ended) == 1


@asyncio_only
async def test_a_timeout_around_it_raises_timeout_error_and_leaves_the_counts_right() -> None:
    task = asyncio.current_task()
    assert task is not None
    with takes(0.05, 0.05), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await to_thread(heeds_its_token)
    assert task.cancelling() == 0
    with stuck_work() as stuck:
        with takes(0.05 + SHORT.cancel, 0.05 + SHORT.cancel), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                async with asyncio.timeout(0.02):
                    await to_thread(stuck, grace=Grace(cancel=0.13))
        assert task.cancelling() == 0


async def test_a_second_cancel_of_the_child_shortens_the_wait_for_its_thread() -> None:
    with stuck_work() as stuck:
        grace = Grace(cancel=60, terminate=0.05)
        async with Scope(grace=grace) as scope:
            handle = scope.spawn(to_thread, stuck)
            await until(stuck.began.is_set)
            handle.cancel()
            await anyio.sleep(0.02)
            with takes(0.05, 0.1):
                handle.cancel()
                await handle.wait()
            assert handle.state == "cancelled"
            stuck.let_go()


async def test_a_second_stop_shortens_the_wait_for_a_thread() -> None:
    with stuck_work() as stuck:
        scope = await Scope.open(grace=LONG)
        scope.spawn(to_thread, stuck)
        await until(stuck.began.is_set)
        scope.cancel()
        await anyio.sleep(0.02)
        with takes(0, 2):
            report = await scope.close(deadline=2)
        assert [left.kind for left in report.left] == ["thread"]
        stuck.let_go()
        assert (await scope.close(deadline=5)).clean


async def test_a_caller_in_a_block_inside_a_stopped_scope_is_let_go_in_time() -> None:
    with stuck_work() as stuck:

        async def child() -> None:
            async with Scope("inner", grace=LONG):
                await to_thread(stuck)

        scope = await Scope.open("outer")
        scope.spawn(child)
        await until(stuck.began.is_set)
        with takes(0, 0.2):
            report = await scope.close(deadline=0.2)
        assert ("thread", "Stuck") in [(left.kind, left.name) for left in report.left]
        stuck.let_go()
        assert (await scope.close(deadline=5)).clean


async def test_a_caller_elsewhere_is_told_when_the_owner_gives_the_thread_up() -> None:
    with stuck_work() as stuck:
        owner = await Scope.open("owner")
        async with Scope("caller's") as scope:
            errors: list[BaseException] = []

            async def call() -> None:
                try:
                    await to_thread(stuck, scope=owner)
                except ScopeClosed as error:
                    errors.append(error)

            handle = scope.spawn(call)
            await until(stuck.began.is_set)
            report = await owner.close(deadline=0.1)
            assert [left.name for left in report.left] == ["Stuck"]
            await handle.wait()
            assert "did not end in time when its scope 'owner' was stopped" in str(errors[0])
            stuck.let_go()
        assert (await owner.close(deadline=5)).clean


async def test_a_cooperative_end_counts_as_cancelled() -> None:
    def work() -> None:
        current_token().wait_sync(10)
        current_token().raise_if_cancelled()

    scope = await Scope.open()
    scope.spawn(to_thread, functools.partial(work))
    await anyio.sleep(0.02)
    report = await scope.close()
    assert [outcome.state for outcome in report.outcomes] == ["cancelled", "cancelled"]
    assert report.clean


async def test_a_token_cancelled_by_the_thread_itself_is_its_callers_to_see() -> None:
    def work() -> None:
        current_token().cancel("enough")
        current_token().raise_if_cancelled()

    with pytest.raises(TokenCancelled, match="enough"):
        await to_thread(work)


# Too late -------------------------------------------------------------------------------------------------------


async def test_a_late_result_is_logged_and_recorded_and_not_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quiesce")
    with stuck_work() as stuck:
        scope = await Scope.open(grace=SHORT)
        scope.spawn(to_thread, stuck)
        await until(stuck.began.is_set)
        assert not (await scope.close()).clean
        assert caplog.records == []
        stuck.let_go()
        report = await scope.close(deadline=5)
    assert [outcome.state for outcome in report.outcomes] == ["cancelled", "finished"]
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "'Stuck' has finished after its caller was cancelled: not used" in caplog.text


async def test_a_late_error_is_logged_and_recorded_and_never_raised(caplog: pytest.LogCaptureFixture) -> None:
    error = LookupError("too late")
    with stuck_work() as stuck:
        async with Scope(grace=LONG) as scope:
            with anyio.move_on_after(0.02):
                await to_thread(stuck, error, grace=SHORT)
            stuck.let_go()
            await until(lambda: caplog.records)
            assert scope.state == "open"
            assert await to_thread(int, "3") == 3
    assert scope.report is not None
    assert scope.report.errors == []
    assert scope.report.clean
    assert "thread 'Stuck' failed after its caller was cancelled: LookupError('too late')" in str(
        scope.report
    )
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.exc_info is not None
    assert record.exc_info[1] is error


async def test_a_late_error_while_stopping_is_an_outcome_and_not_an_error_of_the_scope(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = LookupError("while stopping")
    with stuck_work() as stuck:
        async with Scope(grace=LONG) as scope:
            scope.spawn(to_thread, stuck, error)
            await until(stuck.began.is_set)
            scope.cancel()
            stuck.let_go()
    assert scope.report is not None
    assert [outcome.error for outcome in scope.report.outcomes] == [None, error]
    assert scope.report.errors == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_result_within_the_grace_is_recorded_and_the_cancel_raised() -> None:
    scope = await Scope.open()
    handle = scope.spawn(to_thread, heeds_its_token)
    await anyio.sleep(0.02)
    report = await scope.close()
    assert handle.state == "cancelled"
    assert {outcome.name: outcome.state for outcome in report.outcomes} == {
        "to_thread": "cancelled",
        "heeds_its_token": "finished",
    }


@asyncio_only
async def test_a_cancel_in_the_turn_in_which_the_thread_ends_wins() -> None:
    begins, ends = threading.Event(), threading.Event()

    def work() -> None:
        begins.wait(10)
        ends.set()

    task = asyncio.create_task(to_thread(work))
    await asyncio.sleep(0)
    begins.set()
    assert ends.wait(10)
    time.sleep(0.05)  # the outcome is in the loop's queue by now
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_a_thread_that_outlives_its_loop_ends_in_silence(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    unraisable: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        with stuck_work() as stuck:

            async def main() -> None:
                scope = await Scope.open(grace=SHORT)
                scope.spawn(to_thread, stuck)
                await until(stuck.began.is_set)
                assert not (await scope.close()).clean

            world.run(main)
            names = {thread.name for thread in threading.enumerate()}
            assert "Stuck" in names
        give_up_at = time.monotonic() + 5
        while any(thread.name == "Stuck" for thread in threading.enumerate()):
            assert time.monotonic() < give_up_at
            time.sleep(0.005)
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert stuck.token.cancelled
    assert unraisable == []
    assert caplog.records == []


@asyncio_only
def test_a_caller_that_the_collector_closes_sets_the_token(world: World) -> None:
    with stuck_work() as stuck:
        loop = asyncio.new_event_loop()
        calls: list[Any] = []

        async def main() -> None:
            call = to_thread(stuck)
            calls.append(call)
            call.send(None)
            await until(stuck.began.is_set)

        loop.run_until_complete(main())
        loop.close()
        calls.pop().close()
        assert stuck.token.reason == Reason("shutdown", "the event loop is gone")


# The loop, the limits and the store of threads -------------------------------------------------------------------


async def test_the_event_loop_is_never_blocked_and_nobody_else_is_cancelled() -> None:
    async with an_innocent_bystander() as bystander:
        with stuck_work() as stuck:
            cancel_scope = anyio.CancelScope()

            async def call() -> None:
                with cancel_scope:
                    await to_thread(stuck, grace=LONG)

            async def others_go_on() -> None:
                before = bystander.count
                await until(lambda: bystander.count >= before + 5)
                assert not caller.done

            async with Scope(grace=LONG) as scope:
                caller = scope.spawn(call)
                await until(stuck.began.is_set)
                await others_go_on()
                cancel_scope.cancel()
                await others_go_on()
                stuck.let_go()


async def test_waiting_in_a_cancelled_anyio_scope_burns_no_cpu() -> None:
    with stuck_work() as stuck, anyio.CancelScope() as outer:
        async with Scope() as scope:
            waiting = scope.spawn(anyio.sleep, 0.02)
            await waiting.wait()
            outer.deadline = anyio.current_time() + 0.02
            before = time.process_time()
            try:
                await to_thread(stuck, grace=Grace(cancel=0.4))
            finally:
                assert time.process_time() - before < 0.2
                stuck.let_go()


async def test_no_more_than_the_limit_run_at_once() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        three.wait(15)
        time.sleep(0.01)
        with lock:
            running -= 1

    limiter, three = Slots(3), threading.Barrier(3)
    async with Scope() as scope:
        for _ in range(9):
            scope.spawn(functools.partial(to_thread, work, limiter=limiter))
    assert (running, most) == (0, 3)


async def test_forty_threads_a_loop_run_at_once_by_default_and_the_next_waits() -> None:
    with stuck_work() as stuck:
        began = 0

        def work() -> None:
            nonlocal began
            began += 1
            stuck._let_go.wait(10)

        async with Scope() as scope:
            for _ in range(41):
                scope.spawn(to_thread, work)
            await until(lambda: began == 40)
            await anyio.sleep(0.05)
            assert began == 40
            stuck.let_go()
        assert began == 41


async def test_trap_19_a_thread_that_was_given_up_counts_for_your_limiter_until_it_has_ended() -> None:
    limiter = anyio.CapacityLimiter(1)
    with stuck_work() as stuck:
        async with Scope(grace=LONG) as scope:
            with anyio.move_on_after(0.02):
                await to_thread(stuck, limiter=limiter, grace=SHORT)
            second = scope.spawn(functools.partial(to_thread, str, "second", limiter=limiter))
            await anyio.sleep(0.05)
            assert not second.done
            stuck.let_go()
            with anyio.fail_after(5):
                await second.wait()
            assert second.result() == "second"


async def test_forty_threads_that_were_given_up_keep_nobody_waiting() -> None:
    with stuck_work() as stuck:
        tools = await Scope.open("tools", grace=SHORT)
        for _ in range(40):
            tools.spawn(to_thread, stuck)
        await until(lambda: len(tools._opened().children) == 80)  # callers and threads
        report = await tools.close()
        assert [left.kind for left in report.left] == ["thread"] * 40
        with anyio.fail_after(5):
            assert await to_thread(str, "next") == "next"
        stuck.let_go()
        assert (await tools.close()).clean


async def test_a_thread_whose_owner_gives_it_up_keeps_nobody_waiting() -> None:
    limiter, refused = Slots(1), list[ScopeClosed]()
    owner = await Scope.open("owner", grace=SHORT)

    async def caller_from_outside() -> None:
        try:
            await to_thread(stuck, limiter=limiter, scope=owner)
        except ScopeClosed as error:
            refused.append(error)

    with stuck_work() as stuck:
        async with Scope() as scope:
            scope.spawn(caller_from_outside)
            await until(stuck.began.is_set)
            assert not (await owner.close()).clean
        assert refused
        with anyio.fail_after(5):
            assert await to_thread(str, "next", limiter=limiter) == "next"
        stuck.let_go()
        assert (await owner.close()).clean


async def test_a_slot_of_a_thread_that_was_given_up_is_given_back_once() -> None:
    limiter = Slots(1)
    with stuck_work() as stuck:
        async with Scope(grace=LONG) as scope:
            with anyio.move_on_after(0.02):
                await to_thread(stuck, limiter=limiter, grace=SHORT)
            with stuck_work() as second:
                scope.spawn(functools.partial(to_thread, second, limiter=limiter))
                await until(second.began.is_set)
                stuck.let_go()  # its own slot is the second one's now
                await until(lambda: len(scope._opened().nested) == 0)
                third = scope.spawn(functools.partial(to_thread, str, "third", limiter=limiter))
                await anyio.sleep(0.05)
                assert not third.done


async def test_who_waits_for_a_thread_is_logged_after_a_moment_with_who_holds_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter_module, "SILENT_WAIT", 0.1)
    limiter = Slots(3, "tests")
    with stuck_work() as stuck:
        async with Scope() as scope:
            for threads, name in enumerate(("crawl", "crawl", "search", "first", "second"), 1):
                scope.spawn(functools.partial(to_thread, stuck, limiter=limiter, name=name))
                await until(lambda: len(limiter._holders) + len(limiter._queue) == threads)  # noqa: B023 - awaited here
            await anyio.sleep(0.05)
            assert caplog.records == []
            await until(lambda: caplog.records)
            stuck.let_go()
    assert caplog.records[0].levelname == "WARNING"
    told = caplog.records[0].message
    assert "no thread was free for 'first' and 1 more for 0." in told
    assert (
        "the 3 threads that this event loop has for tests are held by 'crawl' (2 threads, the first for 0."
        in told
    )
    assert "in Stuck.__call__), 'search' (for 0." in told


async def test_a_queue_for_threads_that_moves_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter_module, "SILENT_WAIT", 1.0)
    limiter = Slots(1)
    async with Scope() as scope:
        for _ in range(16):
            scope.spawn(functools.partial(to_thread, time.sleep, 0.1, limiter=limiter))
            await anyio.sleep(0.09)  # somebody waits all the time, and nobody for long
    assert caplog.records == []
    assert limiter._alarm is None


@trio_only
async def test_trios_own_limiter_fits() -> None:
    limiter = trio.CapacityLimiter(1)
    assert await to_thread(lambda: limiter.borrowed_tokens, limiter=limiter) == 1
    assert limiter.borrowed_tokens == 0


async def test_waiting_for_a_slot_can_be_cancelled_and_leaves_nothing() -> None:
    limiter = Slots(1)
    ran: list[str] = []
    with stuck_work() as stuck:
        async with Scope() as scope:
            first = scope.spawn(functools.partial(to_thread, stuck, limiter=limiter))
            await until(stuck.began.is_set)
            with takes(0.02, 0.02), anyio.move_on_after(0.02):
                await to_thread(ran.append, "cancelled", limiter=limiter)
            assert len(scope._opened().children) == 2  # the first caller and its thread
            stuck.let_go()
            await first.wait()
            await to_thread(ran.append, "next", limiter=limiter)
    assert ran == ["next"]


@asyncio_only
async def test_a_slot_that_comes_together_with_a_cancel_is_passed_on() -> None:
    limiter = Slots(1)
    await limiter.acquire_on_behalf_of("first")
    second = asyncio.create_task(limiter.acquire_on_behalf_of("second"))
    third = asyncio.create_task(limiter.acquire_on_behalf_of("third"))
    await asyncio.sleep(0)
    limiter.release_on_behalf_of("first")
    second.cancel()
    await asyncio.wait([second, third], timeout=5)
    assert second.cancelled()
    assert third.done()
    assert not third.cancelled()
    limiter.release_on_behalf_of("third")
    await limiter.acquire_on_behalf_of("fourth")


async def test_a_scope_that_stops_while_its_caller_waits_for_a_slot_refuses() -> None:
    limiter = Slots(1)
    ran: list[str] = []
    owner = await Scope.open("owner")
    with stuck_work() as stuck:
        async with Scope() as scope:
            scope.spawn(functools.partial(to_thread, stuck, limiter=limiter))
            await until(stuck.began.is_set)
            refused: list[str] = []

            async def late() -> None:
                try:
                    await to_thread(ran.append, "too late", limiter=limiter, scope=owner)
                except ScopeClosed as error:
                    refused.append(str(error))

            waiting = scope.spawn(late)
            await turns()
            await owner.close()
            stuck.let_go()
            await waiting.wait()
            assert await to_thread(str, "free again", limiter=limiter) == "free again"
    assert ran == []
    assert "cannot start thread" in refused[0]
    assert "'owner'" in refused[0]


async def test_an_idle_thread_is_used_again() -> None:
    first = await to_thread(threading.get_ident)
    assert await to_thread(threading.get_ident) == first
    assert [t.name for t in threading.enumerate() if t.ident == first] == [idle_threads.IDLE_NAME]


async def test_an_idle_thread_leaves_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    idle_threads._idle.clear()
    monkeypatch.setattr(idle_threads, "IDLE_SECONDS", 0.02)
    ident = await to_thread(threading.get_ident)
    await until(lambda: ident not in [t.ident for t in threading.enumerate()])
    assert await to_thread(str, "a new one") == "a new one"


async def test_if_no_thread_can_be_started_nothing_is_left_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    limiter = Slots(1)
    async with Scope() as scope:
        idle_threads._idle.clear()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await to_thread(str, limiter=limiter)
        assert not scope._opened().children
        assert await to_thread(str, "later", limiter=limiter) == "later"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_count_on_threads_that_stayed_in_the_parent() -> None:
    program = """
        import asyncio, os, sys, warnings
        from quiesce.kernel.threads.thread_call import to_thread
        warnings.simplefilter("ignore", DeprecationWarning)
        assert asyncio.run(to_thread(str, "parent")) == "parent"
        pid = os.fork()
        if pid == 0:
            asyncio.run(asyncio.wait_for(to_thread(str, "child"), 5))
            os._exit(7)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=15, check=False)
    assert done.returncode == 7


def test_idle_and_stuck_threads_do_not_hold_up_the_end_of_the_interpreter() -> None:
    program = """
        import asyncio, threading, time
        from quiesce import Grace, Scope
        from quiesce.kernel.threads.thread_call import to_thread

        async def main():
            await asyncio.gather(*(to_thread(time.sleep, 0.01) for _ in range(5)))
            scope = await Scope.open(grace=Grace(cancel=0.05, terminate=0, kill=0))
            scope.spawn(to_thread, time.sleep, 100)
            await asyncio.sleep(0.02)
            print(*(left.name for left in (await scope.close()).left))

        asyncio.run(main())
    """
    with takes(0, 2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            timeout=15,
            check=False,
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "sleep\n", "")


# Bad use --------------------------------------------------------------------------------------------------------


async def test_a_stopping_scope_refuses_before_anything_starts() -> None:
    ran: list[str] = []
    scope = await Scope.open("closed early")
    await scope.close()
    with pytest.raises(ScopeClosed, match="cannot start thread 'append' in scope 'closed early'"):
        await to_thread(ran.append, "late", scope=scope, name="append")
    await anyio.sleep(0.02)
    assert ran == []


async def test_in_clean_up_a_shielded_thread_is_accepted() -> None:
    tidied: list[str] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await shielded(to_thread, tidied.append, "tidy")

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    report = await scope.close()
    assert tidied == ["tidy"]
    assert report.clean


async def an_async_function() -> None:
    pytest.fail("must not run")


class AsyncCallable:
    async def __call__(self) -> None:
        pytest.fail("must not run")


async def test_something_async_instead_of_a_sync_function_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match="an_async_function is async: await it, or spawn it"):
        await to_thread(an_async_function)  # type: ignore[unused-coroutine]
    with pytest.raises(TypeError, match="an_async_function is async"):
        await to_thread(functools.partial(an_async_function))  # type: ignore[unused-coroutine]
    with pytest.raises(TypeError, match="AsyncCallable is async"):
        await to_thread(AsyncCallable())  # type: ignore[unused-coroutine]
    with pytest.raises(TypeError, match=r"not a coroutine: await an_async_function\(...\) instead"):
        await to_thread(an_async_function())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"which here gave it int"):
        await to_thread(len("abc"))  # type: ignore[arg-type]


def test_without_an_event_loop_the_error_says_so() -> None:
    call = to_thread(str, "x")
    with pytest.raises(RuntimeError, match="needs a running event loop"):
        call.send(None)


@trio_only
async def test_on_trio_a_cancelled_caller_starts_nothing() -> None:
    ran: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await to_thread(ran.append, "started")
    assert scope.cancelled_caught
    await trio.sleep(0.02)
    assert ran == []


async def test_the_cancellation_that_comes_out_is_the_worlds_own() -> None:
    with stuck_work() as stuck:
        caught: list[BaseException] = []
        with anyio.move_on_after(0.02):
            try:
                await to_thread(stuck, grace=SHORT)
            except cancellation() as error:
                caught.append(error)
                raise
        assert len(caught) == 1
