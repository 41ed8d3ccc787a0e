"""Conversations in memory: the store that is used when none is given.

Everything happens at once, in the caller's thread: nothing here waits, and nothing can be interrupted. A lock
makes it safe to use from several threads. A log without events is one small object, and takes no memory in
the store.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from .events import Event, StoreClosed, check_events, check_id, conflict, stamp

# One for all stores: it is held for a few hundred nanoseconds, and ten thousand locks would take memory.
_lock = threading.Lock()


class _Events:
    """The events of one conversation as they were given, and when.

    Numbers and times are set when they are read.
    """

    __slots__ = ("events", "times")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times = array("d")


class MemoryStore:
    """Keeps conversations in memory, as long as the process lives.

    ```python
    store = MemoryStore()
    conversation = Conversation(agent, store=store, conversation_id="support-7")
    ```
    """

    __slots__ = ("_closed", "_conversations")

    def __init__(self) -> None:
        self._conversations: dict[str, _Events] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self._conversations)} conversations>"

    def open(self, conversation_id: str) -> MemoryLog:
        """Return the log of a conversation, new or existing."""
        if self._closed:
            raise StoreClosed("the store in memory was closed: make a new one")
        return MemoryLog(self, check_id(conversation_id))

    def ids_sync(self) -> list[str]:
        """Return the ids of the conversations that have at least one event, sorted."""
        return sorted(self._conversations)

    async def ids(self) -> list[str]:
        """Return the ids of the conversations that have at least one event, sorted."""
        return self.ids_sync()

    def delete_sync(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none."""
        with _lock:
            return self._conversations.pop(conversation_id, None) is not None

    async def delete(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none."""
        return self.delete_sync(conversation_id)

    def close_sync(self) -> None:
        """Forget all conversations, and refuse everything from now on."""
        with _lock:
            self._closed = True
            self._conversations = {}

    async def close(self) -> None:
        """Forget all conversations, and refuse everything from now on."""
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
                what = "store" if self._closed else "log"
                raise StoreClosed(
                    f"conversation {log.conversation_id!r} cannot be written to: its {what} was closed"
                )
            stored = self._conversations.get(log.conversation_id)
            found = len(stored.events) if stored is not None else 0
            expected = log._position if after is None else after
            if expected is not None and expected != found:
                raise conflict(log.conversation_id, "memory", expected, found)
            if events:
                # Only now: a log that is opened and never written to takes nothing here.
                if stored is None:
                    stored = self._conversations[log.conversation_id] = _Events()
                stored.events.extend(events)
                now = time.time()
                stored.times.extend([now] * len(events))
            log._position = found + len(events)
            return log._position

    def _read(self, log: MemoryLog, after: int) -> list[Event]:
        with _lock:
            if self._closed:
                raise StoreClosed(
                    f"conversation {log.conversation_id!r} cannot be read: its store in memory was closed"
                )
            stored = self._conversations.get(log.conversation_id)
            log._position = len(stored.events) if stored is not None else 0
            if stored is None:
                return []
            events, times = stored.events[after:], stored.times[after:]
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
        self._position: int | None = None  # the last event that it has read or written; None before that
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
        """Return all events, or those after number `after`."""
        return self._store._read(self, after)

    async def read(self, after: int = 0) -> list[Event]:
        """Return all events, or those after number `after`. Never waits."""
        return self._store._read(self, after)

    def close(self) -> None:
        """Refuse further writes through this log."""
        self._closed = True
