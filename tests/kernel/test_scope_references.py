"""What a scope holds on to, and who may end it: a thread of the collector may not, and a task that has left its block is let go."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from quiesce import Scope, StopReport
from quiesce.kernel.scope import stop_listeners
from quiesce.kernel.scope.lifecycle import ScopeCore
from tests.kernel.temperaments import quick, sleeper, turns
from tests.world import asyncio_only


@asyncio_only
@pytest.mark.real_time
async def test_the_collector_of_another_thread_does_not_stop_a_scope_there() -> None:
    threads: list[object] = []

    async def lost() -> None:
        async with Scope("lost") as scope:
            scope.token.on_cancel(lambda: threads.append(threading.current_thread()))
            await asyncio.get_running_loop().create_future()

    coroutine = lost()
    coroutine.send(None)
    worker = threading.Thread(target=coroutine.close)
    worker.start()
    while worker.is_alive():
        await asyncio.sleep(0.001)
    worker.join()
    assert worker not in threads


@asyncio_only
async def test_a_task_that_fails_after_its_block_is_not_held_by_the_scope() -> None:
    class Late(Exception):
        pass

    async def fails() -> None:
        async with Scope() as scope:
            await asyncio.sleep(0)
        raise Late(scope)

    gc.disable()
    try:
        task = asyncio.ensure_future(fails())
        await asyncio.wait([task])
        assert isinstance(task.exception(), Late)
        alive = weakref.ref(task)
        del task
        await asyncio.sleep(0)
        assert alive() is None
    finally:
        gc.enable()


async def test_a_stop_that_a_token_settles_is_told_of_once() -> None:
    ended: list[str] = []

    class Listener:
        def began(self, core: ScopeCore) -> None:
            pass

        def ended(self, core: ScopeCore, report: StopReport | None, *, late: bool) -> None:
            ended.append(core.label)

    listener = Listener()
    stop_listeners.listeners.append(listener)
    try:
        outer = await Scope.open("outer")
        await Scope.open("inner", token=outer.token, scope=outer)
        outer.cancel()
        await outer.close()
    finally:
        stop_listeners.listeners.remove(listener)
    assert ended.count("outer") == 1


@pytest.mark.parametrize("how", ["empty", "a child", "an opened scope"])
async def test_the_scope_of_a_block_that_was_left_needs_no_collector(how: str) -> None:
    async def block() -> weakref.ref[Scope]:
        async with Scope() as scope:
            is_kept = weakref.ref(scope)
            if how == "a child":
                scope.spawn(quick)
            elif how == "an opened scope":
                inner = await Scope.open()
                inner.spawn(sleeper)
        return is_kept

    gc.collect()
    gc.disable()
    try:
        is_kept = await block()
        await turns()
        assert is_kept() is None
    finally:
        gc.enable()
