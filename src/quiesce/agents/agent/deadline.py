"""Deadlines that cancel once, and never take somebody else's cancel for their own.

anyio's own would cancel again and again, on every turn of the loop, and so cut what cleans up inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from quiesce import Handle
from quiesce.kernel.inner import current_backend
from quiesce.models.inner import took_too_long


class Deadline:
    """Whether the time was over before what is inside had ended."""

    passed = False


@asynccontextmanager
async def move_on_after(seconds: float) -> AsyncIterator[Deadline]:
    """Cancel what is inside when the time is over, and go on behind the block."""
    deadline = Deadline()
    if current_backend().name == "trio":
        import trio

        with trio.move_on_after(seconds) as scope:
            yield deadline
        deadline.passed = scope.cancelled_caught
        return
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            yield deadline
    except TimeoutError:
        if not timer.expired():
            raise
        deadline.passed = True


_ENDLESS: AbstractAsyncContextManager[None] = nullcontext()


def model_deadline(seconds: float | None, model: str) -> AbstractAsyncContextManager[None]:
    """`ModelTimeoutError` if what is inside takes longer than `seconds`; None for ever."""
    return _ENDLESS if seconds is None else _model_deadline(seconds, model)


@asynccontextmanager
async def _model_deadline(seconds: float, model: str) -> AsyncIterator[None]:
    async with move_on_after(seconds) as deadline:
        yield
    if deadline.passed:
        raise took_too_long(model, seconds)


async def ends_within(handle: Handle, seconds: float) -> bool:
    """Wait for a child, but not for longer than that. The child is not touched."""
    async with move_on_after(seconds):
        await handle.wait()
    return handle.done
