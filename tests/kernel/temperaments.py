"""Children of several temperaments, and other people that scopes have to live with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio

virtual_worlds = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")
virtual_asyncio = pytest.mark.worlds("asyncio", "asyncio-eager")


def on_trio() -> bool:
    return trio.lowlevel.in_trio_run()


def cancellation() -> type[BaseException]:
    return anyio.get_cancelled_exc_class()


async def tidy_up(seconds: float) -> None:
    """An await in a clean-up as each world's rules want it: bare on asyncio, under a shield on trio."""
    if on_trio():
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


async def forever() -> None:
    """Wait for what never happens; without a timer, which an event loop might keep when it is cancelled."""
    await anyio.Event().wait()


async def sleeper(log: list[str] | None = None, name: str = "sleeper", tidy: float = 0.0) -> None:
    """Sleeps for ever; says when its clean-up begins, and when it came to its end."""
    try:
        await forever()
    finally:
        if log is not None:
            log.append(f"{name} stops")
        if tidy:
            await tidy_up(tidy)
        if log is not None:
            log.append(f"{name} is tidy")


async def quick(value: Any = None) -> Any:
    return value


async def fails(error: BaseException, after: float = 0.0) -> None:
    if after:
        await anyio.sleep(after)
    raise error


async def fails_in_clean_up(error: BaseException, tidy: float = 0.0) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        if tidy:
            await tidy_up(tidy)
        raise error


async def swallows(seconds: float, log: list[str] | None = None) -> None:
    """Ignores every cancel until `seconds` have passed."""
    end = anyio.current_time() + seconds
    while (left := end - anyio.current_time()) > 1e-9:
        try:
            await tidy_up(left)
        except asyncio.CancelledError:
            if log is not None:
                log.append("swallowed")


class Stubborn:
    """A child that ignores every cancel until it is let go."""

    def __init__(self) -> None:
        self.cancels: list[float] = []  # when each came; trio, for which there is one for good, tells none
        self.gone = False
        self._let_go = anyio.Event()

    async def __call__(self) -> None:
        while not self._let_go.is_set():
            try:
                with anyio.CancelScope(shield=on_trio()):
                    await self._let_go.wait()
            except asyncio.CancelledError:
                self.cancels.append(anyio.current_time())
        self.gone = True

    def let_go(self) -> None:
        self._let_go.set()


class Bystander:
    """A task of somebody else's, that nobody may cancel."""

    disturbed: BaseException | None = None
    count = 0

    def __init__(self, pace: float) -> None:
        self.pace = pace

    async def live(self) -> None:
        try:
            while True:
                self.count += 1
                await anyio.sleep(self.pace)
        except BaseException as error:
            self.disturbed = error
            raise


@asynccontextmanager
async def in_the_background(
    *fns: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Run these beside the block as other people's tasks, and end them with it."""
    async with anyio.create_task_group() as group:
        for fn in fns:
            group.start_soon(fn)
        yield group
        group.cancel_scope.cancel()


@asynccontextmanager
async def an_innocent_bystander(pace: float = 0.01) -> AsyncIterator[Bystander]:
    """Somebody else's task lives beside the block; it must not be disturbed before the end of it."""
    bystander = Bystander(pace)
    async with in_the_background(bystander.live):
        await anyio.sleep(2 * pace)
        yield bystander
        before = bystander.count
        await anyio.sleep(3 * pace)
        with anyio.fail_after(10):
            while bystander.count <= before:  # on a machine that has stalled, its turn may come after ours
                await anyio.sleep(pace)
        assert bystander.disturbed is None


async def turns(count: int = 3) -> None:
    """Let everybody else run a few times."""
    for _ in range(count):
        await anyio.sleep(0)


async def cancel_soon(scope: anyio.CancelScope) -> None:
    """Cancel somebody else's scope in half a second, come what may."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(0.5)
        scope.cancel()
