"""How many threads of one event loop may run at the same time.

anyio's and trio's `CapacityLimiter` fit as they are. The default is not one of them because importing anyio
costs more than a whole program of quiesce's, and because a slot must be released by a plain callback of the
loop: when the thread has ended, or when its caller no longer waits for it.

Rules
- Slots are for work that a caller waits for. A thread that its caller abandoned has none: forty threads that
  never end would otherwise block every later caller forever. (A limit set by the caller holds until the
  thread has ended.)
- Work that must not wait for another kind of work has slots of its own, in a room of its own.
- No caller waits silently: a wait of more than a moment is logged, with the holders of the slots.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from quiesce._safe.printed import logger
from quiesce.kernel.base import Timer, Waiter
from quiesce.kernel.scope import Backend, current_backend

THREADS_PER_LOOP = 40  # in each room
SILENT_WAIT = 1.0  # seconds that a caller waits for a slot before that is logged
NAMED_HOLDERS = 5  # in one line of the log

SYNC_WORK = "sync work"


class Limiter(Protocol):
    """The part of a `CapacityLimiter` that `to_thread` uses."""

    async def acquire_on_behalf_of(self, borrower: Any, /) -> None: ...

    def release_on_behalf_of(self, borrower: Any, /) -> None: ...


class _QueuedCaller(NamedTuple):
    """A caller that waits for a slot."""

    borrower: object
    waiter: Waiter
    since: float


class Slots:
    """A fixed number of slots, handed out in the order of the requests."""

    __slots__ = ("_alarm", "_free", "_holders", "_pause", "_queue", "_room", "_size")

    def __init__(self, size: int, room: str = SYNC_WORK) -> None:
        self._size = self._free = size
        self._room = room
        # Each with the time since when. One that was woken for its slot is a holder before it runs.
        self._holders: dict[object, float] = {}
        self._queue: deque[_QueuedCaller] = deque()
        self._alarm: Timer | None = None
        self._pause = SILENT_WAIT

    async def acquire_on_behalf_of(self, borrower: object, /) -> None:
        """Wait for a slot."""
        backend = current_backend()
        if self._free:
            self._free -= 1
            self._holders[borrower] = backend.now()
            return
        queued = _QueuedCaller(borrower, backend.make_waiter(), backend.now())
        self._queue.append(queued)
        if self._alarm is None:
            self._set_alarm(backend, queued.since + SILENT_WAIT)
        try:
            await queued.waiter
        except BaseException:
            # If it got its slot and a cancel in the same turn of the loop, the slot goes to the next one.
            if borrower in self._holders:
                self.release_on_behalf_of(borrower)
            else:
                self._queue.remove(queued)
                self._clear_alarm()
            raise
        self._holders[borrower] = backend.now()

    def release_on_behalf_of(self, borrower: object, /) -> None:
        """Release a slot: it goes straight to the caller that waits longest. Does nothing the second time."""
        if self._holders.pop(borrower, None) is None:
            return
        if self._queue:
            # Handed over here, not when the caller runs: a new request in between would take it out of turn.
            queued = self._queue.popleft()
            self._holders[queued.borrower] = queued.since
            queued.waiter.wake()
            self._clear_alarm()
        else:
            self._free += 1

    # Logging long waits

    def _set_alarm(self, backend: Backend, when: float) -> None:
        self._alarm = backend.call_at(when, partial(self._log_if_stuck, backend))

    def _clear_alarm(self) -> None:
        if not self._queue and self._alarm is not None:
            self._alarm.cancel()
            self._alarm, self._pause = None, SILENT_WAIT

    def _log_if_stuck(self, backend: Backend) -> None:
        now, first = backend.now(), self._queue[0]
        waited = now - first.since
        if waited < SILENT_WAIT:  # those before it have got their slots: the queue moves
            self._set_alarm(backend, first.since + SILENT_WAIT)
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
        self._pause *= 2  # repeated less and less often while nothing changes
        self._set_alarm(backend, now + self._pause)

    def _describe_holders(self, now: float) -> str:
        names = Counter(map(_name, self._holders))
        first = {_name(holder): holder for holder in reversed(self._holders)}
        parts = []
        for name, count in names.most_common(NAMED_HOLDERS):
            how_many = f"{count} threads, the first " if count > 1 else ""
            seconds = now - self._holders[first[name]]
            parts.append(f"{name!r} ({how_many}for {seconds:.1f} s, at {_place_of(first[name])})")
        if others := len(names) - len(parts):
            parts.append(f"{others} others")
        return ", ".join(parts)


def _name(borrower: object) -> str:
    return str(getattr(borrower, "name", borrower))


def _place_of(borrower: Any) -> str:
    return borrower._stuck_at() if hasattr(borrower, "_stuck_at") else "an unknown place"


_rooms: WeakKeyDictionary[Backend, dict[str, Slots]] = WeakKeyDictionary()


def slots_for(room: str, backend: Backend) -> Slots:
    """The slots that all callers in this event loop share for one kind of work."""
    rooms = _rooms.setdefault(backend, {})
    slots = rooms.get(room)
    if slots is None:
        slots = rooms[room] = Slots(THREADS_PER_LOOP, room)
    return slots
