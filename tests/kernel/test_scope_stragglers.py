"""Demand 4: children that do not go when they are told to. Each has a defined outcome, in bounded time."""

from __future__ import annotations

import asyncio
import logging
import time

import anyio
import pytest
import trio

from quiesce import Grace, Reason, Scope, ScopeClosed, current_token
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
    assert 0.09 < time.monotonic() - start < 0.4
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


@virtual_worlds
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("by", ["blocks", "opened"])
async def test_a_clean_up_in_a_nested_scope_has_its_whole_grace(depth: int, by: str) -> None:
    log: list[str] = []
    kept: list[Scope] = []

    async def in_blocks(left: int) -> None:
        if not left:
            await sleeper(log, "innermost", 2.9)
            return
        async with Scope() as inner:
            inner.spawn(in_blocks, left - 1)

    outer = await Scope.open("outer")
    if by == "blocks":
        outer.spawn(in_blocks, depth)
    else:
        inner = outer
        for _ in range(depth):
            inner = await Scope.open(scope=inner)
            kept.append(inner)
        inner.spawn(sleeper, log, "innermost", 2.9)
    await turns(3 + 2 * depth)
    report = await outer.close()
    assert log == ["innermost stops", "innermost is tidy"]
    assert report.clean
    assert report.elapsed == pytest.approx(2.9)


@virtual_worlds
async def test_a_close_again_does_not_lengthen_the_deadline_of_those_who_wait() -> None:
    stubborn = Stubborn()
    took: list[float] = []
    scope = await Scope.open()
    scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()

    async def closes() -> None:
        await scope.close(deadline=0.2)
        took.append(anyio.current_time() - start)

    async def closes_again() -> None:
        while scope.state != "expired":
            await anyio.sleep(0)
        await scope.close(deadline=3)
        took.append(anyio.current_time() - start)

    async with anyio.create_task_group() as group:
        group.start_soon(closes)
        await anyio.sleep(0.1)
        scope.cancel(grace=Grace(0, 0, 0, 0))  # out of time now; both look in the same turn
        group.start_soon(closes_again)
        await anyio.sleep(6)
        stubborn.let_go()
    assert took[0] == pytest.approx(0.1)
    assert took[1] == pytest.approx(3.1)
    assert (await scope.close()).clean


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
    assert report.clean
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


async def test_opening_a_scope_while_draining_is_refused_too() -> None:
    seen: list[BaseException] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            try:
                await Scope.open("too late")
            except ScopeClosed as error:
                seen.append(error)

    scope = await Scope.open("draining")
    scope.spawn(child)
    await turns()
    assert (await scope.close()).clean
    assert "'draining'" in str(seen[0])


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


# The ladder -------------------------------------------------------------------------------------------------


@virtual_worlds
async def test_cooperation_comes_first_a_token_and_no_cancel() -> None:
    log: list[str] = []

    async def polite() -> str:
        reason = await current_token().wait()
        log.append(f"{anyio.current_time() - start:g} told: {reason}")
        await anyio.sleep(0.2)  # not cancelled
        log.append(f"{anyio.current_time() - start:g} done")
        return "by itself"

    async def deaf() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append(f"{anyio.current_time() - start:g} cancelled")

    scope = await Scope.open(grace=Grace(cooperate=0.5))
    handles = [scope.spawn(polite), scope.spawn(deaf)]
    await turns()
    start = anyio.current_time()
    report = await scope.close(reason="please")
    assert log == ["0 told: user: please", "0.2 done", "0.5 cancelled"]
    assert [handle.state for handle in handles] == ["finished", "cancelled"]
    assert report.elapsed == pytest.approx(0.5)


@virtual_worlds
async def test_who_cooperates_at_once_is_not_made_to_wait() -> None:
    async def polite() -> None:
        await current_token().wait()

    scope = await Scope.open(grace=Grace(cooperate=100))
    scope.spawn(polite)
    await turns()
    start = anyio.current_time()
    assert (await scope.close()).clean
    assert anyio.current_time() == start


@virtual_asyncio
async def test_a_second_cancel_comes_when_the_time_for_the_first_is_over_and_no_third() -> None:
    stubborn = Stubborn()
    scope = await Scope.open(grace=Grace(cooperate=0.5, cancel=1, terminate=2, kill=4))
    scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    report = await scope.close()
    stubborn.let_go()
    assert (await scope.close()).clean
    assert stubborn.cancels == [pytest.approx(start + 0.5), pytest.approx(start + 1.5)]
    assert report.elapsed == pytest.approx(7.5)
    assert len(report.left) == 1


@virtual_asyncio
async def test_a_child_stopped_by_its_handle_and_then_by_its_scope_gets_two_cancels_at_most() -> None:
    stubborn = Stubborn()
    scope = await Scope.open()
    handle = scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    handle.cancel()
    await asyncio.sleep(1)
    await scope.close()
    stubborn.let_go()
    assert (await scope.close()).clean
    assert len(stubborn.cancels) == 2
    assert stubborn.cancels[0] == start


@virtual_asyncio
@pytest.mark.parametrize(("again", "due"), [(0.5, 1.5), (1.0, 2.0), (2.5, 3.0), (2.9, 3.0)])
async def test_asking_a_handle_again_makes_it_sooner_and_never_later(again: float, due: float) -> None:
    stubborn = Stubborn()
    scope = await Scope.open(grace=Grace(cancel=3, terminate=1, kill=1))
    handle = scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    handle.cancel()
    await asyncio.sleep(again)
    handle.cancel()
    await asyncio.sleep(10)
    stubborn.let_go()
    await handle.wait()
    assert stubborn.cancels == [start, pytest.approx(start + due)]
    await scope.close()


# A body is cancelled once too -------------------------------------------------------------------------------


@virtual_asyncio
async def test_a_child_interrupted_as_a_host_is_not_cut_by_the_stop_of_its_own_scope() -> None:
    """A grandchild fails: the child's block is interrupted and cleans up. Then the scope around is closed."""
    log: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise ValueError("grandchild")

    async def child() -> None:
        async with Scope("inner") as inner:
            inner.spawn(fails)
            await sleeper(log, "body", 1.0)

    outer = await Scope.open("outer", on_error="report", on_child_error=lambda handle, error: None)
    outer.spawn(child)
    await asyncio.sleep(0.5)
    assert log == ["body stops"]
    report = await outer.close()
    assert log == ["body stops", "body is tidy"]
    assert report.clean


@virtual_asyncio
async def test_a_child_whose_block_listens_to_its_token_is_cancelled_once_in_all() -> None:
    log: list[str] = []

    async def child() -> None:
        async with Scope("inner", token=current_token()):
            await sleeper(log, "body", 1.0)

    outer = await Scope.open("outer", grace=Grace(cooperate=0.5))
    outer.spawn(child)
    await turns()
    report = await outer.close()
    assert log == ["body stops", "body is tidy"]
    assert report.clean


# A blocked loop ---------------------------------------------------------------------------------------------


@pytest.mark.real_time
async def test_a_child_that_blocks_the_loop_is_reported_while_it_blocks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen_while_blocked = []

    async def blocks() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            hold_the_thread()

    def hold_the_thread() -> None:
        end = time.monotonic() + 3
        while time.monotonic() < end and not seen_while_blocked:
            time.sleep(0.05)
            seen_while_blocked.extend(r for r in caplog.records if "blocked" in r.getMessage())

    scope = await Scope.open("stuck")
    scope.spawn(blocks)
    await turns()
    report = await scope.close()
    assert seen_while_blocked
    assert "'stuck'" in seen_while_blocked[0].getMessage()
    assert "hold_the_thread" in seen_while_blocked[0].getMessage()
    [note] = report.notes
    assert "blocked" in note
    assert "hold_the_thread" in note
    assert note in str(report)


@pytest.mark.real_time
async def test_a_loop_that_is_blocked_in_a_second_close_is_reported_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stubborn = Stubborn()
    scope = await Scope.open("stuck")
    scope.spawn(stubborn)
    await turns()
    await scope.close(deadline=0)

    async def block() -> None:
        await anyio.sleep(0.01)
        end = time.monotonic() + 3
        while time.monotonic() < end and not any("blocked" in r.getMessage() for r in caplog.records):
            time.sleep(0.05)
        stubborn.let_go()

    async with anyio.create_task_group() as group:
        group.start_soon(block)
        report = await scope.close()
    assert any("blocked" in note for note in report.notes)


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

