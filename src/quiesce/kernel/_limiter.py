"""How many threads of one event loop may run at once.

anyio's and trio's `CapacityLimiter` fit as they are. The default is not one of them because importing anyio costs
more than a whole program of quiesce's, and because a slot must go back when the thread has really ended, from a
plain callback of the loop.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ._backend import Backend, Waiter, current_backend

THREADS_A_LOOP = 40


class Limiter(Protocol):
    """What `to_thread` needs of a limiter."""

    async def acquire_on_behalf_of(self, borrower: Any, /) -> None: ...

    def release_on_behalf_of(self, borrower: Any, /) -> None: ...


class Slots:
    """A number of slots; first come, first served."""

    __slots__ = ("_free", "_granted", "_queue")

    def __init__(self, free: int) -> None:
        self._free = free
        self._queue: deque[tuple[object, Waiter]] = deque()
        self._granted: set[object] = set()  # woken with a slot, and not yet run

    async def acquire_on_behalf_of(self, borrower: object, /) -> None:
        """Wait for a slot."""
        if self._free:
            self._free -= 1
            return
        waiter = current_backend().make_waiter()
        place = (borrower, waiter)
        self._queue.append(place)
        try:
            await waiter
        except BaseException:
            if borrower in self._granted:  # a slot and a cancel in the same turn: pass the slot on
                self._granted.discard(borrower)
                self.release_on_behalf_of(borrower)
            else:
                self._queue.remove(place)
            raise
        self._granted.discard(borrower)

    def release_on_behalf_of(self, borrower: object, /) -> None:
        """Give a slot back; it goes straight to whoever waits longest."""
        if self._queue:
            next_borrower, waiter = self._queue.popleft()
            self._granted.add(next_borrower)
            waiter.wake()
        else:
            self._free += 1


_slots: WeakKeyDictionary[Backend, Slots] = WeakKeyDictionary()


def default_limiter(backend: Backend) -> Slots:
    """The one that all callers in this event loop share."""
    slots = _slots.get(backend)
    if slots is None:
        slots = _slots[backend] = Slots(THREADS_A_LOOP)
    return slots
