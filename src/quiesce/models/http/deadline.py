"""The deadline of one call of a model.

Invariants
- It is held around each wait for an event, never across a `yield`, by the task that waits. The task that talks to the provider is not
  the one: the deadline's cancel and a stop's would be two there, and the second would cut the clean-up after the first.
- It cancels what it holds once. anyio's own scopes cancel again and again.
- Somebody else's cancel stays what it is, also when both come at once.
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
    """So many seconds from now on; None for ever."""

    def __init__(self, seconds: float | None, model: str) -> None:
        self._seconds = seconds
        self._model = model
        self._backend = current_backend()
        self._at = math.inf if seconds is None else self._backend.now() + seconds

    def left(self) -> float:
        """Seconds until it is over."""
        return self._at - self._backend.now()

    async def hold(self, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Wait for `fn(*args)`, but not longer than that: `ModelTimeoutError`."""
        if self._seconds is None:
            return await fn(*args)
        if self._backend.name == "trio":
            return await self._hold_on_trio(fn, args)
        timer = asyncio.timeout_at(self._at)
        try:
            async with timer:
                return await fn(*args)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise self._passed() from error

    async def _hold_on_trio(self, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
        import trio

        with trio.CancelScope(deadline=self._at):
            return await fn(*args)
        raise self._passed()

    def _passed(self) -> ModelTimeoutError:
        assert self._seconds is not None
        return took_too_long(self._model, self._seconds)


def took_too_long(model: str, seconds: float) -> ModelTimeoutError:
    """What is raised when the time of a call is over."""
    return ModelTimeoutError(
        f"model {model!r} took longer than its timeout of {seconds:g} s: "
        "give it more with ModelSettings(timeout=...)",
        model=model,
    )
