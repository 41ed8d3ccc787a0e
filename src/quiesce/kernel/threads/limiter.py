"""How many threads of one event loop may run at once.

anyio's and trio's `CapacityLimiter` fit as they are. The default is not one of them because importing anyio costs
more than a whole program of quiesce's, and because a slot must go back from a plain callback of the loop: when the
thread has ended, or when nobody waits for it any more.

Rules
- Slots are for work that somebody waits for. A thread that was given up has none: forty that never end would otherwise
  keep every later caller waiting, for ever. (A limit that the caller has set holds until the thread has ended.)
- Work that must not wait for work of another kind has slots of its own, in a room of its own.
- Nobody waits silently: who has waited for more than a moment is logged, with who holds the slots.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from quiesce._safe.printed import logger
from quiesce.kernel.base import Timer, Waiter
from quiesce.kernel.scope import Backend, current_backend

THREADS_A_LOOP = 40  # in each room
A_MOMENT = 1.0  # seconds that a caller waits for a slot before that is logged
NAMED_HOLDERS = 5  # in one line of the log

SYNC_WORK = "sync work"


class Limiter(Protocol):
    """What `to_thread` needs of a limiter."""

    async def acquire_on_behalf_of(self, borrower: Any, /) -> None: ...

    def release_on_behalf_of(self, borrower: Any, /) -> None: ...


class _Place(NamedTuple):
    """One who waits for a slot."""

    borrower: object
    waiter: Waiter
    since: float


class Slots:
    """A number of slots; first come, first served."""

    __slots__ = ("_alarm", "_free", "_holders", "_pause", "_queue", "_room", "_size")

    def __init__(self, size: int, room: str = SYNC_WORK) -> None:
        self._size = self._free = size
        self._room = room
        self._holders: dict[object, float] = {}  # since when; some were woken for it and have not run yet
        self._queue: deque[_Place] = deque()
        self._alarm: Timer | None = None
        self._pause = A_MOMENT

    async def acquire_on_behalf_of(self, borrower: object, /) -> None:
        """Wait for a slot."""
        backend = current_backend()
        if self._free:
            self._free -= 1
            self._holders[borrower] = backend.now()
            return
        place = _Place(borrower, backend.make_waiter(), backend.now())
        self._queue.append(place)
        if self._alarm is None:
            self._look_at(backend, place.since + A_MOMENT)
        try:
            await place.waiter
        except BaseException:
            if borrower in self._holders:  # a slot and a cancel in the same turn: pass the slot on
                self.release_on_behalf_of(borrower)
            else:
                self._queue.remove(place)
                self._forget_alarm()
            raise
        self._holders[borrower] = backend.now()

    def release_on_behalf_of(self, borrower: object, /) -> None:
        """Give a slot back; it goes straight to whoever waits longest. Nothing happens the second time."""
        if self._holders.pop(borrower, None) is None:
            return
        if self._queue:
            place = self._queue.popleft()
            self._holders[place.borrower] = place.since
            place.waiter.wake()
            self._forget_alarm()
        else:
            self._free += 1

    # Who waits, and for whom

    def _look_at(self, backend: Backend, when: float) -> None:
        self._alarm = backend.call_at(when, partial(self._look, backend))

    def _forget_alarm(self) -> None:
        if not self._queue and self._alarm is not None:
            self._alarm.cancel()
            self._alarm, self._pause = None, A_MOMENT

    def _look(self, backend: Backend) -> None:
        now, first = backend.now(), self._queue[0]
        waited = now - first.since
        if waited < A_MOMENT:  # the queue moves
            self._look_at(backend, first.since + A_MOMENT)
            return
        behind = f" and {len(self._queue) - 1} more" if len(self._queue) > 1 else ""
        logger.warning(
            "no thread was free for %r%s for %.1f s: the %d threads that this event loop has for %s are held by %s",
            _name(first.borrower),
            behind,
            waited,
            self._size,
            self._room,
            self._describe_holders(now),
        )
        self._pause *= 2  # said before, and nothing has changed: say it less and less often
        self._look_at(backend, now + self._pause)

    def _describe_holders(self, now: float) -> str:
        names = Counter(map(_name, self._holders))
        first = {_name(holder): holder for holder in reversed(self._holders)}
        told = []
        for name, count in names.most_common(NAMED_HOLDERS):
            how_many = f"{count} threads, the first " if count > 1 else ""
            held_for = now - self._holders[first[name]]
            told.append(f"{name!r} ({how_many}for {held_for:.1f} s, at {_place_of(first[name])})")
        if others := len(names) - len(told):
            told.append(f"{others} others")
        return ", ".join(told)


def _name(borrower: object) -> str:
    return str(getattr(borrower, "name", borrower))


def _place_of(borrower: Any) -> str:
    return borrower._stuck_at() if hasattr(borrower, "_stuck_at") else "an unknown place"


_rooms: WeakKeyDictionary[Backend, dict[str, Slots]] = WeakKeyDictionary()


def slots_for(room: str, backend: Backend) -> Slots:
    """Those that all callers in this event loop share who do this kind of work."""
    rooms = _rooms.setdefault(backend, {})
    slots = rooms.get(room)
    if slots is None:
        slots = rooms[room] = Slots(THREADS_A_LOOP, room)
    return slots
