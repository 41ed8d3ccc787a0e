"""Demand 2: `close()` cancels, waits until every clean-up has run, and only then returns."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from quiesce import CancelToken, Grace, Reason, Scope, ScopeClosed, StopReport
from tests.kernel.temperaments import (
    Stubborn,
    cancellation,
    forever,
    quick,
    sleeper,
    tidy_up,
    turns,
    virtual_worlds,
)
from tests.world import asyncio_only


async def test_close_returns_when_every_finally_has_run() -> None:
    log: list[str] = []
    scope = await Scope.open()
    for n in range(3):
        scope.spawn(sleeper, log, f"child {n}", 0.01 * n)
    await turns()
    report = await scope.close()
    log.append("closed")
    assert sorted(log[:-1]) == sorted(f"child {n} {did}" for n in range(3) for did in ("stops", "is tidy"))
    assert log[-1] == "closed"
    assert report.clean
    assert [outcome.state for outcome in report.outcomes] == ["cancelled"] * 3
    assert scope.children == ()


@asyncio_only
async def test_on_asyncio_the_bare_awaits_of_a_clean_up_run_too() -> None:
    log: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            for n in range(3):
                await asyncio.sleep(0.005)
                log.append(f"step {n}")

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    await scope.close()
    assert log == ["step 0", "step 1", "step 2"]


async def test_children_are_not_forgotten_before_they_have_ended() -> None:
    scope = await Scope.open()
    handle = scope.spawn(sleeper, None, "child", 0.03)
    await turns()
    scope.cancel()
    await anyio.sleep(0.01)
    assert list(scope.children) == [handle]
    assert scope.state == "stopping"
    await scope.close()
    assert scope.children == ()
    assert handle.state == "cancelled"


async def test_closing_twice_reports_the_same_stop() -> None:
    scope = await Scope.open("twice")
    scope.spawn(sleeper, None, "child", 0.01)
    await turns()
    first = await scope.close(reason="one")
    second = await scope.close(reason="two")
    assert first.reason == second.reason == Reason("user", "one")
    assert first.elapsed == second.elapsed
    assert [str(o) for o in first.outcomes] == [str(o) for o in second.outcomes] == ["sleeper: cancelled"]


async def test_concurrent_closers_wait_for_the_same_drain_and_the_child_is_cancelled_once() -> None:
    cancels = 0
    log: list[str] = []

    async def child() -> None:
        nonlocal cancels
        try:
            await anyio.sleep_forever()
        except cancellation():
            cancels += 1
            try:
                await tidy_up(0.05)
            except cancellation():
                cancels += 1
            log.append("tidy")
            raise

    async def closes() -> None:
        report = await scope.close()
        log.append(f"closed, {report.clean}")

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(closes)
            await anyio.sleep(0.01)
    assert log == ["tidy", *["closed, True"] * 3]
    assert cancels == 1


async def test_closing_a_settled_or_empty_scope_returns_at_once() -> None:
    scope = await Scope.open(grace=Grace(cancel=60))
    before = anyio.current_time()
    assert (await scope.close()).clean
    assert (await scope.close()).clean
    assert anyio.current_time() - before < 10


async def test_close_cancels_even_children_that_would_have_finished() -> None:
    scope = await Scope.open()
    handle = scope.spawn(anyio.sleep, 1000)
    await turns()
    await scope.close()
    assert handle.state == "cancelled"


async def test_a_closed_scope_refuses_to_spawn() -> None:
    scope = await Scope.open("gone")
    await scope.close(reason=Reason("disconnect", "client left"))
    with pytest.raises(ScopeClosed, match=r"(?s)quick.*'gone'.*test_scope_closing.*disconnect: client left"):
        scope.spawn(quick)


async def test_cancel_is_sync_and_close_after_it_waits() -> None:
    log: list[str] = []
    scope = await Scope.open()
    scope.spawn(sleeper, log, "child", 0.02)
    await turns()
    assert scope.cancel("now") is None  # type: ignore[func-returns-value]
    assert log == []
    assert scope.token.reason == Reason("user", "now")
    await scope.close()
    assert log == ["child stops", "child is tidy"]


async def test_the_body_of_a_block_may_close_it() -> None:
    log: list[str] = []
    async with Scope() as scope:
        scope.spawn(sleeper, log, "child", 0.01)
        await turns()
        report = await scope.close()
        assert report.clean
        log.append("after close")
        await anyio.sleep(0.01)  # the body asked for it: nobody cancels it
        log.append("end of body")
    assert log == ["child stops", "child is tidy", "after close", "end of body"]


async def test_somebody_else_closing_a_block_stops_its_body_and_waits_for_no_body() -> None:
    log: list[str] = []
    opened: list[Scope] = []

    async def hosts() -> None:
        async with Scope() as scope:
            opened.append(scope)
            scope.spawn(sleeper, log, "child", 0.01)
            try:
                await anyio.sleep_forever()
            finally:
                log.append("body left")
        log.append("after the block")

    async with anyio.create_task_group() as group:
        group.start_soon(hosts)
        await anyio.sleep(0.01)
        report = await opened[0].close(reason="from outside")
        assert report.clean
    assert sorted(log) == ["after the block", "body left", "child is tidy", "child stops"]
    assert log[-1] == "after the block"


# Shorter and shorter ----------------------------------------------------------------------------------------


@virtual_worlds
async def test_asking_again_halves_what_is_left() -> None:
    stubborn = Stubborn()
    scope = await Scope.open(grace=Grace(cancel=8, terminate=0, kill=0))
    scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    scope.cancel()
    await anyio.sleep(2)
    scope.cancel()  # 6 s were left
    report = await scope.close()
    assert anyio.current_time() - start == pytest.approx(5)
    assert report.elapsed == pytest.approx(5)
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_worlds
async def test_closing_with_a_shorter_grace_while_draining_shortens_the_stop_for_all() -> None:
    ends: list[float] = []
    stubborn = Stubborn()
    scope = await Scope.open(grace=Grace(cancel=100, terminate=0, kill=0))
    scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()

    async def closes() -> None:
        await scope.close()
        ends.append(anyio.current_time() - start)

    async with anyio.create_task_group() as group:
        group.start_soon(closes)
        await anyio.sleep(1)
        report = await scope.close(grace=Grace(cancel=2, terminate=0, kill=0))
        ends.append(anyio.current_time() - start)
    assert ends == [pytest.approx(3)] * 2
    assert len(report.left) == 1
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_worlds
async def test_closing_with_a_longer_grace_while_draining_does_not_lengthen_the_stop() -> None:
    stubborn = Stubborn()
    scope = await Scope.open(grace=Grace(cancel=1, terminate=0, kill=0))
    scope.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    scope.cancel()
    await anyio.sleep(0.5)
    await scope.close(deadline=1000)
    assert anyio.current_time() - start == pytest.approx(1)
    stubborn.let_go()
    assert (await scope.close()).clean


@virtual_worlds
async def test_a_second_stop_does_not_cut_a_clean_up_that_is_within_its_time() -> None:
    log: list[str] = []
    scope = await Scope.open()
    scope.spawn(sleeper, log, "child", 1)
    await turns()
    scope.cancel("one")
    await anyio.sleep(0.2)
    scope.cancel("two")
    await anyio.sleep(0.2)
    report = await scope.close(reason="three")
    assert log == ["child stops", "child is tidy"]
    assert report.clean
    assert report.reason == Reason("user", "one")


@asyncio_only
async def test_a_body_that_cleans_up_after_somebody_elses_cancel_is_not_cancelled_again_by_its_scope() -> (
    None
):
    """The block's task is nobody's child here, so nothing but `cancelling()` says that it was cancelled."""
    log: list[str] = []
    scope = Scope("body")

    async def use() -> None:
        async with scope:
            try:
                await asyncio.sleep(1000)
            finally:
                log.append("begun")
                await asyncio.sleep(0.02)
                log.append("tidy")

    task = asyncio.ensure_future(use())
    await turns()
    task.cancel()
    await turns()
    scope.cancel("stop the block")
    await asyncio.wait([task])
    assert log == ["begun", "tidy"]
    assert task.cancelled()


@virtual_worlds
@pytest.mark.parametrize("by", ["cancel", "close", "token", "parent"])
async def test_a_body_that_cleans_up_after_the_stop_of_its_scope_is_not_cancelled_again(by: str) -> None:
    log: list[str] = []
    began = anyio.Event()
    token = CancelToken()
    outer = await Scope.open("outer")
    scope = Scope("body", scope=outer, token=token)

    async def use() -> None:
        async with scope:
            try:
                await forever()
            finally:
                began.set()
                await sleep_in_clean_up()

    async def sleep_in_clean_up() -> None:
        try:
            await tidy_up(1)
            log.append("tidy")
        except BaseException as error:
            log.append(f"interrupted by {error!r}")
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        await turns()
        scope.cancel("first")
        await began.wait()
        if by == "cancel":
            scope.cancel("second")
        elif by == "close":
            group.start_soon(scope.close)
        elif by == "token":
            token.cancel("second")
        else:
            outer.cancel("second")
    assert log == ["tidy"]
    await outer.close()


@virtual_worlds
async def test_a_deadline_given_to_close_holds_for_nested_scopes_too() -> None:
    stubborn = Stubborn()
    outer = await Scope.open("outer")
    inner = await Scope.open("inner", scope=outer)
    inner.spawn(stubborn)
    await turns()
    start = anyio.current_time()
    report: StopReport = await outer.close(deadline=0.5)
    assert anyio.current_time() - start == pytest.approx(0.5)
    assert [left.name for left in report.left] == ["Stubborn"]
    stubborn.let_go()
    assert (await outer.close()).clean
    assert inner.state == "settled"
