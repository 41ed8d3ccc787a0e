"""Demand 1: a scope belongs to no task. And what a scope is, in its plain use."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress
from contextvars import ContextVar

import anyio
import pytest

from quiesce import (
    CancelToken,
    Grace,
    Handle,
    Reason,
    Scope,
    ScopeClosed,
    current_scope,
    current_token,
    shielded,
)
from quiesce.kernel.inner import OpenScope, bind_scope, core_of, is_cleaning_up, stop_asked_for, users_site
from tests.kernel.temperaments import (
    an_innocent_bystander,
    in_the_background,
    quick,
    sleeper,
    turns,
    virtual_worlds,
)
from tests.world import asyncio_only

# The block --------------------------------------------------------------------------------------------------


async def test_the_end_of_the_block_waits_for_the_children() -> None:
    log = []

    async def worker(number: int) -> None:
        await anyio.sleep(0.01 * number)
        log.append(number)

    async with Scope("crew") as scope:
        for number in (3, 1, 2):
            scope.spawn(worker, number)
        assert log == []
    assert log == [1, 2, 3]
    assert scope.state == "settled"


async def test_an_exception_in_the_body_cancels_the_children_and_waits_for_their_clean_up() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 0.02)
            await turns()
            raise ValueError("body")
    assert log == ["child stops", "child is tidy"]
    assert [str(error) for error in caught.value.exceptions] == ["body"]


async def test_an_empty_block_settles_at_once() -> None:
    before = anyio.current_time()
    async with Scope(grace=Grace(cancel=60)) as scope:
        pass
    assert scope.state == "settled"
    assert scope.report is not None
    assert scope.report.clean
    assert scope.report.reason is None
    assert anyio.current_time() - before < 10


async def test_a_child_may_spawn_siblings_while_the_block_waits() -> None:
    log = []

    async def first(scope: Scope) -> None:
        await anyio.sleep(0.01)
        scope.spawn(second)

    async def second() -> None:
        await anyio.sleep(0.01)
        log.append("second")

    async with Scope() as scope:
        scope.spawn(first, scope)
    assert log == ["second"]


async def test_blocks_nest_and_the_inner_one_ends_first() -> None:
    log: list[str] = []

    async def note(name: str, after: float) -> None:
        await anyio.sleep(after)
        log.append(name)

    async with Scope("outer") as outer:
        outer.spawn(note, "outer", 0.05)
        async with Scope("inner") as inner:
            inner.spawn(note, "inner", 0.01)
        log.append("between")
    assert log == ["inner", "between", "outer"]


async def test_the_states_of_a_scope_follow_its_table() -> None:
    scope = Scope("life")
    seen = [scope.state]
    async with scope:
        seen.append(scope.state)
        scope.spawn(sleeper, None, "child", 0.02)
        await turns()
        scope.cancel()
        seen.append(scope.state)
    seen.append(scope.state)
    assert seen == ["new", "open", "stopping", "settled"]


async def test_cancel_in_the_body_stops_children_and_body_and_the_block_ends_quietly() -> None:
    log: list[str] = []
    async with Scope() as scope:
        scope.spawn(sleeper, log, "child", 0.01)
        await turns()
        scope.cancel("enough")
        await anyio.sleep_forever()
        log.append("never")
    assert log == ["child stops", "child is tidy"]
    assert scope.reason == Reason("user", "enough")


async def test_what_is_opened_and_not_closed_is_closed_by_the_scope_around_it() -> None:
    log: list[str] = []

    async def session() -> Scope:
        inner = await Scope.open("inner")
        inner.spawn(sleeper, log, "grandchild", 0.01)
        await turns()
        return inner

    outer = await Scope.open("outer")
    handle = outer.spawn(session)
    await handle.wait()
    inner: Scope = handle.result()
    assert inner.state == "open"
    report = await outer.close()
    assert report.clean
    assert inner.state == "settled"
    assert log == ["grandchild stops", "grandchild is tidy"]


@virtual_worlds
@pytest.mark.parametrize("how", ["end", "error", "cancel"])
async def test_what_was_opened_in_a_block_is_closed_as_soon_as_its_body_has_left(how: str) -> None:
    log: list[str] = []
    start = anyio.current_time()
    with suppress(ExceptionGroup):
        async with Scope("outer") as outer:
            inner = await Scope.open("inner")
            inner.spawn(sleeper, log)
            await turns()
            if how == "error":
                raise LookupError
            if how == "cancel":
                outer.cancel()
                await anyio.sleep_forever()
    assert log == ["sleeper stops", "sleeper is tidy"]
    assert inner.state == "settled"
    assert anyio.current_time() == start, "nobody waited for a rung of the stop"


async def test_nested_scopes_are_signalled_at_once_but_cancelled_when_the_children_are_gone() -> None:
    log: list[str] = []
    outer = await Scope.open("outer")
    inner = await Scope.open("inner", scope=outer)
    inner.spawn(sleeper, log, "inner")
    inner.token.on_cancel(lambda: log.append("inner knows"))
    outer.spawn(sleeper, log, "child", 0.02)
    await turns()
    await outer.close()
    assert log == ["inner knows", "child stops", "child is tidy", "inner stops", "inner is tidy"]


@asyncio_only  # trio runs what is due at the same time in any order
async def test_of_nested_scopes_the_last_opened_is_stopped_first() -> None:
    log: list[str] = []
    outer = await Scope.open("outer")
    inners = [await Scope.open(scope=outer) for _ in range(3)]
    for n, inner in enumerate(inners, 1):
        inner.spawn(sleeper, log, f"inner {n}")
    await turns()
    await outer.close()
    assert [line for line in log if "stops" in line] == ["inner 3 stops", "inner 2 stops", "inner 1 stops"]


async def test_a_token_from_outside_stops_the_scope_with_its_reason() -> None:
    token = CancelToken()
    log: list[str] = []
    scope = await Scope.open(token=token)
    scope.spawn(sleeper, log)
    await turns()
    token.cancel(Reason("disconnect", "gone"))
    await turns()
    assert log == ["sleeper stops", "sleeper is tidy"]
    assert (await scope.close()).reason == Reason("disconnect", "gone")


async def test_a_scope_under_a_cancelled_token_is_born_stopping() -> None:
    token = CancelToken()
    token.cancel("too late")
    scope = await Scope.open(token=token)
    with pytest.raises(ScopeClosed, match="too late"):
        scope.spawn(sleeper)
    assert (await scope.close()).reason == Reason("user", "too late")


# From anywhere ----------------------------------------------------------------------------------------------


async def test_opened_in_one_task_used_from_a_second_closed_from_a_third() -> None:
    log: list[str] = []
    made: list[Scope] = []

    async def opens() -> None:
        made.append(await Scope.open("shared"))

    async def uses() -> None:
        made[0].spawn(sleeper, log, "child", 0.01)

    async def closes() -> None:
        report = await made[0].close()
        log.append(str(report.clean))

    for step in (opens, uses, closes):
        async with anyio.create_task_group() as group:
            group.start_soon(step)
        await turns()
    assert log == ["child stops", "child is tidy", "True"]
    assert made[0].state == "settled"


@asyncio_only
async def test_a_block_may_be_entered_in_one_task_and_left_in_another() -> None:
    log: list[str] = []
    scope = Scope()
    await asyncio.create_task(scope.__aenter__())
    scope.spawn(sleeper, log)
    await turns()
    scope.cancel("done")
    assert await asyncio.create_task(scope.__aexit__(None, None, None)) in (False, None)
    assert log == ["sleeper stops", "sleeper is tidy"]


async def test_closing_cancels_no_bystander_opener_or_spawner() -> None:
    seen: list[str] = []
    made: list[Scope] = []
    spawned = anyio.Event()
    over = anyio.Event()

    async def opens() -> None:
        made.append(await Scope.open())
        await over.wait()
        seen.append("opener lives")

    async def uses() -> None:
        while not made:
            await anyio.sleep(0.001)
        made[0].spawn(sleeper)
        spawned.set()
        await over.wait()
        seen.append("spawner lives")

    async with an_innocent_bystander(), anyio.create_task_group() as group:
        group.start_soon(opens)
        group.start_soon(uses)
        await spawned.wait()
        await made[0].close()
        await turns()
        over.set()
    assert sorted(seen) == ["opener lives", "spawner lives"]


async def generate(log: list[str], made: list[Scope]) -> AsyncIterator[int]:
    scope = await Scope.open("in a generator")
    made.append(scope)
    try:
        scope.spawn(sleeper, log, "child", 0.01)
        await anyio.sleep(0)
        yield 1
        yield 2
    finally:
        try:
            await scope.close()
        finally:  # on trio a finaliser is born cancelled
            log.append(f"scope is {scope.state}")


async def test_closed_from_the_finaliser_of_a_dropped_async_generator() -> None:
    log: list[str] = []
    made: list[Scope] = []

    async def drop_it() -> None:
        generator = generate(log, made)
        async for _ in generator:
            break

    async with an_innocent_bystander():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # trio's own, about the generator
            await drop_it()
            gc.collect()
            with anyio.fail_after(2):
                while "scope is settled" not in log:
                    await anyio.sleep(0.01)
    assert log == ["child stops", "child is tidy", "scope is settled"]
    assert made[0].state == "settled"


async def test_closed_from_a_finally_under_cancellation() -> None:
    log: list[str] = []
    opened = anyio.Event()

    async def user() -> None:
        scope = await Scope.open()
        try:
            scope.spawn(sleeper, log, "child", 0.02)
            opened.set()
            await anyio.sleep_forever()
        finally:
            try:
                await scope.close()
            finally:
                log.append(f"scope is {scope.state}")

    async with in_the_background(user):
        await opened.wait()
        await turns()
    assert log == ["child stops", "child is tidy", "scope is settled"]


# Whose scope, whose token -----------------------------------------------------------------------------------


async def test_the_current_scope_of_a_child_is_its_scope_and_of_a_body_the_block() -> None:
    seen: dict[str, Scope] = {}

    async def child() -> None:
        seen["child"] = current_scope()
        async with Scope("inner") as inner:
            seen["inner body"] = current_scope()
            assert current_scope() is inner
        seen["child after"] = current_scope()

    async with Scope("outer") as outer:
        seen["body"] = current_scope()
        outer.spawn(child)
        async with anyio.create_task_group() as group:

            async def foreign() -> None:
                seen["foreign"] = current_scope()

            group.start_soon(foreign)
    assert {name for name, scope in seen.items() if scope is outer} == {
        "body",
        "child",
        "child after",
        "foreign",
    }
    assert current_scope() is not outer


async def test_outside_any_scope_the_current_scope_is_the_root_of_the_loop() -> None:
    log: list[str] = []
    root = current_scope()
    assert root.name == "root"
    assert current_scope() is root
    root.spawn(quick)
    scope = await Scope.open("below the root")
    scope.spawn(sleeper, log)
    await turns()
    report = await root.close()
    assert report.clean
    assert scope.state == "settled"
    assert log == ["sleeper stops", "sleeper is tidy"]


async def test_tokens_are_the_childs_the_bodys_and_nobodys() -> None:
    tokens = {}

    async def child(name: str) -> None:
        tokens[name] = current_token()
        await anyio.sleep_forever()

    async with Scope() as scope:
        tokens["body"] = current_token()
        one = scope.spawn(child, "one")
        scope.spawn(child, "two")
        await turns()
        assert len({id(token) for token in tokens.values()}) == 3
        one.cancel("only you")
        await one.wait()
        assert tokens["one"].reason == Reason("user", "only you")
        assert not tokens["two"].cancelled
        assert not tokens["body"].cancelled
        scope.cancel("all")
    assert tokens["two"].reason == Reason("user", "all")
    assert tokens["body"].reason == Reason("user", "all")
    assert tokens["one"].reason == Reason("user", "only you")
    assert not current_token().cancelled
    assert current_token() is not current_token()


async def test_the_token_of_an_inner_scope_hangs_below_its_opener() -> None:
    seen = []

    async def child() -> None:
        async with Scope("inner") as inner:
            inner.spawn(grandchild)

    async def grandchild() -> None:
        token = current_token()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(token.reason)

    scope = await Scope.open("outer")
    handle: Handle = scope.spawn(child)
    await turns()
    handle.cancel(Reason("user", "from above"))
    await handle.wait()
    assert seen == [Reason("user", "from above")]
    await scope.close()


@virtual_worlds
async def test_two_scopes_of_one_program_do_not_know_each_other() -> None:
    log: list[str] = []
    one, two = await Scope.open("one"), await Scope.open("two")
    one.spawn(sleeper, log, "one")
    two.spawn(sleeper, log, "two")
    await turns()
    await one.close()
    await anyio.sleep(10)
    assert log == ["one stops", "one is tidy"]
    await two.close(grace=Grace(cancel=1))
    assert log[2:] == ["two stops", "two is tidy"]


async def test_a_child_sees_the_context_of_its_spawner_and_its_changes_stay_inside() -> None:
    colour = ContextVar("colour", default="none")
    seen = []

    async def child() -> None:
        seen.append(colour.get())
        colour.set("changed")
        await anyio.sleep(0)

    async with Scope() as scope:
        colour.set("red")
        scope.spawn(child)
        colour.set("blue")
        await turns()
    assert seen == ["red"]
    assert colour.get() == "blue"


async def test_the_token_of_a_scope_that_somebody_else_owns_hangs_below_the_owner() -> None:
    made: list[Scope] = []

    async def opens(owner: Scope) -> None:
        made.append(await Scope.open("theirs", scope=owner))
        await anyio.sleep_forever()

    mine, owner = await Scope.open("mine"), await Scope.open("owner")
    mine.spawn(opens, owner)
    await turns()
    token = made[0].token
    assert (await mine.close()).clean
    assert not token.cancelled, "its opener has nothing to say"
    owner.cancel("the owner stops")
    assert token.reason == Reason("user", "the owner stops")
    assert (await owner.close()).clean


@virtual_worlds
async def test_work_that_is_to_stop_knows_why_however_deep_it_is_unless_it_is_shielded() -> None:
    seen: dict[str, Reason | None] = {}

    async def look(where: str) -> None:
        seen[where] = stop_asked_for()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await look("in a child")
                async with Scope("clean-up") as clean_up:
                    clean_up.spawn(look, "in its clean-up")
                await shielded(look, "shielded")

    await look("outside")
    scope = await Scope.open()
    scope.spawn(work)
    await turns()
    await scope.close(reason="enough")
    enough = Reason("user", "enough")
    assert seen == {"outside": None, "in a child": enough, "in its clean-up": enough, "shielded": None}


async def test_a_scope_that_is_made_here_and_bound_there_belongs_to_the_owner_that_it_was_given() -> None:
    async with Scope("owner") as owner, Scope("caller"):
        given, current = OpenScope("given", scope=owner), OpenScope("current")
        assert bind_scope(given, users_site()).parent is core_of(owner)
        assert bind_scope(current, users_site()).parent is core_of()
        for scope in (given, current):
            await scope.close()


async def test_work_knows_whether_it_is_cleaning_up() -> None:
    seen: list[bool] = []

    async def child() -> None:
        seen.append(is_cleaning_up())
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(is_cleaning_up())

    seen.append(is_cleaning_up())
    async with Scope() as scope:
        handle = scope.spawn(child)
        await turns()
        handle.cancel()
    assert seen == [False, False, True]
