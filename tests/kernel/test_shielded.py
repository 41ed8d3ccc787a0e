"""`shielded`: clean-up that finishes however often the caller is cancelled."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
import trio

from quiesce import (
    ChildCancelled,
    Grace,
    Handle,
    Scope,
    current_scope,
    current_token,
    shielded,
)
from quiesce.kernel.scope.lifecycle import ScopeCore
from tests.kernel.temperaments import (
    Stubborn,
    an_innocent_bystander,
    cancellation,
    fails,
    fails_in_clean_up,
    quick,
    sleeper,
    turns,
    virtual_asyncio,
    virtual_worlds,
)
from tests.world import asyncio_only, trio_only


class Flush:
    """A clean-up of several awaits, that says how far it came."""

    def __init__(self, seconds: float = 0.03) -> None:
        self.seconds = seconds
        self.steps: list[str] = []

    async def __call__(self) -> str:
        self.steps.append("begun")
        await anyio.sleep(self.seconds)
        self.steps.append("half")
        await anyio.sleep(self.seconds)
        self.steps.append("done")
        return "flushed"


async def works_then(clean_up: Callable[[], Awaitable[Any]]) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        await shielded(clean_up)


# The call ---------------------------------------------------------------------------------------------------


async def test_it_returns_the_result() -> None:
    async def add(one: int, two: int) -> int:
        await anyio.sleep(0.01)
        return one + two

    assert await shielded(add, 1, 2) == 3


async def test_it_raises_the_error_as_itself() -> None:
    error = OSError("disk full")
    with pytest.raises(OSError, match="disk full") as caught:
        await shielded(fails, error, 0.01)
    assert caught.value is error


async def test_system_exit_is_contained_and_raised_in_the_caller() -> None:
    with pytest.raises(SystemExit) as caught:
        await shielded(fails, SystemExit(3), 0.01)
    assert caught.value.code == 3


async def test_it_runs_in_its_own_task_with_a_copy_of_the_callers_context() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    seen: list[Any] = []

    def this_task() -> object:
        return anyio.get_current_task().id

    async def clean_up() -> None:
        seen.extend((this_task(), variable.get()))
        variable.set("changed inside")

    variable.set("callers")
    await shielded(clean_up)
    assert seen[0] != this_task()
    assert seen[1] == "callers"
    assert variable.get() == "callers"


# The caller is cancelled ------------------------------------------------------------------------------------


@asyncio_only
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_cancelled_once_twice_or_three_times_it_finishes_and_the_cancel_is_raised(times: int) -> None:
    """Trap 9: `finally: await asyncio.shield(close())` returned before the close had finished."""
    flush = Flush()
    after: list[str] = []

    async def call() -> None:
        await shielded(flush)
        after.append("went on")

    task = asyncio.create_task(call())
    await anyio.sleep(0.01)
    for _ in range(times):
        task.cancel()
        await anyio.sleep(0.01)
    await asyncio.wait([task])
    assert flush.steps == ["begun", "half", "done"]
    assert task.cancelled()
    assert task.cancelling() == times
    assert after == []


@asyncio_only
@pytest.mark.parametrize("again_after", [None, 0, 1, 2])
async def test_cancelled_at_every_turn_of_the_loop_it_finishes(again_after: int | None) -> None:
    async def clean_up() -> None:
        await turns(4)
        done.append("done")

    async def call() -> str:
        try:
            await turns(2)
        finally:
            await shielded(clean_up)
        return "finished"

    for turn in range(1, 14):
        done: list[str] = []
        task = asyncio.ensure_future(call())
        await turns(turn)
        asked = task.cancel()
        if again_after is not None:
            await turns(again_after)
            task.cancel()
        await asyncio.wait([task])
        assert done == ["done"], f"cancelled at turn {turn}"
        assert task.cancelled() if asked else task.result() == "finished"


async def test_in_a_finally_under_cancellation_every_await_of_it_works() -> None:
    flush = Flush()
    async with Scope() as scope:
        handle = scope.spawn(works_then, flush)
        await turns()
        handle.cancel()
    assert flush.steps == ["begun", "half", "done"]
    assert handle.state == "cancelled"


async def test_inside_a_cancelled_anyio_scope() -> None:
    flush = Flush()
    with anyio.move_on_after(0.01) as scope:
        await works_then(flush)
    assert scope.cancelled_caught
    assert flush.steps == ["begun", "half", "done"]


@trio_only
async def test_a_trio_deadline_that_passes_meanwhile_is_raised_after_it() -> None:
    flush = Flush(1)
    began = trio.current_time()
    with trio.move_on_after(0.5) as scope:
        await shielded(flush)
        pytest.fail("the deadline was lost")
    assert scope.cancelled_caught
    assert flush.steps == ["begun", "half", "done"]
    assert trio.current_time() - began == pytest.approx(2)


@asyncio_only
async def test_asyncio_timeout_around_it_raises_timeout_error_after_it() -> None:
    flush = Flush()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await shielded(flush)
    assert flush.steps == ["begun", "half", "done"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancelled_while_it_runs_the_error_is_the_cause_of_the_cancel() -> None:
    caught: list[BaseException] = []
    error = OSError("disk full")

    async def call() -> None:
        try:
            await shielded(fails, error, 0.05)
        except BaseException as exc:
            caught.append(exc)
            raise

    scope = await Scope.open()
    handle = scope.spawn(call)
    await anyio.sleep(0.01)
    handle.cancel()
    await handle.wait()
    assert isinstance(caught[0], cancellation())
    assert caught[0].__cause__ is error
    # And so it is not lost: a clean-up that failed is the child's failure.
    assert handle.error is error
    assert (await scope.close()).errors == [error]


async def test_its_token_is_its_own_and_not_cancelled_with_the_callers() -> None:
    seen: list[bool] = []

    async def look() -> None:
        await anyio.sleep(0.01)
        seen.append(current_token().cancelled)

    async def call() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(current_token().cancelled)
            await shielded(look)

    scope = await Scope.open()
    scope.spawn(call)
    await turns()
    await scope.close()
    assert seen == [True, False]


# Where it may be called -------------------------------------------------------------------------------------


async def test_in_a_scope_that_is_stopping_and_the_scope_waits_for_it() -> None:
    flush = Flush()
    scope = await Scope.open()
    scope.spawn(works_then, flush)
    await turns()
    report = await scope.close()
    assert flush.steps == ["begun", "half", "done"]
    assert report.clean


@virtual_worlds
async def test_it_has_its_time_though_the_scopes_own_is_over() -> None:
    flush = Flush(1)
    scope = await Scope.open(grace=Grace(cancel=0.1, terminate=0.1, kill=0.1))

    async def call() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await shielded(flush, within=5)

    scope.spawn(call)
    await turns()
    report = await scope.close()
    assert flush.steps == ["begun"]
    assert not report.clean
    assert (await scope.close(grace=Grace(cancel=5))).clean
    assert flush.steps == ["begun", "half", "done"]


async def test_in_the_body_of_a_block_whose_child_has_failed() -> None:
    flush = Flush()
    with pytest.raises(ExceptionGroup):
        async with Scope() as scope:
            scope.spawn(fails, OSError("child"), 0.01)
            try:
                await anyio.sleep_forever()
            finally:
                await shielded(flush)
    assert flush.steps == ["begun", "half", "done"]


async def test_in_a_scope_that_has_settled() -> None:
    scope = await Scope.open("over")
    await scope.close()
    assert await shielded(quick, 1, scope=scope) == 1

    async def orphan() -> None:
        await leave.wait()
        done.append(await shielded(Flush(0.01)))

    leave, done = anyio.Event(), list[str]()
    async with anyio.create_task_group() as group:
        async with Scope():
            group.start_soon(orphan)  # its context is the scope's, and outlives it
            await turns()
        leave.set()
    assert done == ["flushed"]


async def test_in_the_finaliser_of_an_async_generator() -> None:
    flush = Flush()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await shielded(flush)

    stream = numbers()
    assert await anext(stream) == 1
    with anyio.move_on_after(0.01):
        await stream.aclose()  # type: ignore[attr-defined]
    assert flush.steps == ["begun", "half", "done"]


async def test_a_clean_up_that_closes_the_callers_scope_does_not_deadlock() -> None:
    scope = await Scope.open(grace=Grace(cancel=5, terminate=5, kill=5))
    began = anyio.current_time()
    reports = []

    async def close_it() -> None:
        reports.append(await scope.close())

    handle = scope.spawn(shielded, close_it)
    await handle.wait()
    assert reports[0].clean
    assert anyio.current_time() - began < 4


async def test_no_bystander_is_disturbed() -> None:
    async with an_innocent_bystander():
        with anyio.move_on_after(0.01):
            await works_then(Flush())


# Its time ---------------------------------------------------------------------------------------------------


@virtual_worlds
async def test_out_of_time_it_is_cancelled_once_and_timeout_error_is_raised() -> None:
    log: list[str] = []
    began = anyio.current_time()
    with pytest.raises(TimeoutError, match="'sleeper' was cancelled: it took longer than 2 s"):
        await shielded(sleeper, log, "clean-up", 0.5, within=2)
    assert log == ["clean-up stops", "clean-up is tidy"]
    assert anyio.current_time() - began == pytest.approx(2.5)


@virtual_worlds
async def test_by_default_it_has_the_cancel_time_of_the_current_scope() -> None:
    began = anyio.current_time()
    async with Scope(grace=Grace(cancel=7)):
        with pytest.raises(TimeoutError, match="7 s"):
            await shielded(sleeper)
    assert anyio.current_time() - began == pytest.approx(7)


@virtual_asyncio
async def test_what_refuses_gets_one_cancel_and_the_terminate_time_and_stays_owned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stubborn = Stubborn()
    scope = await Scope.open("owner", grace=Grace(cancel=1, terminate=2, kill=1))
    began = anyio.current_time()

    async def call() -> None:
        with pytest.raises(TimeoutError, match=r"ignores its cancellation, at .*temperaments\.py"):
            await shielded(stubborn)

    with caplog.at_level(logging.WARNING, "quiesce"):
        await scope.spawn(call).wait()
    assert anyio.current_time() - began == pytest.approx(3)
    assert len(stubborn.cancels) == 1
    assert "Stubborn" in caplog.text
    report = await scope.close(deadline=0.1)
    assert [left.name for left in report.left] == ["Stubborn"]
    assert "test_shielded.py" in report.left[0].made_at
    stubborn.let_go()
    assert (await scope.close()).clean


@trio_only
async def test_on_trio_what_refuses_stays_owned_too() -> None:
    stubborn = Stubborn()
    scope = await Scope.open("owner", grace=Grace(cancel=1, terminate=2, kill=1))
    began = trio.current_time()
    with pytest.raises(TimeoutError, match="ignores its cancellation"):
        await shielded(stubborn, scope=scope)
    assert trio.current_time() - began == pytest.approx(3)
    report = await scope.close(deadline=0.1)
    assert [left.name for left in report.left] == ["Stubborn"]
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_worlds
async def test_out_of_time_and_cancelled_the_cancel_is_raised_with_the_timeout_as_cause() -> None:
    caught: list[BaseException] = []

    async def call() -> None:
        try:
            await shielded(sleeper, within=1)
        except BaseException as exc:
            caught.append(exc)
            raise

    scope = await Scope.open()
    handle = scope.spawn(call)
    await anyio.sleep(0.5)
    handle.cancel()
    await handle.wait()
    assert isinstance(caught[0], cancellation())
    assert isinstance(caught[0].__cause__, TimeoutError)
    assert handle.error is caught[0].__cause__
    await scope.close()


@virtual_worlds
async def test_an_error_in_reaction_to_its_time_being_over_is_raised_as_itself() -> None:
    with pytest.raises(OSError, match="socket"):
        await shielded(fails_in_clean_up, OSError("socket"), within=1)


@virtual_worlds
async def test_without_a_bound_it_may_take_a_day() -> None:
    began = anyio.current_time()
    assert await shielded(Flush(43_200), within=float("inf")) == "flushed"
    assert anyio.current_time() - began == pytest.approx(86_400)


@virtual_worlds
async def test_the_late_error_of_a_leftover_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    stubborn = Stubborn()

    async def clean_up() -> None:
        await stubborn()
        raise OSError("late")

    with pytest.raises(TimeoutError):
        await shielded(clean_up, within=0.1)
    assert "OSError" not in caplog.text
    stubborn.let_go()
    await turns(5)
    assert "OSError: late" in caplog.text


# What it starts ---------------------------------------------------------------------------------------------


async def test_what_it_starts_in_the_current_scope_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    flush = Flush()
    handles: list[Handle] = []

    async def clean_up() -> None:
        handles.append(current_scope().spawn(flush))
        handles.append(current_scope().spawn(fails, OSError("helper")))

    await shielded(clean_up)
    assert handles[0].result() == "flushed"
    assert "OSError: helper" in caplog.text


async def test_a_block_inside_it_works_as_everywhere() -> None:
    async def clean_up() -> None:
        async with Scope() as scope:
            scope.spawn(fails, OSError("child"), 0.01)
            await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup):
        await shielded(clean_up)


@asyncio_only
async def test_one_that_cancels_itself_is_not_the_callers_cancel() -> None:
    async def clean_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ChildCancelled, match="clean_up"):
        await shielded(clean_up)


# The end of the program -------------------------------------------------------------------------------------


SHUTDOWN = {
    "asyncio": """
        import asyncio, sys
        from quiesce import shielded

        async def clean_up():
            for step in range(3):
                await asyncio.sleep(0.02)
                print("step%d" % step)

        async def work():
            try:
                await asyncio.sleep(60)
            finally:
                await shielded(clean_up)
                print("tidy")

        async def in_the_middle():
            await shielded(clean_up)
            print("not reached")

        async def main():
            task = asyncio.create_task({what}())
            await asyncio.sleep(0.01)
            # and here asyncio.run cancels what is left

        asyncio.run(main())
        print("end")
    """,
    "trio": """
        import trio
        from quiesce import shielded

        async def clean_up():
            for step in range(3):
                await trio.sleep(0.02)
                print("step%d" % step)

        async def work():
            try:
                await trio.sleep(60)
            finally:
                await shielded(clean_up)
                print("tidy")

        async def in_the_middle():
            await shielded(clean_up)
            print("not reached")

        async def main():
            trio.lowlevel.spawn_system_task({what})
            await trio.sleep(0.01)
            # and here trio.run cancels the system tasks

        trio.run(main)
        print("end")
    """,
}


def run_program(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("what", ["work", "in_the_middle"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_end_of_the_run_does_not_cut_it(backend: str, what: str) -> None:
    printed = run_program(SHUTDOWN[backend].format(what=what))
    # asyncio had delivered its one cancel before the clean-up began; trio's comes again after it.
    tidy = ["tidy"] if backend == "asyncio" and what == "work" else []
    assert printed.split() == ["step0", "step1", "step2", *tidy, "end"]


FINALISER = """
    import trio
    from quiesce import Scope
    from quiesce import shielded

    async def clean_up(seconds):
        print("begun")
        await trio.sleep(seconds)
        print("done")

    async def numbers(seconds, within):
        try:
            yield 1
        finally:
            try:
                await shielded(clean_up, seconds, within=within)
            except TimeoutError as error:
                print(str(error).replace(" ", "_"))

    held = []

    async def main(known, seconds, within):
        if known:
            async with Scope():
                pass
        held.append(numbers(seconds, within))
        await anext(held[0])

    trio.run(main, {known}, {seconds}, {within})
"""


@pytest.mark.parametrize("known", [True, False])
def test_a_generator_that_is_finalised_at_the_very_end_of_a_trio_run(known: bool) -> None:
    """Trap 20: no system task can be started there any more."""
    assert run_program(FINALISER.format(known=known, seconds=0.01, within=None)).split() == ["begun", "done"]
    begun, timeout = run_program(FINALISER.format(known=known, seconds=60, within=0.05)).split()
    assert begun == "begun"
    assert timeout == "the_clean-up_'clean_up'_was_cancelled:_it_took_longer_than_0.05_s"


async def test_a_task_that_cannot_be_started_leaves_nothing_with_the_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scope = await Scope.open()

    def fails_to_start(self: ScopeCore, handle: Handle, *args: Any) -> None:
        self.children.pop(handle, None)
        raise RuntimeError("no more tasks")

    with monkeypatch.context() as patch:
        patch.setattr(ScopeCore, "start", fails_to_start)
        with pytest.raises(RuntimeError, match="no more tasks"):
            await shielded(quick, scope=scope)
    assert (await scope.close(deadline=0.1)).clean


# Bad use ----------------------------------------------------------------------------------------------------


async def test_a_coroutine_instead_of_a_function_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match="not a coroutine"):
        await shielded(quick(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("within", [-1, float("nan")])
async def test_a_negative_time_is_a_clear_error(within: float) -> None:
    with pytest.raises(ValueError, match="within"):
        await shielded(quick, within=within)


async def test_a_scope_that_is_not_open_yet_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="not open yet"):
        await shielded(quick, scope=Scope("new"))


@virtual_worlds
async def test_a_clean_up_of_ours_that_waits_for_another_is_not_called_deaf() -> None:
    stubborn = Stubborn()
    deaf = await Scope.open("deaf", grace=Grace(cancel=60))
    deaf.spawn(stubborn)
    with pytest.raises(TimeoutError, match=r"the clean-up 'Scope\.close' still waits, at "):
        await shielded(deaf.close, within=1)
    stubborn.let_go()
    assert (await deaf.close()).clean
    await turns()  # the clean-up returns, too


END_OF_ASYNCIO = """
    import asyncio
    from quiesce import Scope
    from quiesce import shielded

    async def step(name):
        await asyncio.sleep(0.05)
        print(name)

    async def clean_up():
        await step("child")

    async def clean_up_with_a_scope():
        async with Scope() as scope:
            scope.spawn(step, "grandchild")

    async def main():
        tasks.append(asyncio.create_task(shielded({which})))
        await asyncio.sleep(0.01)
        # and here asyncio.run cancels what is left

    tasks = []
    asyncio.run(main())
    print("end")
"""


def test_the_sweep_of_asyncio_run_does_not_cut_a_child_of_a_late_scope() -> None:
    assert run_program(END_OF_ASYNCIO.format(which="clean_up")).split() == ["child", "end"]


def test_the_sweep_of_asyncio_run_does_not_cut_what_is_nested_in_a_late_scope() -> None:
    printed = run_program(END_OF_ASYNCIO.format(which="clean_up_with_a_scope"))
    assert printed.split() == ["grandchild", "end"]
