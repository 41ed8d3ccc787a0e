"""The stops that come from inside the program, and what the stopped work made of them.

Each returns the faults it saw, in words: an empty list is how it should be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from .ways import Close, Way

LIMIT = 15.0  # seconds for a stop, until it counts as a hang
START = 20.0  # seconds for the work to get under way
GAP = 0.25  # seconds between one cancel and the next: within the clean-up of the first
TIMEOUT = 0.5


class NotRun(Exception):
    """The work ended before it could be stopped: that says nothing about the stop."""


async def perform(way: Way, how: str, stop: Stop) -> list[str]:
    """Stop `way` as `how` says."""
    if how.startswith("cancel"):
        return await _cancel(way, stop, int(how.partition("-")[2] or 1))
    stops: dict[str, Callable[[Way, Stop], Awaitable[list[str]]]] = {
        "timeout": _time_out,
        "break": _break,
        "elsewhere": _close_elsewhere,
        "order": _close_in_the_wrong_order,
    }
    return await stops[how](way, stop)


class Stop:
    """When it began, which is some time after the work has; and what reports that it returned name as left."""

    def __init__(self) -> None:
        self._began: float | None = None
        self.named: list[str] = []

    def begin(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    async def close(self, close: Close) -> None:
        """Close something; what closes may return a report."""
        report = await close()
        self.named += [f"{left.kind} {left.name!r}" for left in getattr(report, "left", ())]


async def _cancel(way: Way, stop: Stop, times: int) -> list[str]:
    task = await _start(way)
    stop.begin()
    for _ in range(times):
        task.cancel()
        await asyncio.wait({task}, timeout=GAP)
    if not await _ends(task):
        return ["hang"]
    if task.cancelled():
        return []
    error = task.exception()
    return ["swallowed the cancel"] if error is None else [f"raised {_brief(error)}"]


async def _time_out(way: Way, stop: Stop) -> list[str]:
    async def limited(ready: Callable[[], object]) -> None:
        begun = asyncio.Event()

        def begin() -> None:
            begun.set()
            ready()

        async with asyncio.timeout(None) as limit:
            waiting = asyncio.create_task(begun.wait())
            waiting.add_done_callback(lambda _: limit.reschedule(asyncio.get_running_loop().time() + TIMEOUT))
            await way.use(begin)

    task = await _start(Way(limited))
    asyncio.get_running_loop().call_later(TIMEOUT, stop.begin)
    if not await _ends(task, LIMIT + TIMEOUT):
        return ["hang"]
    error = None if task.cancelled() else task.exception()
    if isinstance(error, TimeoutError):
        return []
    return [
        "raised CancelledError"
        if task.cancelled()
        else "swallowed the timeout"
        if error is None
        else f"raised {_brief(error)}"
    ]


async def _break(way: Way, stop: Stop) -> list[str]:
    assert way.break_off is not None
    return await _must_end(way.break_off(stop.begin))


async def _close_elsewhere(way: Way, stop: Stop) -> list[str]:
    """Opened in one task, which goes on with something else; closed in another."""
    assert way.open is not None
    opened, done = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def innocent() -> None:
        opened.set_result(await open_it())
        await done.wait()

    open_it = way.open
    opener = asyncio.create_task(innocent())
    await asyncio.wait({opener, opened}, timeout=START, return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        opener.cancel()
        await asyncio.wait({opener}, timeout=1)
        raise NotRun(_why(opener))
    close = opened.result()

    async def closer() -> None:
        stop.begin()
        await stop.close(close)

    faults = await _must_end(closer())
    await asyncio.sleep(0)
    if opener.done():
        faults.append("cancelled an innocent task")
    done.set()
    if not await _ends(opener, 1):
        faults.append("hang in the opener")
    return faults


async def _close_in_the_wrong_order(way: Way, stop: Stop) -> list[str]:
    assert way.open is not None
    open_it = way.open

    async def first_in_first_out() -> None:
        first, second = await open_it(), await open_it()
        stop.begin()
        try:
            await stop.close(first)
        finally:
            await stop.close(second)

    return await _must_end(first_in_first_out())


async def _must_end(coro: Coroutine[Any, Any, object]) -> list[str]:
    task = asyncio.create_task(coro)
    if not await _ends(task, START + LIMIT):
        return ["hang"]
    if task.cancelled():
        return ["raised CancelledError"]
    error = task.exception()
    return [] if error is None else [f"raised {_brief(error)}"]


async def _start(way: Way) -> asyncio.Task[Any]:
    begun = asyncio.Event()
    task: asyncio.Task[Any] = asyncio.create_task(way.use(begun.set))
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({task, waiting}, timeout=START, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.wait({waiting})
    if not begun.is_set():
        raise NotRun(_why(task))
    return task


def _why(task: asyncio.Task[Any]) -> str:
    if not task.done():
        return f"not under way after {START:.0f} s"
    if task.cancelled():
        return "it was cancelled before it was under way"
    error = task.exception()
    return "it ended before it was under way" if error is None else f"it failed: {error!r}"


async def _ends(task: asyncio.Task[Any], limit: float = LIMIT) -> bool:
    await asyncio.wait({task}, timeout=limit)
    return task.done()


def _brief(error: BaseException) -> str:
    """Its class; of a group, the classes inside."""
    if isinstance(error, BaseExceptionGroup):
        inside = sorted({_brief(one) for one in error.exceptions})
        return f"{type(error).__name__}({', '.join(inside)})"
    text = str(error)
    if "cancel scope" in text and "different task" in text:
        return f"{type(error).__name__}: cancel scope in a different task"
    return type(error).__name__
