"""Conversations in memory: the store that is used when none is given.

Everything happens at once, in the caller's thread: nothing here waits, and nothing can be interrupted. A lock
makes it safe to use from several threads. A log without events is one small object, and takes no memory in
the store.
"""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from .contract import Holder, OnEvents, StoreClosed, check_id, conflict, fenced, held
from .events import Event, MessageQueued, Posted, Snapshot, check_events, check_posted, stamp
from .watch import Watch

# One for all stores: it is held for a few hundred nanoseconds, and ten thousand locks would take memory. It is
# reentrant: the garbage collector may drop a feed or a lease in the thread that holds it.
_lock = threading.RLock()


class _Events:
    """The events of one conversation as they were given, and when.

    Numbers and times are set when they are read.
    """

    __slots__ = ("events", "message_ids", "times")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times = array("d")
        #: The ids of all its messages; made for the first one that is posted.
        self.message_ids: set[str] | None = None

    def new_of(self, events: Sequence[Event]) -> list[Event]:
        """Those of these events that are not messages which it has already."""
        if self.message_ids is None:
            self.message_ids = {event.message_id for event in self.events if isinstance(event, MessageQueued)}
        new: list[Event] = []
        for event in events:
            if isinstance(event, MessageQueued):
                if event.message_id in self.message_ids:
                    continue
                self.message_ids.add(event.message_id)
            new.append(event)
        return new

    def add(self, events: Sequence[Event]) -> None:
        """Add these at the end."""
        self.events.extend(events)
        now = time.time()
        self.times.extend([now] * len(events))


class MemoryStore:
    """Keeps conversations in memory, as long as the process lives.

    ```python
    store = MemoryStore()
    conversation = Conversation(agent, store=store, conversation_id="support-7")
    ```
    """

    __slots__ = ("_closed", "_conversations", "_leases", "_watches")

    def __init__(self) -> None:
        self._conversations: dict[str, _Events] = {}
        # By conversation: the number of its latest lease, and that lease, unless it was dropped.
        self._leases: dict[str, tuple[int, weakref.ref[MemoryLease]]] = {}
        self._watches: dict[str, list[Watch]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self._conversations)} conversations>"

    def open(self, conversation_id: str) -> MemoryLog:
        """Return the log of a conversation, new or existing."""
        if self._closed:
            raise StoreClosed("the store in memory was closed: make a new one")
        return MemoryLog(self, check_id(conversation_id))

    def lease_sync(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> MemoryLease:
        """Grant the right to run a conversation, or raise `StoreHeld`; with `epoch`, or raise `StoreFenced`."""
        log = self.open(conversation_id)
        with _lock:
            latest = self._latest_epoch(conversation_id)
            if epoch is None:
                if (holder := self._holder(conversation_id)) is not None:
                    raise held(conversation_id, "memory", holder)
                epoch = latest + 1
            elif epoch <= latest:
                raise fenced(conversation_id, "memory", epoch, latest)
            stored = self._conversations.get(conversation_id)
            log._position = len(stored.events) if stored is not None else 0
            lease = MemoryLease(self, log, epoch, owner)
            self._leases[conversation_id] = epoch, weakref.ref(lease)
        return lease

    async def lease(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> MemoryLease:
        """Grant the right to run a conversation, or raise `StoreHeld`; with `epoch`, or raise `StoreFenced`."""
        return self.lease_sync(conversation_id, owner=owner, epoch=epoch)

    def holder_sync(self, conversation_id: str) -> Holder | None:
        """Return who runs a conversation now; None if it is not being run."""
        with _lock:
            return self._holder(conversation_id)

    async def holder(self, conversation_id: str) -> Holder | None:
        """Return who runs a conversation now; None if it is not being run."""
        return self.holder_sync(conversation_id)

    def _latest_epoch(self, conversation_id: str) -> int:
        return self._leases[conversation_id][0] if conversation_id in self._leases else 0

    def _holder(self, conversation_id: str) -> Holder | None:
        lease = self._leases[conversation_id][1]() if conversation_id in self._leases else None
        return Holder(lease.owner, lease.epoch) if lease is not None and not lease.released else None

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
        conversation_id = log.conversation_id
        with _lock:
            self._check_open(log)
            if self._leases:
                self._check_lease(log)
            stored = self._conversations.get(conversation_id)
            found = len(stored.events) if stored is not None else 0
            expected = log._position if after is None else after
            if expected is not None and expected != found:
                raise conflict(conversation_id, "memory", expected, found)
            if events:
                # Only now: a log that is opened and never written to takes nothing here.
                if stored is None:
                    stored = self._conversations[conversation_id] = _Events()
                if stored.message_ids is not None:
                    stored.new_of(events)
                stored.add(events)
            log._position = found + len(events)
        if self._watches:
            self._look(conversation_id)
        return log._position

    def _post(self, log: MemoryLog, events: Sequence[Posted]) -> int:
        check_posted(events)
        if not events:
            return 0
        with _lock:
            self._check_open(log)
            stored = self._conversations.get(log.conversation_id)
            if stored is None:
                stored = self._conversations[log.conversation_id] = _Events()
            new = stored.new_of(events)
            stored.add(new)
            last = len(stored.events) if new else 0
        if self._watches:
            self._look(log.conversation_id)
        return last

    def _check_open(self, log: MemoryLog) -> None:
        if self._closed or log._closed:
            what = "store" if self._closed else "log"
            raise StoreClosed(
                f"conversation {log.conversation_id!r} cannot be written to: its {what} was closed"
            )

    def _check_lease(self, log: MemoryLog) -> None:
        conversation_id, epoch = log.conversation_id, log._epoch
        if epoch is not None:
            if epoch != self._latest_epoch(conversation_id):
                raise fenced(conversation_id, "memory", epoch, self._latest_epoch(conversation_id))
        elif (holder := self._holder(conversation_id)) is not None:
            raise held(conversation_id, "memory", holder)

    def _watch(self, log: MemoryLog, on_events: OnEvents, after: int) -> Callable[[], None]:
        conversation_id = log.conversation_id
        # Through a log of its own: reading moves the position of a log.
        watch = Watch(MemoryLog(self, conversation_id).read_sync, on_events, after)
        with _lock:
            self._watches.setdefault(conversation_id, []).append(watch)
        watch.look()
        return partial(self._end_watch, conversation_id, watch)

    def _end_watch(self, conversation_id: str, watch: Watch) -> None:
        watch.end()
        with _lock:
            others = [one for one in self._watches.get(conversation_id, ()) if one is not watch]
            if others:
                self._watches[conversation_id] = others
            else:
                self._watches.pop(conversation_id, None)

    def _look(self, conversation_id: str) -> None:
        for watch in list(self._watches.get(conversation_id, ())):
            if not self._closed:
                watch.look()

    def _load(self, log: MemoryLog) -> list[Event]:
        with _lock:
            stored = self._conversations.get(log.conversation_id)
            events = stored.events if stored is not None else []
            places = [place for place, event in enumerate(events) if isinstance(event, Snapshot)]
            snapshots = [
                stamp(events[place], place + 1, stored.times[place]) for place in places if stored is not None
            ]
        return [*snapshots, *self._read(log, places[-1] + 1 if places else 0)]

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

    __slots__ = ("_closed", "_epoch", "_position", "_store", "conversation_id")

    def __init__(self, store: MemoryStore, conversation_id: str) -> None:
        self._store = store
        self._epoch: int | None = None  # of the lease that it belongs to
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

    def post_sync(self, events: Sequence[Posted]) -> int:
        """Add what anybody may say at the end, all or none; returns the number of the last one."""
        return self._store._post(self, events)

    async def post(self, events: Sequence[Posted]) -> int:
        """Add what anybody may say at the end, all or none; returns the number of the last one. Never waits."""
        return self._store._post(self, events)

    def load_sync(self) -> list[Event]:
        """Return every snapshot, and the events after the last one."""
        return self._store._load(self)

    async def load(self) -> list[Event]:
        """Return every snapshot, and the events after the last one. Never waits."""
        return self._store._load(self)

    def watch(self, on_events: OnEvents, *, after: int) -> Callable[[], None]:
        """Call `on_events` with the events after number `after`, then with later ones as they come."""
        return self._store._watch(self, on_events, after)

    def read_sync(self, after: int = 0) -> list[Event]:
        """Return all events, or those after number `after`."""
        return self._store._read(self, after)

    async def read(self, after: int = 0) -> list[Event]:
        """Return all events, or those after number `after`. Never waits."""
        return self._store._read(self, after)

    def close(self) -> None:
        """Refuse further writes through this log."""
        self._closed = True


class MemoryLease:
    """The right to run a conversation of a `MemoryStore`. One that is dropped is released."""

    __slots__ = ("__weakref__", "_store", "epoch", "last_seq", "log", "owner", "released")

    def __init__(self, store: MemoryStore, log: MemoryLog, epoch: int, owner: str) -> None:
        self._store = store
        self.epoch = epoch
        self.owner = owner
        self.log = log
        log._epoch = epoch
        self.last_seq = log._position or 0
        self.released = False

    def __repr__(self) -> str:
        return f"<MemoryLease {self.epoch} of {self.log.conversation_id!r}>"

    def release_sync(self) -> None:
        """Give it up. May be called again."""
        self.released = True

    async def release(self) -> None:
        """Give it up. May be called again. Never waits."""
        self.released = True
