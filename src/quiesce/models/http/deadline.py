"""The deadline of one call to a model.

Invariants
- The deadline applies to each wait for an event, in the task that waits, and never across a `yield`. It does not
  apply in the task that talks to the provider: there it would be a second source of cancels besides a stop, and the
  second cancel would interrupt the clean-up after the first.
- It cancels the wait once. anyio's own cancel scopes cancel repeatedly.
- A cancel from elsewhere is never turned into a timeout, even if both arrive at the same time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from quiesce.kernel.inner import current_backend
from quiesce.models.words import ModelTimeoutError

T = TypeVar("T")


class CallDeadline:
    """A deadline that begins now and lasts `seconds`; with None, it never passes."""

    def __init__(self, seconds: float | None, model: str) -> None:
        self._seconds = seconds
        self._model = model
        self._backend = current_backend()
        self._at = math.inf if seconds is None else self._backend.now() + seconds

    def remaining(self) -> float:
        """Return the seconds until the deadline, infinite if there is none."""
        return self._at - self._backend.now()

    async def wait_for(self, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Return `await fn(*args)`; raise `ModelTimeoutError` if the deadline passes first."""
        if self._seconds is None:
            return await fn(*args)
        # The backends' own timeouts, because anyio's would cancel repeatedly on asyncio.
        if self._backend.name == "trio":
            return await self._wait_on_trio(fn, args)
        timer = asyncio.timeout_at(self._at)
        try:
            async with timer:
                return await fn(*args)
        except TimeoutError as error:
            # `fn` may raise a TimeoutError of its own.
            if not timer.expired():
                raise
            raise self._timeout_error() from error

    async def _wait_on_trio(self, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
        import trio

        with trio.CancelScope(deadline=self._at):
            return await fn(*args)
        raise self._timeout_error()

    def _timeout_error(self) -> ModelTimeoutError:
        assert self._seconds is not None
        return took_too_long(self._model, self._seconds)


def took_too_long(model: str, seconds: float) -> ModelTimeoutError:
    """Return the error for a call that was not complete within its timeout."""
    return ModelTimeoutError(
        f"model {model!r} took longer than its timeout of {seconds:g} s: "
        "increase it with ModelSettings(timeout=...)",
        model=model,
    )
