"""Tasks that wait until something has changed.

A queue is what trio calls a parking lot: tasks wait in it, and code that changes the state they wait for
wakes them. It has no lock and no state of its own, and needs none: everything here happens in the thread of
one event loop, so nothing can change between checking a condition and waiting.

Rules
-----
- A task that is cancelled while it waits has left the queue when its cancellation is raised.
- A task waits for one wake-up and then checks its condition again; `wait_until` does that. Needless wake-ups
  are allowed, lost ones are not. asyncio can wake and cancel a task in the same turn; the wake-up then goes
  to the next task.
- Tasks are woken in the order in which they came. Those that come while others are being woken wait for the
  next wake-up.

One `anyio.Event` per change would do as well. It would cost a checkpoint and an object per wait, and tasks
would still have to check their condition again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .event_loop import current_event_loop

if TYPE_CHECKING:
    from .event_loop import Waiter


class WaitQueue(list["Waiter"]):
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

    # It is a list instead of having one: every scope has a queue and checks again and again whether a task
    # waits in it, and would pay for each method that only passes the question on. Not a dict, because there
    # are rarely more than two tasks in it, and searching those is quicker than hashing.
    __slots__ = ()

    async def wait(self, *, first: bool = False) -> None:
        """Wait for one wake-up, then check your condition again. With `first`, wait ahead of the others."""
        waiter = current_event_loop().make_waiter()
        self.insert(0 if first else len(self), waiter)
        try:
            await waiter
        except BaseException:
            if not self.discard(waiter):
                self.wake_one()  # this task was woken and cannot use it: pass the wake-up on
            raise

    async def wait_until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true. It is called before the first wait and after each wake-up."""
        while not ready():
            await self.wait()

    def wake_all(self) -> None:
        """Wake all tasks that wait now."""
        if len(self) == 1:  # nearly always, and in every stop
            self.pop().wake()
            return
        # Copied and cleared before the first is woken: whatever a wake-up runs may wait here again, and must
        # not be woken for the same change.
        waiters = self[:]
        self.clear()
        for waiter in waiters:
            waiter.wake()

    def wake_one(self) -> bool:
        """Wake the task that has waited longest. False if none waits."""
        if not self:
            return False
        self.pop(0).wake()
        return True

    # For code that makes and awaits its own waiter

    add = list.append  # `wake_all` and `wake_one` then wake this waiter too

    def discard(self, waiter: Waiter) -> bool:
        """Remove `waiter` from the queue. False if it was woken already."""
        try:
            self.remove(waiter)
        except ValueError:
            return False
        return True
