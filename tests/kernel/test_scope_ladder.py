"""Demand 4: escalation follows `Grace`, one cancel at a time; and a loop that is blocked is told of."""

from __future__ import annotations

import asyncio
import functools
import logging
import time

import anyio
import pytest

from quiesce import Grace, Scope, current_token
from tests.kernel.temperaments import (
    Stubborn,
    forever,
    sleeper,
    turns,
    virtual_asyncio,
    virtual_worlds,
)

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


@virtual_worlds
async def test_a_stop_with_a_later_deadline_does_not_put_off_that_of_another() -> None:
    """All stops of a loop share one timer."""
    stubborn, other = Stubborn(), Stubborn()
    scope, patient = await Scope.open("brief"), await Scope.open("patient")
    scope.spawn(stubborn)
    patient.spawn(other)
    await turns()
    start = anyio.current_time()
    scope.cancel(grace=Grace(cancel=1, terminate=0, kill=0))
    patient.cancel(grace=Grace(cancel=100, terminate=0, kill=0))
    await anyio.sleep(1.5)
    assert scope.state == "expired"
    assert patient.state == "stopping"
    report = await patient.close()
    assert anyio.current_time() - start == pytest.approx(100)
    assert len(report.left) == 1
    stubborn.let_go()
    other.let_go()
    assert (await scope.close()).clean
    assert (await patient.close()).clean


# Nested ----------------------------------------------------------------------------------------------------


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
        scope.cancel(
            grace=Grace(cancel=0, terminate=0, kill=0)
        )  # out of time now; both look in the same turn
        group.start_soon(closes_again)
        await anyio.sleep(6)
        stubborn.let_go()
    assert took[0] == pytest.approx(0.1)
    assert took[1] == pytest.approx(3.1)
    assert (await scope.close()).clean


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
    assert not report.left


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
    seen_while_blocked: list[logging.LogRecord] = []

    async def blocks() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            hold_the_thread()

    def hold_the_thread() -> None:
        end = time.monotonic() + 10
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
        end = time.monotonic() + 10
        while time.monotonic() < end and not any("blocked" in r.getMessage() for r in caplog.records):
            time.sleep(0.05)
        stubborn.let_go()

    async with anyio.create_task_group() as group:
        group.start_soon(block)
        report = await scope.close()
    assert any("blocked" in note for note in report.notes)


BRIEF = Grace(cooperate=0.05, cancel=0.2, terminate=0.1, kill=0.1)


@pytest.mark.real_time
@pytest.mark.parametrize("depth", [1, 3])
async def test_who_had_no_turn_while_the_loop_was_blocked_has_one_to_clean_up_in(depth: int) -> None:
    """A clean-up of a few awaits beside one that blocks for longer than the whole stop may take."""
    cleaned: list[str] = []

    async def tidy() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.sleep(0)
            cleaned.append("tidy")

    async def blocks() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            time.sleep(BRIEF.total + 0.2)

    async def nest(left: int) -> None:
        async with Scope() as inner:
            inner.spawn(tidy)
            inner.spawn(functools.partial(nest, left - 1) if left else blocks)
            inner.spawn(tidy)

    scope = await Scope.open(grace=BRIEF)
    scope.spawn(nest, depth - 1)
    await turns(20)
    report = await scope.close()
    assert report.clean
    assert cleaned == ["tidy"] * 2 * depth


@pytest.mark.real_time
async def test_who_stays_after_the_loop_was_blocked_is_named_soon() -> None:
    stubborn = Stubborn()

    async def blocks() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            time.sleep(BRIEF.total + 0.2)
            unblocked.append(time.monotonic())

    unblocked: list[float] = []
    scope = await Scope.open(grace=BRIEF)
    scope.spawn(stubborn)
    scope.spawn(blocks)
    await turns()
    report = await scope.close()
    assert time.monotonic() - unblocked[0] < 2
    assert [left.kind for left in report.left] == ["task"]
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_worlds
async def test_a_faster_stop_is_faster_all_the_way_down() -> None:
    stubborn = Stubborn()
    outer = await Scope.open("outer")
    inner = await Scope.open("inner", scope=outer)
    inner.spawn(stubborn)
    await turns()
    outer.cancel()
    await anyio.sleep(0.5)
    outer.cancel(grace=Grace(cancel=0.5, terminate=0.5, kill=0.5))
    await anyio.sleep(1.1)
    assert inner.state == "expired", "its last rung is over when the third of the outer one is"
    assert outer.state == "stopping"
    stubborn.let_go()
    assert (await outer.close()).clean


@virtual_worlds
async def test_nested_scopes_wait_for_each_other_until_the_time_to_clean_up_is_over() -> None:
    """The one that was opened last refuses to end: the other is stopped nevertheless, when that time is over."""
    log: list[str] = []
    stubborn = Stubborn()

    async def first_opened() -> None:
        try:
            await forever()
        finally:
            log.append(f"cancelled after {anyio.current_time() - start:g}")

    outer = await Scope.open("outer", grace=Grace(cancel=3, terminate=1, kill=1))
    first = await Scope.open("first", scope=outer)
    last = await Scope.open("last", scope=outer)
    first.spawn(first_opened)
    last.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    report = await outer.close()
    assert log == ["cancelled after 3"]
    assert first.state == "settled"
    assert len(report.left) == 1
    stubborn.let_go()
    assert (await outer.close()).clean


@virtual_worlds
async def test_in_the_time_to_cooperate_a_handle_says_already_why_it_is_stopped() -> None:
    scope = await Scope.open(grace=Grace(cooperate=1))
    handle = scope.spawn(sleeper)
    await turns()
    scope.cancel("please")
    await turns()
    assert handle.state == "running"
    assert str(handle.reason) == "user: please"
    await scope.close()
