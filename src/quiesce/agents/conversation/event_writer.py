"""What happens in a conversation goes to its log before anything is made of it.

Invariants
- Callbacks are called once with each event, when it is known to be durable.
- Events that could not be written (the store failed, a cancel came first) go with the next write, before
  anything newer.
- After a cancel it may be uncertain whether a write took place. Then the log is read before the next write,
  through a second `Log`: reading moves the position of a log, and the one that writes would no longer notice
  a second writer.

There are two kinds of writes. A caller who sends a message is told when it fails, and must be able to send it
again: a failed message is forgotten. What happened in a run has happened: if it cannot be written now, it is
written later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from quiesce import shielded
from quiesce._safe.printed import logger
from quiesce.agents.agent import check_each, is_async
from quiesce.agents.run import state_lock
from quiesce.agents.store import (
    Event,
    Log,
    MemoryLog,
    MemoryStore,
    MessageQueued,
    Store,
    StoreError,
    stamp,
)
from quiesce.models import Item, Usage

if TYPE_CHECKING:
    from .restore import Restored


EventCallback: TypeAlias = Callable[[Event], object]


class _Write(NamedTuple):
    """One write to the log: all of `batch` gets there, or none of it."""

    after: int  # the number of the last event before it
    batch: list[Event]
    to_retry: list[Event]  # what the next write has to contain if this one fails
    on_durable: Callable[[], None] | None


class EventWriter:
    """Writes the events of one conversation to its log, and calls the callbacks with them."""

    __slots__ = (
        "_callbacks",
        "_conversation_id",
        "_counted_usage",
        "_last_seq",
        "_log",
        "_must_write",
        "_not_called_back",
        "_store",
        "_uncertain",
        "_unwritten",
        "failure_was_raised",
        "message_ids",
        "owns_store",
        "usage",
    )

    def __init__(
        self,
        store: Store | str | os.PathLike[str] | None,
        conversation_id: str,
        callbacks: Sequence[EventCallback],
    ) -> None:
        self._callbacks = _checked_callbacks(callbacks)
        #: Whether closing this closes the store. One in memory needs no closing.
        self.owns_store = isinstance(store, (str, os.PathLike))
        self._store: Store | None = _store_at(store)
        self._conversation_id = conversation_id
        self._log: Log | None = None
        #: What the whole conversation has cost.
        self.usage = Usage()
        #: The ids of queued messages, by the identity of their items.
        self.message_ids: dict[int, str] = {}
        #: Whether a caller already got the error of the store that keeps the latest events from being
        #: written.
        self.failure_was_raised = False
        self._counted_usage = Usage()
        self._unwritten: list[Event] = []
        # False if the next reader of the log would find out by itself what `_unwritten` says: then closing
        # writes nothing.
        self._must_write = False
        self._uncertain: list[_Write] = []
        self._last_seq = 0
        self._not_called_back: list[Event] = []

    def restore(self, restored: Restored) -> None:
        """Continue where the log ends."""
        self.usage = restored.usage
        self._counted_usage = replace(restored.usage)
        self._unwritten += restored.unwritten
        self._last_seq = restored.last_seq
        self.message_ids = {id(item): message_id for message_id, item in restored.history.inbox or ()}

    @property
    def log(self) -> Log:
        """The log, opened on first use."""
        if self._log is None:
            with state_lock:
                if self._log is None:
                    self._log = self._another_log()
        return self._log

    def _another_log(self) -> Log:
        if self._store is None:
            self._store = MemoryStore()
        return self._store.open(self._conversation_id)

    @property
    def in_memory(self) -> bool:
        """Whether a write never waits."""
        return type(self._log or self.log) is MemoryLog

    def defer(self, events: Sequence[Event]) -> None:
        """Write these events with the next ones, or when the conversation is closed."""
        self._unwritten += events
        self._must_write = True

    def queued_events(self, messages: Sequence[tuple[str, Item]]) -> list[Event]:
        """Return the events that queue these messages, and remember their ids for when a run takes them."""
        self.message_ids.update((id(item), message_id) for message_id, item in messages)
        return [MessageQueued(message_id=message_id, item=item) for message_id, item in messages]

    def take_spent(self) -> Usage | None:
        """Return what was spent since the last call; None if nothing was."""
        if self.usage == self._counted_usage:
            return None
        spent = _difference(self.usage, self._counted_usage)
        self._counted_usage.add(spent)
        return spent

    def read(self, after: int = 0) -> list[Event]:
        """Return what is in the log after event number `after`. Blocks."""
        return self._another_log().read_sync(after) if self._log is not None else []

    # Messages and decisions: written when this returns, forgotten if it raises

    def write_sync(self, events: Sequence[Event], *, on_durable: Callable[[], None] | None = None) -> None:
        """Write events, then call `on_durable`; if this raises, they were not written. Blocks."""
        while self._uncertain:
            earlier = self._uncertain[0]
            self._resolve(earlier, self.read(earlier.after))
        write = self._next_write(events, on_durable)
        if not write.batch:
            return
        try:
            last = self.log.append_sync(write.batch)
        except BaseException as error:
            self._failed(write, error)
            self.failure_was_raised = isinstance(error, StoreError)
            raise
        self._written(write.batch, last, write.on_durable)

    async def write_message(self, events: Sequence[Event], on_durable: Callable[[], None]) -> None:
        """`write_sync` for async code.

        A cancelled caller gets its cancel when it is known whether they were written.
        """
        if self.in_memory:
            self.write_sync(events, on_durable=on_durable)
            return
        await self._resolve_all()
        write = self._next_write(events, on_durable)
        try:
            last = await self.log.append(write.batch)
        except BaseException as error:
            self._failed(write, error)
            self.failure_was_raised = isinstance(error, StoreError)
            if self._uncertain:
                try:
                    await shielded(self._resolve_all)
                except Exception as failure:  # the next write will try again
                    error.add_note(f"whether the message was kept is not known yet: {failure!r}")
            raise
        self._written(write.batch, last, write.on_durable)

    # What happened in a run: written now or with the next write

    async def write(self, events: Sequence[Event], *, call_back: bool = True) -> None:
        """Write events, or keep them for the next write if that fails.

        Without `call_back`: see `call_callbacks`.
        """
        if self.in_memory:
            self.write_in_memory(events, call_back=call_back)
            return
        await self._resolve_all()
        write = self._next_write(events, to_retry=True)
        if not write.batch:
            return
        try:
            last = await self.log.append(write.batch)
        except BaseException as error:
            self._failed(write, error)
            raise
        self._written(write.batch, last, call_back=call_back)

    def write_in_memory(self, events: Sequence[Event], *, call_back: bool = True) -> None:
        """`write` without waiting, for a log in memory."""
        batch = [*self._take_unwritten(), *events] if self._unwritten else events
        if not batch:
            return
        try:
            last = self.log.append_sync(batch)
        except BaseException:
            self._retry(batch)
            raise
        self._written(batch, last, call_back=call_back)

    def call_callbacks(self) -> None:
        """Call the callbacks with the durable events that they have not been called with yet."""
        while self._not_called_back:
            try:
                event = self._not_called_back.pop(0)
            except IndexError:  # another thread was faster, and calls them
                return
            for callback in self._callbacks:
                try:
                    callback(event)
                except Exception:
                    logger.exception(
                        "a callback of conversation %r failed: %r", self._conversation_id, callback
                    )

    # Closing

    async def close(self, within: float | None) -> None:
        """Write what is not written yet and release the store, each in at most `within` seconds."""
        if self._must_write or self._uncertain:
            was_raised = self.failure_was_raised
            try:
                await shielded(self.write, [], within=within)
            except Exception as error:
                self._log_loss(error, was_raised)
        if self._log is not None:
            self._log.close()
        if self.owns_store and self._store is not None:
            await shielded(self._store.close, within=within)

    def close_sync(self) -> None:
        """`close` for plain threads."""
        if self._must_write or self._uncertain:
            was_raised = self.failure_was_raised
            try:
                self.write_sync([])
            except Exception as error:
                self._log_loss(error, was_raised)
        if self._log is not None:
            self._log.close()
        if self.owns_store and self._store is not None:
            self._store.close_sync()

    def _log_loss(self, error: Exception, was_raised: bool) -> None:
        if not (was_raised and isinstance(error, StoreError)):
            name = self._conversation_id
            logger.error("the end of conversation %r could not be saved", name, exc_info=error)

    # One write

    def _next_write(
        self,
        events: Sequence[Event],
        on_durable: Callable[[], None] | None = None,
        *,
        to_retry: bool = False,
    ) -> _Write:
        """Return a write of all that is not written yet. `to_retry`: if it fails, keep `events` too."""
        earlier = self._take_unwritten()
        batch = [*earlier, *events]
        return _Write(self._last_seq, batch, batch if to_retry else earlier, on_durable)

    def _take_unwritten(self) -> list[Event]:
        unwritten, self._unwritten = self._unwritten, []
        self._must_write = False
        return unwritten

    def _written(
        self,
        batch: Sequence[Event],
        last: int,
        on_durable: Callable[[], None] | None = None,
        *,
        call_back: bool = True,
    ) -> None:
        if on_durable is not None:
            on_durable()
        self._last_seq = max(last, self._last_seq)
        self.failure_was_raised = False
        if self._callbacks:
            first, moment = last - len(batch) + 1, time.time()
            self._not_called_back += [stamp(event, seq, moment) for seq, event in enumerate(batch, first)]
            if call_back:
                self.call_callbacks()

    def _failed(self, write: _Write, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._retry(write.to_retry)
        else:
            # A cancel, or Ctrl-C, while the batch was on its way: it may be in the log or not. To write it
            # again could double it, and to forget it could lose it.
            self._uncertain.append(write)

    def _retry(self, events: Sequence[Event]) -> None:
        if events:
            self._unwritten[:0] = events
            self._must_write = True

    async def _resolve_all(self) -> None:
        while self._uncertain:
            write = self._uncertain[0]
            self._resolve(write, await self._another_log().read(write.after))

    def _resolve(self, write: _Write, found: Sequence[Event]) -> None:
        """Find out, from the events in the log after its beginning, whether an uncertain write took place."""
        if not any(one is write for one in self._uncertain):
            return  # another caller has found out meanwhile
        self._uncertain = [one for one in self._uncertain if one is not write]
        events, size = [stamp(event, 0, 0.0) for event in found], len(write.batch)
        for start in range(len(events) - size + 1):
            if events[start : start + size] == write.batch:
                self._written(write.batch, write.after + start + size, write.on_durable)
                return
        self._retry(write.to_retry)


def _difference(now: Usage, before: Usage) -> Usage:
    return Usage(
        now.requests - before.requests,
        now.input_tokens - before.input_tokens,
        now.output_tokens - before.output_tokens,
        now.cached_input_tokens - before.cached_input_tokens,
        now.reasoning_tokens - before.reasoning_tokens,
        now.unreported - before.unreported,
    )


def _checked_callbacks(callbacks: Sequence[EventCallback]) -> tuple[EventCallback, ...]:
    def is_callback(value: Any) -> bool:
        return callable(value) and not is_async(value)

    def advice(value: Any) -> str:
        return "it would never be awaited; arun(on_event=...) takes an async one" if callable(value) else ""

    must_be = "a sync function of an event"
    return tuple(check_each("a conversation", "callbacks", callbacks, must_be, is_callback, advice))


def _store_at(store: Store | str | os.PathLike[str] | None) -> Store | None:
    if isinstance(store, (str, os.PathLike)):
        from quiesce.agents.store import SQLiteStore  # sqlite3 is imported only by programs that use files

        return SQLiteStore(store)
    if store is not None and not isinstance(store, Store):
        raise TypeError(
            f"store is a path, a Store or None, not {type(store).__name__}: for example store='chat.db'"
        )
    return store
