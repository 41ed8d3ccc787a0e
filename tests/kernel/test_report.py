"""What a stop says of itself."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from quiesce import Grace, Leftover, Outcome, Reason, Scope, StopReport
from quiesce.kernel.inner import spawn_unnamed
from quiesce.kernel.scope.stop_listeners import fields_of, is_trouble
from tests.kernel.temperaments import (
    Stubborn,
    fails,
    fails_in_clean_up,
    quick,
    sleeper,
    swallows,
    turns,
    virtual_worlds,
)


@virtual_worlds
async def test_every_child_of_the_stop_has_one_outcome() -> None:
    stubborn = Stubborn()
    scope = await Scope.open("crew", on_error="report", on_child_error=lambda handle, error: None)
    early = ValueError("early")
    scope.spawn(fails, early, name="failed early")
    scope.spawn(quick, name="finished early")
    await turns()
    late = ValueError("late")
    scope.spawn(sleeper, name="cancelled")
    scope.spawn(swallows, 0.1, name="finished")
    scope.spawn(fails_in_clean_up, late, name="failed")
    scope.spawn(stubborn, name="stubborn")
    await turns()
    report = await scope.close(deadline=0.5, reason="enough")
    assert set(report.outcomes) == {
        Outcome("failed early", "failed", early),
        Outcome("cancelled", "cancelled"),
        Outcome("finished", "finished"),
        Outcome("failed", "failed", late),
        Outcome("stubborn", "still running"),
    }
    assert len(report.outcomes) == 5
    assert report.ended == 5
    assert report.errors == [early, late]
    assert [left.name for left in report.left] == ["stubborn"]
    assert not report.clean
    assert report.elapsed == pytest.approx(0.5)
    assert report.reason == Reason("user", "enough")
    assert report.name == "crew"
    assert scope.report is report
    stubborn.let_go()
    assert not (await scope.close()).left


@virtual_worlds
async def test_a_report_prints_well() -> None:
    stubborn = Stubborn()
    scope = await Scope.open("crew", on_error="report", on_child_error=lambda handle, error: None)
    scope.spawn(sleeper)
    scope.spawn(fails_in_clean_up, ValueError("late"), name="worker")
    scope.spawn(stubborn, name="stubborn")
    await turns()
    report = await scope.close(deadline=0.25, reason=Reason("user", "Esc pressed"))
    lines = str(report).splitlines()
    assert lines[0] == (
        "scope 'crew' stopped (user: Esc pressed) in 0.250 s: 1 cancelled, 1 failed, 1 still running, 1 left"
    )
    assert lines[1].startswith("  left: task 'stubborn', stuck at ")
    assert "made at tests/kernel/test_report.py:" in lines[1]
    assert lines[2] == "  failed: worker: ValueError('late')"
    assert len(lines) == 3
    stubborn.let_go()
    assert not (await scope.close()).left


async def test_a_report_of_a_scope_that_simply_ended() -> None:
    async with Scope("crew") as scope:
        scope.spawn(quick)
        scope.spawn(quick)
    report = scope.report
    assert report is not None
    assert report.reason is None
    assert report.clean
    assert report.ended == 2
    assert report.outcomes == []
    assert str(report) == "scope 'crew' ended: 2 children, nothing left"


async def test_there_is_no_report_before_the_end() -> None:
    scope = Scope("crew")
    assert scope.report is None
    async with scope:
        assert scope.report is None


@virtual_worlds
async def test_elapsed_is_from_the_first_signal_to_the_end() -> None:
    scope = await Scope.open()
    scope.spawn(sleeper, None, "child", 1.0)
    await turns()
    await anyio.sleep(5)
    scope.cancel()
    await anyio.sleep(0.25)
    report = await scope.close()
    assert report.elapsed == pytest.approx(1.0)
    await anyio.sleep(5)
    assert (await scope.close()).elapsed == pytest.approx(1.0)


async def test_an_empty_report_prints_well_too() -> None:
    scope = await Scope.open("nobody")
    report = await scope.close()
    assert str(report) == "scope 'nobody' stopped (user: closed) in 0.000 s: nothing left"


def test_leftovers_and_outcomes_are_values() -> None:
    assert Leftover("task", "a", "x.py:1", "y.py:2") == Leftover("task", "a", "x.py:1", "y.py:2")
    assert str(Leftover("task", "a", "x.py:1", "y.py:2")) == "task 'a', stuck at y.py:2, made at x.py:1"
    assert str(Outcome("a", "cancelled")) == "a: cancelled"
    assert str(Outcome("a", "failed", ValueError("no"))) == "a: failed, ValueError: no"


async def test_a_report_is_of_its_moment() -> None:
    stubborn = Stubborn()
    scope = await Scope.open(grace=Grace(cancel=0.02, terminate=0, kill=0))
    handle = scope.spawn(stubborn)
    await turns()
    first: StopReport = await scope.close()
    text = str(first)
    stubborn.let_go()
    await handle.wait()
    assert first.outcomes == [Outcome("Stubborn", "still running")]
    assert str(first) == text
    second = await scope.close()
    assert second.outcomes == [Outcome("Stubborn", "finished")]
    assert second.clean


async def test_the_report_of_a_cancelled_closer_is_kept_on_the_scope() -> None:
    scope = await Scope.open("kept")
    scope.spawn(sleeper, None, "child", 0.01)
    await turns()
    with anyio.CancelScope() as around:
        around.cancel()
        await scope.close(reason="quietly")
    assert scope.report is not None
    assert scope.report.reason == Reason("user", "quietly")
    assert scope.report.clean


@virtual_worlds
async def test_the_end_of_a_block_with_leftovers_has_a_report_that_names_them() -> None:
    stubborn = Stubborn()
    async with Scope("hall", grace=Grace(cancel=0.1, terminate=0.1, kill=0.1)) as scope:
        scope.spawn(stubborn, name="straggler")
        await turns()
        scope.cancel()
    assert scope.report is not None
    assert [left.name for left in scope.report.left] == ["straggler"]
    stubborn.let_go()
    assert (await scope.close()).clean


@pytest.mark.parametrize(("left", "told"), [(0, "nothing left"), (1, "1 left")])
def test_what_could_not_be_looked_at_is_said_and_not_called_clean(left: int, told: str) -> None:
    leftovers = [Leftover("task", "worker", "app.py:1", "app.py:2")] * left
    report = StopReport(
        "crew", Reason("user"), 0.25, leftovers, 0, unseen=("processes: /proc is\x1b[2J hidden",)
    )
    assert not report.clean
    lines = str(report).splitlines()
    assert lines[0] == f"scope 'crew' stopped (user) in 0.250 s: {told}, as far as can be seen"
    assert lines[-1] == "  unseen: processes: /proc is␛[2J hidden"
    assert fields_of(report)["quiesce_unseen"] == ["processes: /proc is␛[2J hidden"]
    assert is_trouble(report) == bool(left)


@virtual_worlds
async def test_a_clean_up_that_failed_is_trouble_and_what_is_unseen_alone_is_not() -> None:
    scope = await Scope.open("crew", on_error="report", on_child_error=lambda handle, error: None)
    scope.spawn(fails_in_clean_up, ValueError("late"), name="worker")
    await turns()
    report = await scope.close()
    assert is_trouble(report)
    assert not is_trouble(replace(report, _failed_while_stopping=0, unseen=("processes",)))


async def test_a_running_coroutine_is_not_said_to_wait_in_the_kernel() -> None:
    """Asked for from another thread, while it blocks the loop: what it awaits is not known, what it runs is."""
    seen: list[str] = []

    async def blocks() -> None:
        asker = threading.Thread(target=lambda: seen.append(handle._stuck_at()))
        asker.start()
        asker.join(5)

    async with Scope() as scope:
        handle = scope.spawn(quick)
        await handle.wait()
        handle = scope.spawn(blocks_after_a_turn, blocks)
    assert len(seen) == 1
    assert "quiesce/kernel" not in seen[0]


async def blocks_after_a_turn(blocks: Callable[[], Awaitable[None]]) -> None:
    await anyio.sleep(0)
    await blocks()


@virtual_worlds
async def test_what_was_spawned_without_a_name_is_waited_for_and_not_named() -> None:
    stubborn = Stubborn()
    scope = await Scope.open()
    handle = spawn_unnamed(scope, stubborn)
    scope.spawn(sleeper)
    await turns()
    report = await scope.close(deadline=0.1)
    state = scope.state
    stubborn.let_go()
    await handle.wait()
    assert [outcome.name for outcome in report.outcomes] == ["sleeper"]
    assert list(report.left) == []
    assert state == "expired"
    assert (await scope.close()).clean
