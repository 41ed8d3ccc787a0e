"""The durable events of a conversation, as they come, for one consumer in an event loop.

Invariants
- In the order of the log, without gaps, each once, from the place that the consumer names.
- It holds a bounded number of events. What a slow consumer has not taken by then is read from the log again.
- A feed that is dropped stops watching; there is nothing else to close. One whose conversation is closed ends.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from quiesce.agents.store import Event, Log
from quiesce.kernel.inner import Backend, WaitQueue, current_backend

_MOST_HELD = 1000


class EventFeed:
    """What `Conversation.aevents()` returns: iterate it with `async for`.

    ```python
    async for event in conversation.aevents(after=last_seen):
        last_seen = event.seq
    ```
    """

    __slots__ = (
        "__weakref__",
        "_backend",
        "_behind",
        "_closed",
        "_held",
        "_log",
        "_position",
        "_unwatch",
        "_waiting",
    )

    def __init__(self, log: Log, after: int) -> None:
        self._log = log
        self._position = after
        self._held: deque[Event] = deque()
        self._behind = False  # events were let go that are still to be read
        self._closed = False
        self._waiting = WaitQueue()
        self._backend: Backend | None = None
        self._unwatch: Callable[[], None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event, when it is there."""
        if self._unwatch is None and not self._closed:
            self._begin()
        while True:
            if self._behind:
                self._behind = False
                try:
                    found = await self._log.read(self._position)
                except BaseException:  # a cancel: what was let go is still to be read
                    self._behind = True
                    raise
                # What came meanwhile stands behind this, perhaps twice.
                self._held.extendleft(reversed(found))
            while self._held:
                event = self._held.popleft()
                if event.seq > self._position:
                    self._position = event.seq
                    return event
            if self._closed:
                raise StopAsyncIteration
            await self._waiting.wait_until(self._has_news)

    def _begin(self) -> None:
        self._backend = current_backend()
        take = weakref.WeakMethod(self._take)

        def on_events(events: Sequence[Event]) -> None:
            if (method := take()) is not None:
                method(events)

        self._unwatch = self._log.watch(on_events, after=self._position)

    def _has_news(self) -> bool:
        return bool(self._held) or self._behind or self._closed

    def _take(self, events: Sequence[Event]) -> None:
        if len(self._held) + len(events) > _MOST_HELD:
            self._behind = True
        else:
            self._held.extend(events)
        self._wake()

    def _wake(self) -> None:
        if self._backend is not None:
            self._backend.run_from_anywhere(self._waiting.wake_all)

    def close(self) -> None:
        """End it, from any thread: the consumer gets what is there already, and then the end."""
        self._closed = True
        if self._unwatch is not None:
            self._unwatch()
        self._wake()

    async def aclose(self) -> None:
        """`close`, under the name that async generators have for it."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
