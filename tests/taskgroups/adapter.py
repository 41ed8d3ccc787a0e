"""`asyncio.TaskGroup` as a small adapter over `Scope`: enough of it for CPython's own tests.

It changes how things are called, and the words of errors that `Scope` raises; it adds no behaviour. What a scope does otherwise than a
task group is to be seen.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Generator
from contextvars import Context
from types import TracebackType
from typing import Any, Self

from quiesce import Handle, Scope

# What the errors of a scope say, and what those tests look for instead.
_WORDS = {
    "was opened before": "has already been entered",
    "is not open yet": "has not been entered",
    "it is settled": "is finished",
    "it is stopping": "is shutting down",
    "a scope needs a task around it": "cannot determine the parent task",
}


def _in_their_words(error: RuntimeError) -> RuntimeError:
    for ours, theirs in _WORDS.items():
        if ours in str(error):
            return RuntimeError(theirs)
    return error


class TaskGroup:
    """A scope, called as a task group is."""

    def __init__(self) -> None:
        self._scope = Scope()

    async def __aenter__(self) -> Self:
        try:
            await self._scope.__aenter__()
        except RuntimeError as error:
            raise _in_their_words(error) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return await self._scope.__aexit__(kind, error, traceback)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> Task:
        """A scope takes a function that returns something to await."""
        try:
            return Task(self._scope.spawn(lambda: coro, name=name, context=context))
        except RuntimeError as error:
            if sys.version_info >= (3, 13):  # older ones leave that to the caller
                coro.close()
            raise _in_their_words(error) from error

    @property
    def _tasks(self) -> tuple[Handle, ...]:
        return self._scope.children


class Task:
    """A handle, called as a task is."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from self._handle.wait().__await__()
        return self.result()

    def cancel(self) -> None:
        self._handle.cancel()

    def cancelled(self) -> bool:
        return self._handle.state == "cancelled"

    def get_name(self) -> str:
        return self._handle.name

    def result(self) -> Any:
        return self._handle.result()
