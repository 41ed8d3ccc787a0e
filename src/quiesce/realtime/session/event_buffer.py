"""Events that wait for whoever reads them.

Invariants
- `add` never waits: it is called from callbacks, from tasks that are being cancelled, from clean-ups. Whoever may wait, waits for room afterwards
  (`wait_for_room`), so that the buffer stays bounded. Only the last that comes of a lost connection waits for nobody (`let_in`).
- An event is taken by one reader. A reader that is cancelled while it waits loses nothing.
- After `end`, what waits can still be read; then every reader is at its end, or gets the error that ended it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from quiesce.kernel.inner import WaitQueue
from quiesce.realtime.words import (
    RealtimeAudio,
    RealtimeHistoryUpdated,
    RealtimeModelAudioEvent,
    RealtimeModelRawServerEvent,
    RealtimeRawModelEvent,
)

if TYPE_CHECKING:
    from quiesce.kernel.inner import Backend
    from quiesce.realtime.words import RealtimeLimits, RealtimeSessionEvent


class EventBuffer:
    """A bounded queue of a session's events."""

    def __init__(self, backend: Backend, limits: RealtimeLimits) -> None:
        self._backend = backend
        self._most_events = limits.events
        self._most_bytes = limits.bytes
        self._events: deque[RealtimeSessionEvent] = deque()
        self._bytes = 0
        self._readers = WaitQueue()
        self._writers = WaitQueue()
        self._is_bounded = True
        self.ended = False
        self.error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: RealtimeSessionEvent) -> None:
        """One more; nothing happens after the end."""
        if self.ended:
            return
        self._events.append(event)
        self._bytes += _size(event)
        self._readers.wake_one()

    @property
    def is_full(self) -> bool:
        """Whether as much waits as may."""
        return self._is_bounded and (
            len(self._events) >= self._most_events or self._bytes >= self._most_bytes
        )

    def let_in(self) -> None:
        """There is room for what comes now: it is the last."""
        self._is_bounded = False
        self._make_room()

    def bound(self) -> None:
        """It was not the last: there is more to come."""
        self._is_bounded = True

    async def wait_for_room(self) -> None:
        """Wait until less waits, or nothing is taken any more."""
        await self._writers.wait_until(lambda: self.ended or not self.is_full)

    async def take(self) -> RealtimeSessionEvent | None:
        """The next event; None at the end. Raises what ended it, if it was an error."""
        await self._readers.wait_until(lambda: self._events or self.ended)
        if not self._events:
            if self.error is not None:
                raise self.error
            return None
        event = self._events.popleft()
        self._bytes -= _size(event)
        self._make_room()
        return event

    def _make_room(self) -> None:
        if not self.is_full:
            self._writers.wake_all()

    def drop_audio(self, is_meant: Callable[[RealtimeModelAudioEvent], bool]) -> None:
        """Forget audio that must not be played."""
        kept: deque[RealtimeSessionEvent] = deque()
        for event in self._events:
            audio = _audio_of(event)
            if audio is not None and is_meant(audio):
                self._bytes -= _size(event)
            else:
                kept.append(event)
        self._events = kept
        self._make_room()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more will come, because of that error if there is one."""
        if self.ended:
            return
        self.ended = True
        self.error = error
        self._readers.wake_all()
        self._writers.wake_all()


def _audio_of(event: RealtimeSessionEvent) -> RealtimeModelAudioEvent | None:
    if type(event) is RealtimeAudio:
        return event.audio
    if type(event) is RealtimeRawModelEvent and type(event.data) is RealtimeModelAudioEvent:
        return event.data
    return None


def _size(event: RealtimeSessionEvent) -> int:
    """What counts of it. (The audio of a raw event is that of the event behind it.)"""
    if type(event) is RealtimeAudio:
        return len(event.audio.data)
    if type(event) is RealtimeRawModelEvent and type(event.data) is RealtimeModelRawServerEvent:
        return len(event.data.frame)
    if type(event) is RealtimeHistoryUpdated:
        return 8 * len(event.history)  # the list; what is in it is the session's own
    return 0
