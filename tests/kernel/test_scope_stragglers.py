"""Demand 4: children that do not go when they are told to. Each has a defined outcome, in bounded time."""

from __future__ import annotations

import asyncio
import logging
import time

import anyio
import pytest
import trio

from quiesce import Grace, Reason, Scope, ScopeClosed, current_scope
from tests.kernel.temperaments import (
    Stubborn,
    fails_in_clean_up,
    quick,
    sleeper,
    swallows,
    turns,
    virtual_asyncio,
    virtual_worlds,
)
from tests.world import asyncio_only, trio_only

# Deadlines --------------------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_deadline_of_a_tenth_of_a_second_returns_then_and_names_the_straggler() -> None:
    stubborn = Stubborn()
    scope = await Scope.open("crew")
    scope.spawn(stubborn, name="straggler")
    scope.spawn(sleeper)
    await turns()
    start = anyio.current_time()
    report = await scope.close(deadline=0.1)
    assert anyio.current_time() - start == pytest.approx(0.1)
    assert not report.clean
    [left] = report.left
    assert left.kind == "task"
    assert left.name == "straggler"
    assert "test_scope_stragglers.py" in left.made_at
    assert "test_a_deadline_of_a_tenth" in left.made_at
    assert "temperaments.py" in left.stuck_at
    assert "Stubborn.__call__" in left.stuck_at
    assert [(o.name, o.state) for o in report.outcomes] == [
        ("straggler", "still running"),
        ("sleeper", "cancelled"),
    ]
    assert scope.state == "expired"
    stubborn.let_go()
    assert (await scope.close()).clean


@pytest.mark.real_time
async def test_a_deadline_holds_on_the_real_clock() -> None:
    stubborn = Stubborn()
    scope = await Scope.open()
    scope.spawn(stubborn)
    await turns()
    start = time.monotonic()
    report = await scope.close(deadline=0.1)
    assert 0.09 < time.monotonic() - start < 4  # and not the five of the default
    assert len(report.left) == 1
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_worlds
async def test_a_straggler_stays_owned_and_a_later_close_waits_for_it_again() -> None:
    stubborn = Stubborn()
    scope = await Scope.open()
    handle = scope.spawn(stubborn)
    await turns()
    assert not (await scope.close(deadline=0.1)).clean
    assert scope.children == (handle,)
    with pytest.raises(ScopeClosed):
        scope.spawn(quick)

    start = anyio.current_time()
    assert not (await scope.close(deadline=0.2)).clean
    assert anyio.current_time() - start == pytest.approx(0.2)

    async with anyio.create_task_group() as group:

        async def let_go() -> None:
            await anyio.sleep(0.3)
            stubborn.let_go()

        group.start_soon(let_go)
        start = anyio.current_time()
        report = await scope.close(deadline=10)
    assert anyio.current_time() - start == pytest.approx(0.3)
    assert report.clean
    assert stubborn.gone
    assert scope.state == "settled"


@virtual_asyncio
@pytest.mark.parametrize("where", ["itself", "nested"])
async def test_closing_an_expired_scope_again_cancels_the_child_again_and_ends_it(where: str) -> None:
    """On trio a cancel stays: a child that ignores it once meets it again at its next await."""
    cancels: list[float] = []

    async def gives_in_at_the_third_cancel() -> None:
        while len(cancels) < 3:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancels.append(anyio.current_time())
        raise asyncio.CancelledError

    scope = await Scope.open("outer")
    owner = scope if where == "itself" else await Scope.open("inner", scope=scope)
    handle = owner.spawn(gives_in_at_the_third_cancel)
    await turns()
    first = await scope.close(deadline=1)
    assert [left.name for left in first.left] == [handle.name]
    assert len(cancels) == 2
    start = anyio.current_time()
    second = await scope.close(deadline=1)
    assert second.clean
    assert anyio.current_time() - start < 1, "it was waited for, and not until the deadline"
    assert len(cancels) == 3
    assert handle.state == "cancelled"
    assert scope.state == "settled"


@virtual_worlds
async def test_a_straggler_that_ends_by_itself_settles_the_expired_scope() -> None:
    stubborn = Stubborn()
    scope = await Scope.open()
    handle = scope.spawn(stubborn)
    await turns()
    first = await scope.close(deadline=0.1)
    stubborn.let_go()
    await handle.wait()
    assert scope.state == "settled"
    assert not first.clean, "a report says what was so when it was made"
    assert [o.state for o in first.outcomes] == ["still running"]
    assert (await scope.close()).clean


@virtual_worlds
async def test_a_deadline_of_nothing_signals_and_returns_at_once() -> None:
    log: list[str] = []
    scope = await Scope.open()
    handle = scope.spawn(sleeper, log)
    await turns()
    start = anyio.current_time()
    report = await scope.close(deadline=0)
    assert anyio.current_time() - start == 0
    assert [left.name for left in report.left] == ["sleeper"]
    await handle.wait()
    assert log == ["sleeper stops", "sleeper is tidy"]
    assert (await scope.close()).clean


@virtual_worlds
async def test_a_deadline_of_nothing_settles_what_is_empty() -> None:
    outer = await Scope.open("outer")
    inner = await Scope.open("inner", scope=outer)
    report = await outer.close(deadline=0)
    assert report.clean
    assert outer.state == "settled"
    assert inner.state == "settled"


@virtual_worlds
async def test_an_endless_grace_waits_as_long_as_it_takes() -> None:
    log: list[str] = []
    scope = await Scope.open()
    scope.spawn(sleeper, log, "child", 1000)
    await turns()
    start = anyio.current_time()
    report = await scope.close(grace=Grace(cancel=float("inf")))
    assert anyio.current_time() - start == pytest.approx(1000)
    assert report.clean
    assert log == ["child stops", "child is tidy"]


@virtual_worlds
async def test_a_block_with_a_straggler_ends_at_its_deadline_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stubborn = Stubborn()
    start = anyio.current_time()
    async with Scope("hall", grace=Grace(cancel=0.3, terminate=0.1, kill=0.1)) as scope:
        scope.spawn(stubborn, name="straggler")
        await turns()
        scope.cancel()
    assert anyio.current_time() - start == pytest.approx(0.5)
    assert scope.state == "expired"
    [record] = [record for record in caplog.records if record.name == "quiesce"]
    assert record.levelno == logging.WARNING
    assert "'hall'" in record.getMessage()
    assert "'straggler'" in record.getMessage()
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_worlds
async def test_leftovers_of_nested_scopes_are_named_all_the_way_down() -> None:
    stubborn = Stubborn()
    outer = await Scope.open("outer")
    middle = await Scope.open("middle", scope=outer)
    inner = await Scope.open("inner", scope=middle)
    inner.spawn(stubborn, name="deep down")
    await turns()
    report = await outer.close(deadline=0.5)
    assert [(left.kind, left.name) for left in report.left] == [("task", "deep down")]
    assert "deep down" in str(report)
    stubborn.let_go()
    assert (await outer.close()).clean


# Temperaments -----------------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_child_that_swallows_its_cancel_and_returns_has_finished() -> None:
    scope = await Scope.open()
    handle = scope.spawn(swallows, 1.0)
    await turns()
    start = anyio.current_time()
    report = await scope.close()
    assert anyio.current_time() - start == pytest.approx(1.0, abs=0.01)
    assert report.clean
    assert handle.state == "finished"


@virtual_asyncio
async def test_a_child_that_cancels_itself_again_in_its_finally_is_cancelled() -> None:
    log: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            log.append("one")
            task = asyncio.current_task()
            assert task is not None
            task.cancel("again")
            try:
                await asyncio.sleep(1000)
            finally:
                log.append("two")

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns()
    start = anyio.current_time()
    report = await scope.close()
    assert report.clean
    assert anyio.current_time() == start
    assert log == ["one", "two"]
    assert handle.state == "cancelled"


@virtual_worlds
async def test_a_child_that_awaits_for_ever_in_its_clean_up_is_left_and_says_where_it_is_stuck() -> None:
    never = anyio.Event()

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                while not never.is_set():
                    try:
                        await stuck_here()
                    except asyncio.CancelledError:
                        continue

    async def stuck_here() -> None:
        await never.wait()

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    start = anyio.current_time()
    report = await scope.close(deadline=0.1)
    assert anyio.current_time() - start == pytest.approx(0.1)
    assert "stuck_here" in report.left[0].stuck_at
    never.set()
    assert (await scope.close()).clean


async def test_a_child_that_raises_in_clean_up_has_failed_and_close_does_not_raise_it() -> None:
    scope = await Scope.open()
    handle = scope.spawn(fails_in_clean_up, error := ValueError("in clean-up"), 0.01)
    await turns()
    report = await scope.close()
    assert not report.left
    assert not report.clean
    assert report.errors == [error]
    assert handle.state == "failed"
    assert handle.error is error
    assert [str(o) for o in report.outcomes] == ["fails_in_clean_up: failed, ValueError: in clean-up"]


async def test_a_child_cancelled_before_its_first_step_is_cancelled_and_settles() -> None:
    ran = []

    async def child() -> None:
        ran.append(1)
        await anyio.sleep_forever()

    scope = await Scope.open()
    handle = scope.spawn(child)
    report = await scope.close()
    assert handle.state == "cancelled"
    assert report.clean
    assert [o.state for o in report.outcomes] == ["cancelled"]
    await handle.wait()


async def test_a_child_cancelled_by_its_handle_before_its_first_step() -> None:
    scope = await Scope.open()
    handle = scope.spawn(sleeper)
    handle.cancel("changed my mind")
    await handle.wait()
    assert handle.state == "cancelled"
    assert handle.reason == Reason("user", "changed my mind")
    assert scope.children == ()
    assert scope.state == "open"
    await scope.close()


async def test_a_child_that_finishes_in_the_same_tick_as_the_stop_keeps_its_result() -> None:
    gate = anyio.Event()

    async def child() -> str:
        with anyio.CancelScope(shield=True):
            try:
                await gate.wait()
            except asyncio.CancelledError:  # on asyncio a cancel in the same tick takes the wake-up's place
                return "done"
        return "done"

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns()
    gate.set()
    report = await scope.close()
    assert handle.result() == "done"
    assert report.clean


async def test_a_child_that_has_just_ended_is_not_waited_for() -> None:
    scope = await Scope.open()
    handle = scope.spawn(quick, 7)
    await handle.wait()
    report = await scope.close()
    assert handle.result() == 7
    assert report.outcomes == []
    assert report.ended == 1


async def test_spawning_while_draining_is_refused_and_nothing_is_started() -> None:
    seen: list[BaseException] = []
    ran = []

    async def late() -> None:
        ran.append(1)

    async def child(scope: Scope) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            try:
                scope.spawn(late)
            except ScopeClosed as error:
                seen.append(error)

    scope = await Scope.open("draining")
    scope.spawn(child, scope)
    await turns()
    report = await scope.close(reason="enough")
    assert report.clean
    assert ran == []
    assert "'draining'" in str(seen[0])
    assert "late" in str(seen[0])
    assert "enough" in str(seen[0])


async def test_opening_a_scope_from_outside_while_it_drains_is_refused_too() -> None:
    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)

    scope = await Scope.open("draining")
    scope.spawn(child)
    await turns()
    scope.cancel()
    with pytest.raises(ScopeClosed, match=r"'draining'.* is stopping"):
        await Scope.open("too late", scope=scope)
    assert (await scope.close()).clean


@virtual_worlds
async def test_clean_ups_of_many_children_run_at_the_same_time() -> None:
    log: list[str] = []
    scope = await Scope.open()
    for n in range(50):
        scope.spawn(sleeper, log, f"{n}", 1.0)
    await turns()
    start = anyio.current_time()
    assert (await scope.close()).clean
    assert anyio.current_time() - start == pytest.approx(1.0)
    assert len(log) == 100


@trio_only
async def test_on_trio_awaits_in_clean_up_need_a_shield_as_always_there() -> None:
    log: list[str] = []

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            try:
                await trio.sleep(0)
            except trio.Cancelled:
                log.append("cancelled again")
                raise

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns()
    await scope.close()
    assert log == ["cancelled again"]
    assert handle.state == "cancelled"


@asyncio_only
async def test_on_asyncio_a_clean_up_may_await_as_often_as_it_likes() -> None:
    count = 0

    async def child() -> None:
        nonlocal count
        try:
            await asyncio.sleep(1000)
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
                count += 1

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    await scope.close()
    assert count == 20


@virtual_worlds
async def test_a_straggler_of_a_block_finds_the_scope_that_its_users_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stubborn, seen = Stubborn(), []

    async def straggler() -> None:
        await stubborn()
        seen.append(current_scope())

    with caplog.at_level(logging.CRITICAL, "quiesce"):
        async with Scope("crew", grace=Grace(cancel=0.1, terminate=0.1, kill=0.1)) as scope:
            scope.spawn(straggler)
            await turns()
            assert current_scope() is scope
            scope.cancel()
    assert scope.state == "expired"
    stubborn.let_go()
    assert (await scope.close()).clean
    assert len(seen) == 1
    assert seen[0] is scope


@virtual_worlds
async def test_a_block_that_expires_with_the_scope_around_it_is_not_itself_left() -> None:
    """Both ladders end in the same instant; the task that leaves the inner block is one turn too late."""
    stubborn = Stubborn()

    async def child() -> None:
        async with Scope("inner") as inner:
            inner.spawn(stubborn, name="stubborn")

    outer = await Scope.open("outer")
    outer.spawn(child, name="child")
    await turns()
    report = await outer.close(deadline=0.1)
    stubborn.let_go()
    await outer.close(deadline=1)
    assert [left.name for left in report.left] == ["stubborn"]
