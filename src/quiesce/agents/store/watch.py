"""A watch on a log: hands over what comes to it, in its order, to one function.

Any number of threads may say that there is more (`look`). One of them at a time reads and hands over; the others
do not wait for it, as they may hold a lock that the function wants. What they have seen is handed over by the one
that is at it already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from quiesce._safe.printed import logger

from .contract import OnEvents
from .events import Event


class Watch:
    """Hands events over to `on_events`; `read(after)` returns those after a number."""

    __slots__ = ("_has_more", "_lock", "_on_events", "_position", "_read", "ended")

    def __init__(self, read: Callable[[int], Sequence[Event]], on_events: OnEvents, after: int) -> None:
        self._read = read
        self._on_events = on_events
        self._position = after
        self._lock = threading.Lock()
        self._has_more = False
        #: Hands over nothing more.
        self.ended = False

    @property
    def position(self) -> int:
        """The number of the last event that was handed over."""
        return self._position

    def look(self) -> None:
        """Hand over what is new. Raises what `read` raises."""
        self._has_more = True
        while self._has_more and not self.ended and self._lock.acquire(blocking=False):
            try:
                self._has_more = False
                events = self._read(self._position)
                if events and not self.ended:
                    self._position += len(events)
                    self._hand_over(events)
            finally:
                self._lock.release()

    def _hand_over(self, events: Sequence[Event]) -> None:
        try:
            self._on_events(events)
        except Exception:
            logger.exception("a watch of a log failed: %r", self._on_events)

    def end(self) -> None:
        """Hand over nothing more."""
        self.ended = True
