"""Demand 5: a supervisor lets the siblings live. And what is never wrapped in a group."""

from __future__ import annotations

import asyncio
import gc
import logging

import anyio
import pytest

from quiesce import Handle, Reason, Scope
from tests.kernel.temperaments import (
    fails,
    fails_in_clean_up,
    forever,
    sleeper,
    turns,
)
from tests.world import asyncio_only


def texts(group: BaseExceptionGroup[BaseException]) -> list[str]:
    return [str(error) for error in group.exceptions]


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
    with pytest.raises(SystemExit) as caught:
        async with Scope() as scope:
            handle = scope.spawn(fails, SystemExit(3))
            await forever()
    assert handle.state == "failed"
    assert handle.error is caught.value


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
    assert len({error.args for error in report.errors}) == 100
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


async def test_an_async_function_that_awaits_what_it_cannot_is_not_taken_for_a_sync_one() -> None:
    async def awaits_a_number() -> None:
        await 1  # type: ignore[misc]

    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    handle = scope.spawn(awaits_a_number)
    await handle.wait()
    assert isinstance(handle.error, TypeError)
    assert not hasattr(handle.error, "__notes__")
    await scope.close()
