"""What `to_thread` and `run` found in the kernel below them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest

from quiesce import Scope, current_scope
from quiesce.kernel.threads.thread_call import to_thread
from tests.kernel.temperaments import Stubborn, quick, turns, virtual_worlds


@virtual_worlds
async def test_a_block_that_expires_with_the_scope_around_it_is_not_itself_left() -> None:
    """Both ladders end in the same instant; the task that leaves the inner block is one turn too late."""
    stubborn = Stubborn()

    async def child() -> None:
        async with Scope("inner") as inner:
            inner.spawn(stubborn, name="stubborn")

    outer = await Scope.open("outer")
    outer.spawn(child, name="child")
    await turns()
    report = await outer.close(deadline=0.1)
    stubborn.let_go()
    await outer.close(deadline=1)
    assert [left.name for left in report.left] == ["stubborn"]


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


async def test_a_running_coroutine_is_not_said_to_wait_in_the_kernel() -> None:
    """Asked for from another thread, while it blocks the loop: what it awaits is not known, what it runs is."""
    seen: list[str] = []

    async def blocks() -> None:
        asker = threading.Thread(target=lambda: seen.append(handle._stuck_at()))
        asker.start()
        asker.join(5)

    async with Scope() as scope:
        handle = scope.spawn(quick)
        await handle.wait()
        handle = scope.spawn(blocks_after_a_turn, blocks)
    assert len(seen) == 1
    assert "quiesce/kernel" not in seen[0]


async def blocks_after_a_turn(blocks: Callable[[], Awaitable[None]]) -> None:
    await anyio.sleep(0)
    await blocks()
