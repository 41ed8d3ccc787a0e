"""Tasks that wait until something has changed.

A queue is what trio calls a parking lot: it holds tasks, and whoever changes the state that they wait for wakes them. It has no
lock and no state of its own. It needs none: everything here happens in the thread of one event loop, so nothing can change between
the look at a condition and the wait.

Rules
-----
- A task that is cancelled while it waits is off the queue when its cancellation goes on.
- A task waits for one wake-up, and looks again: `wait_until` does that. Wake-ups in vain are allowed, lost ones are not. asyncio can
  wake a task and cancel it in the same turn; the wake-up then goes to the next task.
- Tasks are woken in the order in which they came. Those who come meanwhile wait for the next wake-up.

An `anyio.Event` per change would do as well. It would cost a checkpoint and an object for each wait, and the state would have to be
looked at again all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .event_loop import current_event_loop

if TYPE_CHECKING:
    from .event_loop import Waiter


class WaitQueue:
    """Tasks of one event loop that wait until something has changed.

    ```python
    self._changed = WaitQueue()
    ...
    await self._changed.wait_until(lambda: self._items or self._closed)
    ...
    self._items.append(item)
    self._changed.wake_all()
    ```
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # A list: there are rarely more than two, and looking through those is quicker than hashing.
        self._waiters: list[Waiter] = []

    def __len__(self) -> int:
        """How many tasks wait."""
        return len(self._waiters)

    async def wait(self, *, first: bool = False) -> None:
        """Wait for one wake-up; with `first`, before the tasks that wait already. Look again when it returns."""
        waiter = current_event_loop().make_waiter()
        self._waiters.insert(0 if first else len(self._waiters), waiter)
        try:
            await waiter
        except BaseException:
            if not self.discard(waiter):
                self.wake_one()  # this task was woken, and will make nothing of it
            raise

    async def wait_until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true. It is asked before the first wait, and after each wake-up."""
        while not ready():
            await self.wait()

    def wake_all(self) -> None:
        """Let all who wait look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()

    def wake_one(self) -> bool:
        """Let the one who has waited longest look again; False if nobody waits."""
        if not self._waiters:
            return False
        self._waiters.pop(0).wake()
        return True

    # For code that awaits by its own means

    def add(self, waiter: Waiter) -> None:
        """Have `waiter` woken with the others."""
        self._waiters.append(waiter)

    def discard(self, waiter: Waiter) -> bool:
        """Take `waiter` off the queue; False if it was woken already."""
        try:
            self._waiters.remove(waiter)
        except ValueError:
            return False
        return True
