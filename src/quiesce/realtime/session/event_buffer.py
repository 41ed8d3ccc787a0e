"""The events that wait to be read.

Invariants
- `add` never waits: it is called from callbacks, from tasks that are being cancelled, and during clean-up. A
  caller that may wait does so afterwards (`wait_for_room`), so that the buffer stays bounded. The last events
  of a lost connection are an exception: nothing waits for their readers (`lift_bound`).
- One reader takes an event. A reader that is cancelled while it waits loses nothing.
- After `end`, the events in the buffer can still be read; then every reader gets the end, or the error.
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
    from quiesce.realtime.words import RealtimeLimits, RealtimeSessionEvent


class EventBuffer:
    """A bounded queue of a session's events."""

    def __init__(self, limits: RealtimeLimits) -> None:
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
        """Add an event; do nothing after the end."""
        if self.ended:
            return
        # Even if it is full: the bound is enforced by making the model wait, not by dropping events.
        self._events.append(event)
        self._bytes += _size(event)
        self._readers.wake_one()

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return self._is_bounded and (
            len(self._events) >= self._most_events or self._bytes >= self._most_bytes
        )

    def lift_bound(self) -> None:
        """Make room for everything, because the connection has ended and only few events follow."""
        self._is_bounded = False
        self._make_room()

    def restore_bound(self) -> None:
        """Apply the limits again, because there is a new connection."""
        self._is_bounded = True

    async def wait_for_room(self) -> None:
        """Wait until there is room, or the end."""
        await self._writers.wait_until(lambda: self.ended or not self.is_full)

    async def take(self) -> RealtimeSessionEvent | None:
        """Return the next event; None at the end, or raise the error that was the end."""
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

    def drop_audio(self, is_unwanted: Callable[[RealtimeModelAudioEvent], bool]) -> None:
        """Remove audio that must not be played."""
        kept: deque[RealtimeSessionEvent] = deque()
        for event in self._events:
            audio = _audio_of(event)
            if audio is not None and is_unwanted(audio):
                self._bytes -= _size(event)
            else:
                kept.append(event)
        self._events = kept
        self._make_room()

    def end(self, error: BaseException | None = None) -> None:
        """Add no more events; `error` is why, if it is one."""
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
    """Return the bytes that count. (A raw audio event shares its bytes with the event after it.)"""
    if type(event) is RealtimeAudio:
        return len(event.audio.data)
    if type(event) is RealtimeRawModelEvent and type(event.data) is RealtimeModelRawServerEvent:
        return len(event.data.frame)
    if type(event) is RealtimeHistoryUpdated:
        return 8 * len(event.history)  # the list itself; its items belong to the session's history
    return 0
