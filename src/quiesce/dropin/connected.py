"""An SDK's pair of functions, such as `connect` and `cleanup`, that any task may call, in any order.

What they open and close mostly holds task groups, and those must be exited by the task that entered them. So
an owner task calls both (`own`), and around them is a containment: when `close()` returns, the tasks and
processes that the connection has started have ended, or are named in the report.

A class of ours that replaces one of an SDK has the SDK's own functions as the pair, and offers `close()`. Its
other methods are called in the tasks of its users, and may start tasks too: those go through `call`.

`Opened` is the same for an async context manager of an SDK, which is told how the body of its block ended.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from quiesce import Grace, Reason, Scope, StopReport
from quiesce.kernel.inner import (
    Holding,
    OpenContainment,
    look_at_processes,
    start_holding,
    stop_orphans,
    stop_processes,
    users_site,
)

from .contained import note_leftovers, reason_of_end

T = TypeVar("T")
R = TypeVar("R")


class Opened(Generic[T]):
    """A context manager that an owner task enters, and exits when it is closed; it is used once."""

    def __init__(
        self,
        cm: AbstractAsyncContextManager[T],
        *,
        name: str,
        keep: Callable[[Task[Any]], bool] | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        site = users_site()
        self._hold = partial(start_holding, cm, name, site, grace=grace)
        self._make = partial(OpenContainment, name, site, keep=keep, grace=grace, scope=scope)
        self._containment: OpenContainment | None = None
        self._held: Holding[T] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and nobody has closed it."""
        held, containment = self._held, self._containment
        if held is None or containment is None:
            return False
        return held.entered and not (held.closed or containment.closed)

    @property
    def report(self) -> StopReport | None:
        """What its end has stopped, and what is left; None as long as it is open."""
        return self._containment.report if self._containment is not None else None

    async def open(self) -> T:
        """Enter it. If this raises, or you are cancelled, nothing is left half open."""
        self._containment = containment = self._make()
        try:
            # Owned inside, and not the other way round: then the guard knows the processes that `connect` has started.
            self._held = held = containment.run(self._hold)
            await held.wait_until_entered()
            containment.stop_with(self._disconnect_first)
            return held.value
        except BaseException as error:
            self._held = None
            note_leftovers(error, await containment.close(reason=Reason("error", "it was not opened")))
            raise

    def is_inside(self) -> bool:
        """Whether the caller belongs to what it has started, and so cannot wait for its end."""
        return self._containment is not None and self._containment.is_inside()

    def look_at_processes(self) -> None:
        """Find its processes and their descendants; stop those whose parent of ours has exited by itself."""
        if self._held is not None:
            look_at_processes(self._held)
            stop_orphans(self._held)

    def stop_processes(self) -> None:
        """Stop its processes now, in a stop that has begun: its exit need not end them first."""
        if self._held is not None:
            stop_processes(self._held)

    def _disconnect_first(self) -> list[Task[Any]]:
        """For a stop that is not a `close()`: of the scope that owns the connection."""
        held = self._held
        return [] if held is None or held.closed else [asyncio.create_task(held.close())]

    async def call(self, fn: Callable[..., Coroutine[Any, Any, R]], *args: Any, **kwargs: Any) -> R:
        """Await `fn(*args)` in the caller's task; but tasks that it starts belong to the connection."""
        if self._containment is None or not self.is_open:
            return await fn(*args, **kwargs)
        return await _InContext(self._containment.context(), fn(*args, **kwargs))

    async def close(
        self, *, deadline: float | None = None, grace: Grace | None = None, reason: Reason | str | None = None
    ) -> StopReport:
        """Exit it, wait until everything of it has ended, and report. From any task, any number of times.

        While it is being opened, this stops that.
        """
        assert self._containment is not None, "it was not opened"
        try:
            if self._held is not None and not self.is_inside():
                await self._held.close(deadline=deadline, grace=grace, reason=reason)
        finally:  # also if we are cancelled: that is raised when both are done
            report = await self._containment.close(deadline=deadline, grace=grace, reason=reason)
        return report

    async def leave(self, error: BaseException | None) -> bool:
        """Close it at the end of a block whose body has raised `error`; returns whether it suppresses that."""
        assert self._held is not None, "it was not opened"
        assert self._containment is not None
        try:
            return await self._held.leave(error)
        finally:
            report = await self._containment.close(reason=reason_of_end(error))
            if error is not None:
                note_leftovers(error, report)


class Connection(Opened[T]):
    """What `connect()` opens, in an owner task, until `close()` has it closed there by `disconnect()`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[T]],
        disconnect: Callable[[], Awaitable[object]],
        *,
        name: str,
        keep: Callable[[Task[Any]], bool] | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        super().__init__(_Pair(connect, disconnect), name=name, keep=keep, grace=grace, scope=scope)


class _Pair(AbstractAsyncContextManager[T]):
    """The two functions as a context manager."""

    def __init__(
        self, connect: Callable[[], Awaitable[T]], disconnect: Callable[[], Awaitable[object]]
    ) -> None:
        self._connect = connect
        self._disconnect = disconnect

    async def __aenter__(self) -> T:
        return await self._connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        await self._disconnect()
        # The owner was interrupted: by a task group inside that has failed, or at the end of the event loop. An
        # SDK says what has failed to those who use it; to close it is not an error.
        return error is not None


class _InContext(Generic[R]):
    """Awaits a coroutine in the current task, and each of its steps in another context."""

    def __init__(self, context: Context, coro: Coroutine[Any, Any, R]) -> None:
        self._context = context
        self._coro = coro

    def __await__(self) -> Generator[Any, Any, R]:
        step, argument = self._coro.send, None
        while True:
            try:
                awaited = self._context.run(step, argument)
            except StopIteration as end:
                result: R = end.value
                return result
            try:
                step, argument = self._coro.send, (yield awaited)
            except GeneratorExit:
                self._context.run(self._coro.close)
                raise
            except BaseException as error:
                step, argument = self._coro.throw, error
