"""Other people's tasks: started, cancelled and asked about in the native way of each world."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from tests.kernel.temperaments import on_trio


class Person(ABC):
    """A task that nobody owns."""

    cancels = 0
    error: BaseException | None = None

    @abstractmethod
    def cancel(self) -> None: ...

    @abstractmethod
    async def wait(self) -> None:
        """Wait until it is done; raises what it raised, unless that is its cancellation."""

    @property
    @abstractmethod
    def cancelled(self) -> bool: ...


class AsyncioPerson(Person):
    def __init__(self, fn: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await fn()

        self.task = asyncio.create_task(run())

    def cancel(self) -> None:
        self.task.cancel()

    async def wait(self) -> None:
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()

    @property
    def cancelled(self) -> bool:
        return self.task.cancelled()

    @property
    def cancels(self) -> int:  # type: ignore[override]
        return self.task.cancelling()


class TrioPerson(Person):
    def __init__(self, fn: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
        self._fn = fn
        self._scope = trio.CancelScope()
        self._done = trio.Event()
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._fn()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._done.set()

    def cancel(self) -> None:
        self._scope.cancel()

    async def wait(self) -> None:
        await self._done.wait()
        if self.error is not None:
            raise self.error

    @property
    def cancelled(self) -> bool:
        return self._scope.cancelled_caught


@asynccontextmanager
async def people() -> AsyncIterator[Callable[[Callable[[], Awaitable[None]]], Person]]:
    """A function that starts people; all have to be done when the block ends."""
    if on_trio():
        async with trio.open_nursery() as nursery:
            yield lambda fn: TrioPerson(fn, nursery)
    else:
        started: list[AsyncioPerson] = []

        def start(fn: Callable[[], Awaitable[None]]) -> Person:
            started.append(AsyncioPerson(fn))
            return started[-1]

        yield start
        assert all(person.task.done() for person in started)
