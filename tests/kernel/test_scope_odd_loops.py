"""Loops that are not plain: debug mode, other people's task factories, trio as a guest; and reentrant stops."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Coroutine
from typing import Any

import anyio
import pytest
import trio

from quiesce import (
    CancelToken,
    Grace,
    Handle,
    Reason,
    Scope,
    ScopeClosed,
    current_scope,
    current_token,
    to_thread,
)
from tests.kernel.temperaments import (
    Stubborn,
    fails,
    fails_in_clean_up,
    forever,
    quick,
    sleeper,
    turns,
    virtual_asyncio,
    virtual_worlds,
)

# Debug mode -------------------------------------------------------------------------------------------------


def test_asyncios_debug_mode_finds_nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = 10
        scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
        scope.spawn(sleeper, log, "child", 0.01)
        scope.spawn(fails, ValueError())
        scope.spawn(fails_in_clean_up, ValueError())
        scope.spawn(quick).cancel()
        await turns()
        await asyncio.to_thread(scope.cancel, "from a thread")
        assert not (await scope.close()).left
        with pytest.raises(ExceptionGroup):
            async with Scope() as block:
                block.spawn(fails, ValueError())
                await forever()

    asyncio.run(main(), debug=True)
    gc.collect()
    assert log == ["child stops", "child is tidy"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# Task factories ---------------------------------------------------------------------------------------------


class Factory:
    """Somebody's instrumentation: it sees every task, and makes them as it likes."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **kwargs: Any
    ) -> asyncio.Task[Any]:
        self.made += 1
        return asyncio.Task(coro, loop=loop, **kwargs)


@virtual_asyncio
async def test_children_are_made_by_the_task_factory_of_their_loop() -> None:
    factory = Factory()
    log: list[str] = []
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(factory)  # type: ignore[arg-type]
    try:
        scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
        handles = [
            scope.spawn(quick, 1),
            scope.spawn(sleeper, log, "child", 1.0),
            scope.spawn(fails, ValueError()),
            scope.spawn(fails, SystemExit()),
        ]
        await turns()
        never_started = scope.spawn(sleeper)
        never_started.cancel()
        await never_started.wait()
        report = await scope.close()
    finally:
        loop.set_task_factory(before)
    assert factory.made == 5
    assert report.clean
    assert [handle.state for handle in handles] == ["finished", "cancelled", "failed", "failed"]
    assert never_started.state == "cancelled"
    assert log == ["child stops", "child is tidy"]


@virtual_asyncio
async def test_a_task_factory_that_fails_starts_nothing_and_leaves_nothing() -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        args[1].close()
        raise ValueError("no more tasks")

    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    scope = await Scope.open()
    loop.set_task_factory(broken)
    try:
        with pytest.raises(ValueError, match="no more tasks"):
            scope.spawn(quick)
    finally:
        loop.set_task_factory(before)
    assert scope.children == ()
    assert (await scope.close()).clean


# Guests -----------------------------------------------------------------------------------------------------


def test_scopes_of_a_trio_run_that_is_a_guest_of_asyncio_are_trios() -> None:
    log: list[str] = []

    async def guest() -> str:
        async with Scope("guest") as scope:
            assert current_scope() is scope
            scope.spawn(sleeper, log, "guest", 0.01)
            await trio.sleep(0.01)
            scope.cancel()
        return "guest done"

    async def main() -> str:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        async with Scope("host") as scope:
            scope.spawn(sleeper, log, "host", 0.01)
            trio.lowlevel.start_guest_run(
                guest,
                run_sync_soon_threadsafe=asyncio.get_running_loop().call_soon_threadsafe,
                done_callback=done.set_result,
            )
            outcome = await done
            assert current_scope() is scope
            scope.cancel()
        return str(outcome.unwrap())

    assert asyncio.run(main()) == "guest done"
    assert log == ["guest stops", "guest is tidy", "host stops", "host is tidy"]


# Stops inside of stops --------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_callback_of_the_scopes_own_token_may_ask_again_in_the_middle_of_the_stop() -> None:
    log: list[str] = []
    refused: list[BaseException] = []
    scope = await Scope.open()
    handle = scope.spawn(sleeper, log, "child", 1.0)
    await turns()

    def again() -> None:
        scope.cancel("again")
        handle.cancel("you too")
        try:
            scope.spawn(quick)
        except ScopeClosed as error:
            refused.append(error)

    scope.token.on_cancel(again)
    start = anyio.current_time()
    scope.cancel("once")
    report = await scope.close()
    assert report.clean
    assert log == ["child stops", "child is tidy"]
    assert anyio.current_time() - start == pytest.approx(1.0)
    assert report.reason == Reason("user", "once")
    assert len(refused) == 1


@virtual_worlds
async def test_a_callback_of_the_scopes_own_token_may_shorten_the_stop() -> None:
    stubborn = Stubborn()
    scope = await Scope.open()
    scope.spawn(stubborn)
    await turns()
    scope.token.on_cancel(lambda: scope.cancel(grace=Grace(cancel=0.2, terminate=0, kill=0)))
    report = await scope.close()
    stubborn.let_go()
    assert (await scope.close()).clean
    assert report.elapsed == pytest.approx(0.2)
    assert len(report.left) == 1


async def test_a_callback_of_a_childs_token_may_stop_another_scope_or_its_siblings() -> None:
    log: list[str] = []
    one, two = await Scope.open("one"), await Scope.open("two")
    handles: list[Handle] = []

    async def first() -> None:
        current_token().on_cancel(lambda: two.cancel("chain"))
        current_token().on_cancel(lambda: handles[1].cancel("chain"))
        await forever()

    handles.append(one.spawn(first))
    handles.append(one.spawn(sleeper, log, "sibling", 0.01))
    two.spawn(sleeper, log, "other", 0.01)
    await turns()
    handles[0].cancel("start")
    await two.close()
    await handles[1].wait()
    assert sorted(log) == ["other is tidy", "other stops", "sibling is tidy", "sibling stops"]
    assert two.reason == Reason("user", "chain")
    assert (await one.close()).clean


async def test_a_child_may_cancel_itself_by_its_handle() -> None:
    log: list[str] = []
    handles: list[Handle] = []

    async def child() -> None:
        await turns()
        handles[0].cancel("myself")
        log.append("still here")
        await sleeper(log)

    scope = await Scope.open()
    handles.append(scope.spawn(child))
    await handles[0].wait()
    assert log[0] == "still here"
    assert handles[0].state == "cancelled"
    assert handles[0].reason == Reason("user", "myself")
    assert (await scope.close()).clean


async def test_a_child_that_waits_for_itself_ends_with_its_scope() -> None:
    handles: list[Handle] = []

    async def child() -> None:
        await turns()
        await handles[0].wait()

    scope = await Scope.open()
    handles.append(scope.spawn(child))
    await turns(6)
    assert not handles[0].done
    assert (await scope.close()).clean
    assert handles[0].state == "cancelled"


# Deep and wide ----------------------------------------------------------------------------------------------


def test_a_chain_of_thousands_of_tokens_can_be_read_and_cancelled() -> None:
    tokens = [CancelToken()]
    for _ in range(5000):
        tokens.append(tokens[-1].child())
    assert not tokens[-1].cancelled
    tokens[2500].cancel("half")
    tokens[0].cancel("all")
    assert tokens[2499].reason == Reason("user", "all")
    assert tokens[-1].reason == Reason("user", "half")


def test_callbacks_run_a_hundred_tokens_down() -> None:
    tokens = [CancelToken()]
    for _ in range(100):
        tokens.append(tokens[-1].child())
    called: list[str] = []
    take_back = tokens[-1].on_cancel(lambda: called.append("taken back"))
    tokens[-1].on_cancel(lambda: called.append("end"))
    tokens[50].on_cancel(lambda: called.append("middle"))
    take_back()
    tokens[0].cancel("all")
    assert sorted(called) == ["end", "middle"]


@virtual_worlds
async def test_scopes_nested_a_hundred_deep_are_stopped_and_settled() -> None:
    log: list[str] = []
    scopes = [await Scope.open("0")]
    for n in range(1, 100):
        scopes.append(await Scope.open(str(n), scope=scopes[-1]))
    scopes[-1].spawn(sleeper, log, "innermost")
    assert not scopes[-1].token.cancelled
    await turns()
    report = await scopes[0].close()
    assert report.clean
    assert log == ["innermost stops", "innermost is tidy"]
    assert {scope.state for scope in scopes} == {"settled"}


@virtual_worlds
async def test_a_scope_of_thousands_of_children_is_stopped_and_settled() -> None:
    count = 0

    async def child() -> None:
        nonlocal count
        try:
            await forever()
        finally:
            count += 1

    scope = await Scope.open()
    for _ in range(3000):
        scope.spawn(child)
    await turns()
    report = await scope.close()
    assert report.clean
    assert count == 3000
    assert len(report.outcomes) == 3000


# A loop in a thread -----------------------------------------------------------------------------------------


@pytest.mark.real_time
async def test_a_loop_of_its_own_in_a_thread_has_scopes_of_its_own() -> None:
    """`current_node` comes into the thread, where it names a scope of another event loop."""
    seen: list[object] = []

    async def inner() -> None:
        seen.append(current_scope())
        async with Scope("inner") as scope:
            seen.append(scope._opened().parent)
            seen.append(await to_thread(threading.get_ident))

    async with Scope("outer") as outer:
        await to_thread(lambda: asyncio.run(inner()))
        assert seen[0] is not outer
        assert seen[1] is not outer._opened()
