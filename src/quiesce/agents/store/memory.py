"""Conversations in memory: the store that is used when none is given.

It lives as long as the process. Everything happens at once, in the caller's thread, so nothing here waits and nothing can be cut; a lock
makes it safe from several threads. A log that nobody wrote to is one small object, and the store holds nothing for it.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from .events import Event, StoreClosed, check_events, check_id, conflict, stamp

_lock = (
    threading.Lock()
)  # of all stores: it is held for a few hundred nanoseconds, and ten thousand locks take memory


class _Kept:
    """What is kept of one conversation: its events as they were given, and when."""

    __slots__ = ("events", "times")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times = array("d")


class MemoryStore:
    """Keeps conversations in memory, for the life of the process.

    ```python
    store = MemoryStore()
    conversation = Conversation(agent, store=store, conversation_id="support-7")
    ```
    """

    __slots__ = ("_closed", "_kept")

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self._kept)} conversations>"

    def open(self, conversation_id: str) -> MemoryLog:
        """The log of a conversation, new or not."""
        if self._closed:
            raise StoreClosed("the store in memory was closed: make a new one")
        return MemoryLog(self, check_id(conversation_id))

    def ids_sync(self) -> list[str]:
        """The conversations that have at least one event, in order of their ids."""
        return sorted(self._kept)

    async def ids(self) -> list[str]:
        """The conversations that have at least one event, in order of their ids."""
        return self.ids_sync()

    def delete_sync(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none."""
        with _lock:
            return self._kept.pop(conversation_id, None) is not None

    async def delete(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none."""
        return self.delete_sync(conversation_id)

    def close_sync(self) -> None:
        """Refuse everything from now on, and forget all conversations."""
        with _lock:
            self._closed = True
            self._kept = {}

    async def close(self) -> None:
        """Refuse everything from now on, and forget all conversations."""
        self.close_sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close_sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close_sync()

    def _append(self, log: MemoryLog, events: Sequence[Event], after: int | None) -> int:
        check_events(events)
        with _lock:
            if self._closed or log._closed:
                raise StoreClosed(
                    f"conversation {log.conversation_id!r} cannot be written to: its {'store' if self._closed else 'log'} was closed"
                )
            kept = self._kept.get(log.conversation_id)
            found = len(kept.events) if kept is not None else 0
            expected = log._position if after is None else after
            if expected is not None and expected != found:
                raise conflict(log.conversation_id, "memory", expected, found)
            if events:
                if kept is None:
                    kept = self._kept[log.conversation_id] = _Kept()
                kept.events.extend(events)
                now = time.time()
                kept.times.extend([now] * len(events))
            log._position = found + len(events)
            return log._position

    def _read(self, log: MemoryLog, after: int) -> list[Event]:
        with _lock:
            if self._closed:
                raise StoreClosed(
                    f"conversation {log.conversation_id!r} cannot be read: its store in memory was closed"
                )
            kept = self._kept.get(log.conversation_id)
            log._position = len(kept.events) if kept is not None else 0
            if kept is None:
                return []
            events, times = kept.events[after:], kept.times[after:]
        return [
            stamp(event, seq, moment)
            for seq, (event, moment) in enumerate(zip(events, times, strict=True), after + 1)
        ]


class MemoryLog:
    """One conversation of a `MemoryStore`."""

    __slots__ = ("_closed", "_position", "_store", "conversation_id")

    def __init__(self, store: MemoryStore, conversation_id: str) -> None:
        self._store = store
        self.conversation_id = conversation_id
        self._position: int | None = None  # None: it has neither read nor written
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryLog of {self.conversation_id!r}>"

    def append_sync(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """Add events, all or none; returns the number of the last one."""
        return self._store._append(self, events, after)

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """Add events, all or none; returns the number of the last one. Never waits."""
        return self._store._append(self, events, after)

    def read_sync(self, after: int = 0) -> list[Event]:
        """The events, or those after the one with this number."""
        return self._store._read(self, after)

    async def read(self, after: int = 0) -> list[Event]:
        """The events, or those after the one with this number. Never waits."""
        return self._store._read(self, after)

    def close(self) -> None:
        """Write no more through this log."""
        self._closed = True
