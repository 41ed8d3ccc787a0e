"""Demand 2: closing from deep inside: from the children of children, wherever their scopes hang."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from quiesce import Scope
from tests.kernel.closers import Closer, settles
from tests.kernel.temperaments import (
    forever,
    sleeper,
    turns,
    virtual_asyncio,
    virtual_worlds,
)


async def test_a_grandchild_in_a_block_of_a_child_closes_the_outer_scope() -> None:
    log: list[str] = []
    closer = Closer(log, "grandchild")

    async def child(outer: Scope) -> None:
        try:
            async with Scope("inner") as inner:
                inner.spawn(closer, outer)
        finally:
            log.append("child left")

    outer = await Scope.open("outer")
    outer.spawn(sleeper, log, "sibling", 0.02)
    await turns()
    handle = outer.spawn(child, outer)
    await handle.wait()
    assert log == ["sibling stops", "sibling is tidy", "grandchild closed", "child left"]
    assert closer.was_quick
    assert closer.cancelled_after
    await settles(outer)


async def test_a_grandchild_in_a_scope_that_a_child_opened_and_left_open_closes_the_outer_scope() -> None:
    closer = Closer()
    made = []

    async def child(outer: Scope) -> None:
        made.append(inner := await Scope.open("inner"))
        inner.spawn(closer, outer)

    outer = await Scope.open("outer")
    outer.spawn(child, outer)
    await anyio.sleep(0.02)
    await settles(outer)
    assert closer.was_quick
    assert made[0].state == "settled"


async def test_a_grandchild_closes_the_outer_scope_while_the_child_closes_the_inner_one() -> None:
    """The child waits for the inner scope, in which somebody waits for the child."""
    closer = Closer()

    async def child(outer: Scope) -> None:
        inner = await Scope.open("inner")
        try:
            inner.spawn(closer, outer)
            await anyio.sleep_forever()
        finally:
            await inner.close()

    outer = await Scope.open("outer")
    outer.spawn(child, outer)
    await anyio.sleep(0.02)
    await settles(outer)
    assert closer.was_quick


async def test_a_child_and_a_grandchild_close_the_outer_scope_at_once() -> None:
    closers = [Closer(name="child"), Closer(name="grandchild")]

    async def child(outer: Scope) -> None:
        async with Scope("inner") as inner:
            inner.spawn(closers[1].when_cancelled, outer)
            await anyio.sleep(0.01)
            await closers[0](outer)

    outer = await Scope.open("outer")
    handle = outer.spawn(child, outer)
    await handle.wait()
    await settles(outer)
    assert [closer.was_quick for closer in closers] == [True, True]


async def test_two_grandchildren_in_different_blocks_close_the_outer_scope_at_once() -> None:
    closers = [Closer(name="one"), Closer(name="two")]

    async def child(outer: Scope, close: Callable[[Scope], Awaitable[None]]) -> None:
        async with Scope("inner") as inner:
            inner.spawn(close, outer)

    outer = await Scope.open("outer")
    handles = [outer.spawn(child, outer, closers[1].when_cancelled)]
    await turns(5)
    handles.append(outer.spawn(child, outer, closers[0]))
    for handle in handles:
        await handle.wait()
    await settles(outer)
    assert [closer.was_quick for closer in closers] == [True, True]


async def test_scopes_whose_children_close_each_other_settle() -> None:
    """A circle: each child waits for the scope of the other."""
    closers = [Closer(name="one"), Closer(name="two")]
    one, two = await Scope.open("one"), await Scope.open("two")
    one.spawn(closers[0].when_cancelled, two)
    two.spawn(closers[1].when_cancelled, one)
    await turns()
    await settles(one)
    await settles(two)
    assert [closer.was_quick for closer in closers] == [True, True]


async def test_the_body_of_an_inner_block_closes_the_outer_scope() -> None:
    """The inner block is stopped too, and its body is the caller: its cancel comes after the report."""
    closer = Closer()
    seen = []

    async with Scope("outer") as outer:
        outer.spawn(sleeper)
        await turns()
        async with Scope("inner"):
            await closer(outer)
            seen.append("inner goes on")
        seen.append("outer body goes on")
    assert closer.was_quick
    assert closer.report is not None
    assert closer.report.clean
    assert closer.cancelled_after
    assert seen == ["outer body goes on"]


async def test_a_closer_in_one_nested_scope_does_not_hold_up_the_others() -> None:
    log: list[str] = []
    closer = Closer(log)

    async def child(outer: Scope) -> None:
        async with Scope("inner") as inner:
            inner.spawn(closer, outer)
            await forever()

    outer = await Scope.open("outer")
    other = await Scope.open("other", scope=outer)
    other.spawn(sleeper, log, "other", 0.02)
    await turns()
    outer.spawn(child, outer)
    await anyio.sleep(0.01)
    await settles(outer)
    assert log == ["other stops", "other is tidy", "closer closed"]
    assert closer.was_quick


@virtual_asyncio
async def test_the_clean_up_of_a_child_that_hosts_a_closer_is_not_cut_when_the_others_end() -> None:
    """The inner block may be stopped once the others are gone, but its host was cancelled already."""
    log: list[str] = []
    closer = Closer(log, "grandchild")

    async def host(outer: Scope) -> None:
        async with Scope("inner") as inner:
            inner.spawn(closer, outer)
            await sleeper(log, "host", 1.0)

    outer = await Scope.open("outer")
    outer.spawn(sleeper, log, "sibling", 0.5)
    await turns()
    outer.spawn(host, outer)
    await anyio.sleep(0.1)
    await settles_within(outer, 2)
    assert "host is tidy" in log
    assert "sibling is tidy" in log


async def settles_within(scope: Scope, seconds: float) -> None:
    start = anyio.current_time()
    report = await scope.close()
    assert report.clean, str(report)
    assert anyio.current_time() - start < seconds


@pytest.mark.parametrize("depth", [2, 3, 6])
async def test_a_closer_at_any_depth_settles(depth: int) -> None:
    closer = Closer()

    async def descend(outer: Scope, left: int) -> None:
        if not left:
            await closer(outer)
            return
        async with Scope(f"level {left}") as inner:
            inner.spawn(sleeper)
            inner.spawn(descend, outer, left - 1)

    outer = await Scope.open("outer")
    outer.spawn(descend, outer, depth)
    await anyio.sleep(0.05)
    await settles(outer)
    assert closer.report is None or closer.was_quick


@pytest.mark.parametrize("order", ["before", "after"])
async def test_what_a_task_has_opened_is_open_while_it_waits_for_a_closer(order: str) -> None:
    """It goes on when the closer has returned, and may need that then. The closer does not wait for it either."""
    closer = Closer()
    states: list[str] = []

    async def host() -> None:
        pool = await Scope.open("pool") if order == "before" else None
        inner = await Scope.open("inner")
        pool = pool or await Scope.open("pool")
        pool.spawn(forever)
        inner.spawn(closer.when_cancelled, outer)
        await turns()
        try:
            await inner.close()
        finally:
            states.append(pool.state)
            with anyio.CancelScope(shield=True):
                await pool.close()

    outer = await Scope.open("outer")
    await outer.spawn(host).wait()
    assert states == ["open"]
    assert closer.was_quick
    assert closer.report is not None
    assert closer.report.clean, str(closer.report)
    await settles(outer)


async def test_what_a_closer_has_opened_itself_is_stopped_and_waited_for() -> None:
    states: list[str] = []

    async def closes() -> None:
        pool = await Scope.open("pool")
        pool.spawn(forever)
        await outer.close()
        states.append(pool.state)

    outer = await Scope.open("outer")
    await outer.spawn(closes).wait()
    assert states == ["settled"]
    await settles(outer)


@virtual_worlds
async def test_a_closer_from_inside_is_woken_when_the_one_it_waits_for_begins_to_wait_for_it() -> None:
    """One closes the outer scope from inside the middle one, and another, for whom it waits, closes the middle one."""
    took: dict[str, float] = {}
    start = anyio.current_time()

    async def closes_outer(outer: Scope) -> None:
        await outer.close()
        took["outer"] = anyio.current_time() - start

    async def closes_middle(middle: Scope) -> None:
        try:
            await forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)
                await middle.close()
                took["middle"] = anyio.current_time() - start

    outer = await Scope.open("outer")
    middle = await Scope.open("middle", scope=outer)
    outer.spawn(closes_middle, middle)
    await turns()
    middle.spawn(closes_outer, outer)
    middle.spawn(sleeper, None, "sleeper", 1.0)  # for which only the other one waits
    await turns()
    await settles(outer)
    assert took == {"outer": pytest.approx(0.5), "middle": pytest.approx(1.5)}
