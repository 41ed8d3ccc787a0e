"""Demand 2: closing from inside the scope's own tree. Nobody waits for itself, nor for who waits for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio

from quiesce import Grace, Outcome, Reason, Scope, ScopeClosed, current_token
from tests.kernel.closers import SOON, Closer, settles
from tests.kernel.temperaments import (
    Stubborn,
    forever,
    on_trio,
    sleeper,
    swallows,
    tidy_up,
    turns,
    virtual_asyncio,
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


@virtual_worlds
async def test_a_body_that_closes_its_own_scope_is_not_cleaning_up() -> None:
    """Nothing has cancelled it, nor what other people's task groups run for it."""
    refused: list[BaseException] = []

    async def beside(scope: Scope) -> None:
        await scope.token.wait()
        try:
            await Scope.open()
        except ScopeClosed as error:
            refused.append(error)

    async with Scope("server") as scope, anyio.create_task_group() as group:
        scope.spawn(sleeper, None, "sleeper", 1.0)
        group.start_soon(beside, scope)
        await turns()
        await scope.close()
    (error,) = refused
    assert "'server'" in str(error)


@virtual_worlds
async def test_a_closer_that_has_got_its_cancel_may_open_what_its_clean_up_needs() -> None:
    log: list[str] = []

    async def closes(scope: Scope) -> None:
        await scope.close()
        try:
            await forever()  # the cancel that was held back
        finally:
            with anyio.CancelScope(shield=True):
                async with Scope("clean-up") as clean_up:
                    clean_up.spawn(anyio.sleep, 0.1)
                log.append("tidy")

    scope = await Scope.open("server")
    handle = scope.spawn(closes, scope)
    await handle.wait()
    assert log == ["tidy"]
    assert handle.state == "cancelled"
    await settles(scope)


@virtual_asyncio
async def test_a_closer_that_was_cancelled_by_somebody_else_is_not_cancelled_once_more_for_what_was_held_back() -> (
    None
):
    log: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def closes(scope: Scope) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await scope.close()
        except asyncio.CancelledError:
            log.append("cancelled")
            await asyncio.sleep(1)
            log.append("tidy")
            raise

    scope = await Scope.open()
    scope.spawn(sleeper, None, "sibling", 0.5)
    await turns()
    handle = scope.spawn(closes, scope)
    await turns()
    tasks[0].cancel()
    await handle.wait()
    assert log == ["cancelled", "tidy"]
    await settles(scope)


@virtual_worlds
async def test_a_closer_that_has_returned_is_waited_for_like_anybody_else() -> None:
    log: list[str] = []

    async def in_vain(scope: Scope) -> None:
        with anyio.CancelScope(shield=on_trio()):
            with suppress(asyncio.CancelledError):
                await scope.close(deadline=0.1)
            await swallows(1)
        log.append("the first is tidy")

    async def again(scope: Scope) -> None:
        with anyio.CancelScope(shield=on_trio()):
            await swallows(0.5)
            try:
                await scope.close(deadline=10)
            finally:
                log.append("the second has closed")

    scope = await Scope.open()
    handles = [scope.spawn(again, scope), scope.spawn(in_vain, scope)]
    for handle in handles:
        await handle.wait()
    assert log == ["the first is tidy", "the second has closed"]


async def test_what_is_needed_after_a_close_from_inside_is_stopped_when_the_time_to_clean_up_is_over() -> (
    None
):
    opened: list[Scope] = []
    scope = await Scope.open("outer", grace=Grace(cancel=0.1, terminate=0.1, kill=0.1))
    slow = Stubborn()

    async def waits_for_the_closer() -> None:
        opened.append(await Scope.open("needed", scope=scope))
        opened[0].spawn(anyio.sleep_forever)
        async with Scope("block") as block:
            block.spawn(scope.close)

    scope.spawn(slow)
    scope.spawn(waits_for_the_closer)
    while scope.state != "expired":
        await anyio.sleep(0.01)
    assert opened[0].reason is not None
    slow.let_go()
    assert (await scope.close()).clean


async def test_a_close_by_a_child_leaves_the_body_what_it_has_opened_until_that_is_tidy() -> None:
    log: list[str] = []

    async def hold() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("the resource stops")

    async with Scope("block") as scope:
        resource = await Scope.open("resource")
        resource.spawn(hold)
        await turns()
        scope.spawn(scope.close)
        try:
            await anyio.sleep_forever()
        finally:
            await tidy_up(0.05)
            log.append("the body is tidy")
    assert log == ["the body is tidy", "the resource stops"]
