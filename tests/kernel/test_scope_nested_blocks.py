"""Blocks inside blocks in one task: each takes back its own cancel and nobody else's."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from quiesce import CancelToken, Reason, Scope
from tests.kernel.temperaments import (
    cancellation,
    fails,
    forever,
    on_trio,
    sleeper,
    turns,
    virtual_worlds,
)
from tests.world import asyncio_only


def no_cancel_is_left_behind() -> None:
    if not on_trio():
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


def texts(error: BaseException | None) -> list[str]:
    """Every error that can be reached from this one."""
    if error is None:
        return []
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    found = [text for inner in inside for text in texts(inner)] or [str(error)]
    return [*found, *texts(error.__cause__ or error.__context__)]


@virtual_worlds
async def test_a_failure_in_the_outer_block_lets_the_body_of_the_inner_one_clean_up() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope("outer") as outer:
            outer.spawn(sleeper, log, "outer child", 0.5)
            async with Scope("inner") as inner:
                inner.spawn(sleeper, log, "inner child", 0.2)
                await turns()
                outer.spawn(fails, ValueError("outer"), 0.1)
                await sleeper(log, "body", 1.0)
    assert [str(error) for error in caught.value.exceptions] == ["outer"]
    assert [line for line in log if "is tidy" in line] == [
        "outer child is tidy",
        "body is tidy",
        "inner child is tidy",
    ]
    no_cancel_is_left_behind()
    await anyio.sleep(0)


@virtual_worlds
async def test_a_failure_in_the_inner_block_ends_that_one_and_the_outer_body_goes_on() -> None:
    log: list[str] = []
    async with Scope("outer") as outer:
        child = outer.spawn(anyio.sleep, 1)
        try:
            async with Scope("inner") as inner:
                inner.spawn(fails, ValueError("inner"), 0.1)
                await forever()
        except ExceptionGroup:
            log.append("caught")
        await anyio.sleep(0.1)
        log.append("goes on")
    assert log == ["caught", "goes on"]
    assert child.state == "finished"
    no_cancel_is_left_behind()


@virtual_worlds
async def test_failures_in_both_blocks_at_the_same_moment_are_both_told() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with Scope("outer") as outer:
            outer.spawn(fails, ValueError("outer"), 0.1)
            async with Scope("inner") as inner:
                inner.spawn(fails, ValueError("inner"), 0.1)
                await forever()
    assert {"outer", "inner"} <= set(texts(caught.value))
    no_cancel_is_left_behind()
    await anyio.sleep(0)


async def test_one_token_for_both_blocks_stops_both_and_the_task_goes_on() -> None:
    token = CancelToken()
    log: list[str] = []
    async with Scope("outer", token=token) as outer:
        async with Scope("inner", token=token) as inner:
            inner.spawn(sleeper, log, "inner", 0.01)
            outer.spawn(sleeper, log, "outer", 0.01)
            await turns()
            token.cancel("both")
            await sleeper(log, "body", 0.02)
        log.append("between")
    assert "between" not in log, "the outer block was stopped too"
    assert sorted(line for line in log if "tidy" in line) == [
        "body is tidy",
        "inner is tidy",
        "outer is tidy",
    ]
    assert outer.reason == inner.reason == Reason("user", "both")
    no_cancel_is_left_behind()
    await anyio.sleep(0)


async def test_cancelling_the_outer_block_from_the_body_of_the_inner_one_stops_both() -> None:
    log: list[str] = []
    async with Scope("outer") as outer:
        async with Scope("inner") as inner:
            inner.spawn(sleeper, log, "inner", 0.01)
            await turns()
            outer.cancel("all")
            await sleeper(log, "body", 0.01)
        log.append("between")
    assert [line for line in log if "tidy" in line or line == "between"] == ["body is tidy", "inner is tidy"]
    assert outer.reason == Reason("user", "all")
    no_cancel_is_left_behind()
    await anyio.sleep(0)


async def test_cancelling_the_inner_block_leaves_the_outer_body_alone() -> None:
    log: list[str] = []
    async with Scope("outer") as outer:
        async with Scope("inner") as inner:
            inner.cancel("only this")
            await forever()
        await anyio.sleep(0.01)
        log.append("between")
    assert log == ["between"]
    assert outer.reason is None
    assert inner.reason == Reason("user", "only this")
    no_cancel_is_left_behind()


@asyncio_only
async def test_timeouts_between_blocks_keep_their_own_cancels() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope("outer") as outer:
            try:
                async with asyncio.timeout(0.02):
                    async with Scope("inner") as inner:
                        inner.spawn(sleeper, log, "inner", 0.01)
                        await forever()
            except TimeoutError:
                log.append("timeout")
            outer.spawn(fails, ValueError("outer"), 0.01)
            await forever()
    assert log == ["inner stops", "inner is tidy", "timeout"]
    assert [str(error) for error in caught.value.exceptions] == ["outer"]
    no_cancel_is_left_behind()


@asyncio_only
async def test_a_timeout_in_the_body_at_the_moment_of_a_failure() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(fails, ValueError("child"), 0.02)
            try:
                async with asyncio.timeout(0.02):
                    await forever()
            except TimeoutError:
                await forever()
    assert [str(error) for error in caught.value.exceptions] == ["child"]
    no_cancel_is_left_behind()
    await asyncio.sleep(0)


@asyncio_only
async def test_a_cancel_from_outside_passes_through_all_blocks_and_is_counted_once() -> None:
    log: list[str] = []

    async def host() -> None:
        try:
            async with Scope("outer") as outer, Scope("inner") as inner:
                outer.spawn(sleeper, log, "outer", 0.01)
                inner.spawn(sleeper, log, "inner", 0.01)
                await forever()
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    task = asyncio.create_task(host())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert task.cancelling() == 1
    assert log == ["inner stops", "inner is tidy", "outer stops", "outer is tidy", "cancelled"]


async def test_a_block_opened_in_the_clean_up_of_a_stopped_body() -> None:
    """The outer block is being stopped, so nothing new hangs below it; with an owner of its own it works."""
    log: list[str] = []
    elsewhere = await Scope.open("elsewhere")
    with pytest.raises(ExceptionGroup):
        async with Scope("outer") as outer:
            outer.spawn(fails, ValueError(), 0.01)
            try:
                await forever()
            except cancellation():
                with anyio.CancelScope(shield=True):
                    async with Scope("clean-up", scope=elsewhere) as scope:
                        scope.spawn(anyio.sleep, 0.01)
                        log.append("opened")
                    log.append("settled")
                raise
    assert log == ["opened", "settled"]
    await elsewhere.close()
    no_cancel_is_left_behind()


@asyncio_only
async def test_a_block_that_somebody_elses_cancel_is_ending_does_not_swallow_the_cancel_of_its_scope() -> (
    None
):
    async def child() -> None:
        async with Scope("block") as block:
            blocks.append(block)
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:  # a library that swallows the first one
                await asyncio.sleep(1000)

    blocks: list[Scope] = []
    scope = await Scope.open("outer")
    handle = scope.spawn(child)
    await turns()
    task = next(iter(asyncio.all_tasks() - {asyncio.current_task()}))
    task.cancel()
    await turns()
    blocks[0].cancel("the block too")
    report = await scope.close(deadline=0.5)
    assert report.clean
    assert handle.state == "cancelled"
