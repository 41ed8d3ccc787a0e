"""An SDK's async context manager that any task may close, in any order: an owner task enters and exits it.

- **A function that returns one** is replaced by `owned(function)`: same arguments, and what it returns is
  entered as before, and has `close()` and `report`.
- **A class that is one** is replaced by a subclass of `OwnedClass` and of it. Its other methods are called in
  the tasks of its users.

How the body of a block ended is told to the context manager, so that errors are raised as the SDK raises
them: some wrap the body's error in an `ExceptionGroup`. What an SDK does not do here: if a connection fails
by itself, the task that has opened it is not cancelled, because it may long be doing something else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from quiesce import Grace, Reason, Scope, StopReport
from quiesce.kernel.inner import Holding, start_holding, users_site

from .handing import replaces

P = ParamSpec("P")
T = TypeVar("T")


class _Closed(Generic[T]):
    """What both have: `close()` and `report`."""

    _holding: Holding[T] | None = None

    @property
    def report(self) -> StopReport | None:
        """What its end has stopped, and what is left; None as long as it is open."""
        return self._holding.report if self._holding is not None else None

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Exit it, wait until everything in it has ended, and report. From any task, any number of times.

        Bounded by `deadline` seconds, or its `Grace`. Raises the error that has ended it, if there was one. If
        you are cancelled meanwhile, the exit goes on and your cancellation is raised after it; the report is
        then in `report`.
        """
        if self._holding is None:  # it was never entered
            return await (await Scope.open(type(self).__name__)).close(reason=reason)
        return await self._holding.close(deadline=deadline, grace=grace, reason=reason)

    async def _enter(self, cm: AbstractAsyncContextManager[T], name: str) -> T:
        if self._holding is not None:
            raise RuntimeError(f"{name} was entered before; it is used once: make a new one")
        self._holding = holding = start_holding(cm, name, users_site())
        await holding.wait_until_entered()
        return holding.value

    async def _leave(self, error: BaseException | None) -> bool:
        assert self._holding is not None
        return await self._holding.leave(error)


class OwnedContext(_Closed[T], AbstractAsyncContextManager[T]):
    """What a function that `owned` has replaced returns."""

    def __init__(self, cm: AbstractAsyncContextManager[T], name: str) -> None:
        self._cm = cm
        self._name = name

    async def __aenter__(self) -> T:
        return await self._enter(self._cm, self._name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self._leave(error)


def owned(theirs: Callable[P, AbstractAsyncContextManager[T]]) -> Callable[P, OwnedContext[T]]:
    """An SDK's function that returns an async context manager, so that any task may close that."""

    @replaces(theirs)
    @wraps(theirs)
    def ours(*args: P.args, **kwargs: P.kwargs) -> OwnedContext[T]:
        return OwnedContext(theirs(*args, **kwargs), theirs.__name__)

    return ours


class OwnedClass(_Closed[Any]):
    """Comes before a class of an SDK that is an async context manager, and has it entered by an owner task."""

    async def __aenter__(self) -> Self:
        theirs: Any = super()
        await self._enter(_Pair(theirs.__aenter__, theirs.__aexit__), type(self).__name__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self._leave(error)


class _Pair:
    """Two functions as a context manager."""

    def __init__(self, enter: Callable[[], Awaitable[Any]], leave: Callable[..., Awaitable[Any]]) -> None:
        self._enter = enter
        self._leave = leave

    async def __aenter__(self) -> Any:
        return await self._enter()

    async def __aexit__(self, *error: object) -> Any:
        return await self._leave(*error)
