"""What `contain` found out about the kernel below it."""

from __future__ import annotations

import asyncio

from quiesce import Scope, contain
from quiesce.kernel.loops.asyncio_child import AsyncioHandle, OwnedTask
from tests.kernel.temperaments import sleeper, turns
from tests.world import asyncio_only


@asyncio_only
async def test_children_inside_a_containment_have_the_kernels_own_class_of_task() -> None:
    """On 3.11 the containment's task factory stands in the way: look at its `quiesce_inner` instead."""
    async with contain(), Scope() as scope:
        handle = scope.spawn(sleeper)
        await turns()
        assert isinstance(handle, AsyncioHandle)
        assert isinstance(handle._task, OwnedTask)
        handle.cancel()


@asyncio_only
async def test_a_body_that_cleans_up_after_somebodys_cancel_is_not_cancelled_again_by_its_scope() -> None:
    """The host's task is not a child of ours here, so nothing but `cancelling()` says that it was cancelled."""
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
