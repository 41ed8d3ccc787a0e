"""Being told that a task has ended, however it did.

A task on asyncio that somebody cancels before its first step never runs: none of its own `finally` does either. Its handle knows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quiesce import Handle


class Ending:
    """Waits, as far as the handle knows."""

    __slots__ = ("then",)

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then

    def wake(self) -> None:
        """The task has ended."""
        self.then()

    async def wait(self) -> None:
        """Nobody does."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()


def when_ended(handle: Handle, then: Callable[[], object]) -> None:
    """Call `then()` when it has; at once if it has already (eager tasks)."""
    if handle.done:
        then()
    elif handle._waiters is None:
        handle._waiters = [Ending(then)]
    else:
        handle._waiters.append(Ending(then))
