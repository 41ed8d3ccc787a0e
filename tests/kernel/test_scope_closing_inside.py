"""Demand 2: closing from inside the scope's own tree. Nobody waits for itself, nor for who waits for it."""

from __future__ import annotations

import asyncio

import anyio

from quiesce import Grace, Outcome, Reason, Scope, current_token
from tests.kernel.closers import SOON, Closer, settles
from tests.kernel.temperaments import (
    Stubborn,
    on_trio,
    sleeper,
    tidy_up,
    turns,
    virtual_worlds,
)
from tests.world import asyncio_only


async def test_a_child_closes_its_own_scope_and_its_cancel_arrives_at_its_next_await() -> None:
    log: list[str] = []
    closer = Closer(log)
    scope = await Scope.open()
    scope.spawn(sleeper, log, "sibling", 0.02)
    await turns()
    handle = scope.spawn(closer, scope, name="closer")
    await handle.wait()
    assert log == ["sibling stops", "sibling is tidy", "closer closed"]
    assert closer.was_quick
    assert closer.cancelled_after
    assert handle.state == "cancelled"
    assert closer.report is not None
    assert closer.report.clean
    assert Outcome("closer", "closing") in closer.report.outcomes
    await settles(scope)


async def test_a_child_that_closes_its_own_scope_may_return_without_another_await() -> None:
    async def child(scope: Scope) -> str:
        await scope.close()
        return "done"

    scope = await Scope.open()
    handle = scope.spawn(child, scope)
    await handle.wait()
    assert handle.result() == "done"
    await settles(scope)


async def test_the_only_child_closes_its_own_scope() -> None:
    closer = Closer()
    scope = await Scope.open()
    handle = scope.spawn(closer, scope)
    await handle.wait()
    assert closer.was_quick
    await settles(scope)


async def test_a_child_closes_the_block_it_lives_in() -> None:
    log: list[str] = []
    closer = Closer(log)
    async with Scope() as scope:
        scope.spawn(sleeper, log, "sibling", 0.01)
        await turns()
        scope.spawn(closer, scope)
        try:
            await anyio.sleep_forever()
        finally:
            log.append("body left")
    assert sorted(log) == ["body left", "closer closed", "sibling is tidy", "sibling stops"]
    assert closer.cancelled_after
    assert closer.was_quick


async def test_two_children_close_their_scope_at_once() -> None:
    log: list[str] = []
    closers = [Closer(log, "one"), Closer(log, "two")]
    scope = await Scope.open()
    scope.spawn(sleeper, log, "sibling", 0.02)
    handles = [scope.spawn(closers[1].when_cancelled, scope, name="two")]
    await turns()
    handles.append(scope.spawn(closers[0], scope, name="one"))
    for handle in handles:
        await handle.wait()
    assert log[:2] == ["sibling stops", "sibling is tidy"]
    assert sorted(log[2:]) == ["one closed", "two closed"]
    for closer in closers:
        assert closer.was_quick
        assert closer.report is not None
        assert closer.report.clean
        assert Outcome(closer.name, "closing") in closer.report.outcomes
    await settles(scope)


async def test_closers_inside_come_one_after_the_other() -> None:
    log: list[str] = []
    closers = [Closer(log, f"closer {n}") for n in range(4)]

    async def later(scope: Scope, closer: Closer, after: float) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await tidy_up(after)
            with anyio.CancelScope(shield=True):
                await closer(scope)

    scope = await Scope.open()
    scope.spawn(sleeper, log, "sibling", 0.05)
    for n, closer in enumerate(closers):
        scope.spawn(later, scope, closer, 0.01 * n)
    await turns()
    await settles(scope)
    assert log[:2] == ["sibling stops", "sibling is tidy"]
    assert sorted(log[2:]) == [f"closer {n} closed" for n in range(4)]


async def test_a_closer_inside_and_one_outside() -> None:
    log: list[str] = []
    closer = Closer(log)
    scope = await Scope.open()
    scope.spawn(sleeper, log, "sibling", 0.05)
    await turns()
    scope.spawn(closer, scope)
    await anyio.sleep(0.01)
    await settles(scope)
    assert log == ["sibling stops", "sibling is tidy", "closer closed"]


async def test_a_foreign_task_that_a_child_waits_for_closes_the_scope() -> None:
    closer = Closer()

    async def child(scope: Scope) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(closer, scope)

    scope = await Scope.open()
    scope.spawn(child, scope)
    await anyio.sleep(0.02)
    await settles(scope)
    assert closer.report is None or closer.was_quick


@asyncio_only
async def test_a_bare_task_that_a_child_started_and_left_closes_the_scope() -> None:
    log: list[str] = []
    closer = Closer(log)
    tasks = []

    async def child(scope: Scope) -> None:
        tasks.append(asyncio.create_task(closer(scope)))
        await sleeper(log, "child", 0.01)

    scope = await Scope.open()
    scope.spawn(child, scope)
    await anyio.sleep(0.01)
    await asyncio.wait(tasks)
    assert not tasks[0].cancelled()  # it belongs to nobody here
    await settles(scope)
    assert closer.was_quick


@asyncio_only
async def test_a_task_that_outlived_the_child_it_descends_from_waits_like_anybody_else() -> None:
    log: list[str] = []
    closer = Closer(log)
    tasks = []

    async def child(scope: Scope) -> None:
        async def later() -> None:
            await asyncio.sleep(0.02)
            await closer(scope)

        tasks.append(asyncio.create_task(later()))

    scope = await Scope.open()
    handle = scope.spawn(child, scope)
    await handle.wait()
    scope.spawn(sleeper, log, "sibling", 0.02)
    await asyncio.wait(tasks)
    assert log == ["sibling stops", "sibling is tidy", "closer closed"]
    assert not tasks[0].cancelled()
    assert scope.state == "settled"


async def test_a_closer_inside_does_not_wait_for_ever_for_a_stubborn_sibling() -> None:
    stubborn = Stubborn()
    closer = Closer()
    scope = await Scope.open(grace=Grace(cancel=0.05, terminate=0.05, kill=0))
    scope.spawn(stubborn, name="stubborn")
    await turns()
    handle = scope.spawn(closer, scope, name="closer")
    await handle.wait()
    assert closer.report is not None or handle.state == "cancelled"
    report = scope.report
    assert report is not None
    assert [left.name for left in report.left] == ["stubborn"]
    stubborn.let_go()
    await settles(scope)


async def test_closing_the_outer_scope_in_clean_up_is_no_deadlock() -> None:
    """What many a `finally` does: everybody closes everything."""
    log: list[str] = []

    async def child(scope: Scope, n: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await scope.close()
            log.append(f"child {n}")

    scope = await Scope.open()
    for n in range(5):
        scope.spawn(child, scope, n)
    await turns()
    start = anyio.current_time()
    await scope.close()
    assert anyio.current_time() - start < SOON
    assert scope.state == "settled"
    if not on_trio():  # there, close() ends with the child's own cancel, as every await does
        assert sorted(log) == [f"child {n}" for n in range(5)]


async def test_a_child_closes_its_scope_within_its_first_step() -> None:
    """With eager tasks that first step runs inside `spawn`."""
    log: list[str] = []
    closer = Closer(log)
    scope = await Scope.open()
    scope.spawn(sleeper, log, "sibling", 0.01)
    await turns()
    handle = scope.spawn(closer, scope, name="closer")
    await handle.wait()
    assert log == ["sibling stops", "sibling is tidy", "closer closed"]
    assert closer.cancelled_after
    await settles(scope)


async def test_a_child_cancelled_by_its_handle_while_it_closes_its_own_scope() -> None:
    log: list[str] = []
    closer = Closer(log)
    scope = await Scope.open()
    scope.spawn(sleeper, log, "sibling", 0.05)
    await turns()
    handle = scope.spawn(closer, scope, name="closer")
    await anyio.sleep(0.01)
    handle.cancel("you too")
    await handle.wait()
    assert log[:2] == ["sibling stops", "sibling is tidy"]
    assert handle.state == "cancelled"
    await settles(scope)


@virtual_worlds
async def test_the_reason_of_the_closer_inside_reaches_everybody() -> None:
    reasons = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            reasons.append(current_token().reason)

    async def closer(scope: Scope) -> None:
        await scope.close(reason=Reason("timeout", "too slow"))
        reasons.append(current_token().reason)
        await tidy_up(0)

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    scope.spawn(closer, scope)
    await anyio.sleep(1)
    assert (await scope.close()).reason == Reason("timeout", "too slow")
    assert reasons == [Reason("timeout", "too slow")] * 2
