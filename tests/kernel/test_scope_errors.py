"""Demand 5: the first failure stops the siblings and the body, and is raised in a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint

from quiesce import Reason, Scope, current_scope, current_token, own
from tests.kernel.temperaments import (
    an_innocent_bystander,
    cancel_soon,
    cancellation,
    fails,
    fails_in_clean_up,
    forever,
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


async def test_a_child_that_swallowed_a_cancel_is_interrupted_all_the_same_when_its_next_block_fails() -> (
    None
):
    raised: list[BaseException] = []

    async def child() -> str:
        try:
            await forever()
        except cancellation():
            pass
        with anyio.CancelScope(shield=True):  # on trio the cancel would come again
            try:
                async with Scope("next") as scope:
                    scope.spawn(fails, ValueError("grandchild"), 0.01)
                    await anyio.sleep(60)
            except ExceptionGroup as error:
                raised.append(error)
        return "went on"

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns()
    start = anyio.current_time()
    handle.cancel()
    await handle.wait()
    assert anyio.current_time() - start < 10
    assert len(raised) == 1
    assert handle.result() == "went on"
    await scope.close()


async def test_a_block_in_a_clean_up_is_interrupted_when_it_fails() -> None:
    raised: list[BaseException] = []

    async def child() -> None:
        try:
            await forever()
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    async with Scope("clean-up") as scope:
                        scope.spawn(fails, ValueError("grandchild"), 0.01)
                        await anyio.sleep(60)
                except ExceptionGroup as error:
                    raised.append(error)

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns()
    start = anyio.current_time()
    handle.cancel()
    await handle.wait()
    assert anyio.current_time() - start < 10
    assert len(raised) == 1
    assert handle.state == "cancelled"
    await scope.close()


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
        assert isinstance(caught.value.__context__, asyncio.CancelledError)
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


class OutOfTheOrdinary(BaseException):
    """No `Exception`, and no cancellation either: pytest's own are of this kind."""


@pytest.mark.parametrize("children", [0, 1])
async def test_an_error_of_the_body_that_is_no_exception_is_raised_as_it_is(children: int) -> None:
    error = OutOfTheOrdinary("out")
    with pytest.raises(OutOfTheOrdinary) as caught:
        async with Scope() as scope:
            for _ in range(children):
                scope.spawn(anyio.sleep_forever)
            await checkpoint()
            raise error
    assert caught.value is error


async def test_a_held_thing_does_not_swallow_one_either() -> None:
    @asynccontextmanager
    async def plain() -> AsyncIterator[None]:
        yield

    error = OutOfTheOrdinary("out")
    with pytest.raises(OutOfTheOrdinary) as caught:
        async with own(plain()):
            raise error
    assert caught.value is error


async def tidies_up() -> None:
    try:
        await anyio.sleep(10)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1)


async def test_a_cancel_that_comes_while_a_block_drains_goes_before_the_error_of_its_body() -> None:
    reached = []
    around = current_scope()
    with anyio.CancelScope() as outer:
        try:
            async with Scope("block") as scope:
                scope.spawn(tidies_up)
                await anyio.sleep(0.1)
                around.spawn(cancel_soon, outer)
                raise LookupError("in the body")
        except ExceptionGroup:
            reached.append("the error")
        reached.append("the next line")
    assert outer.cancelled_caught
    assert not reached
