"""What happens in a conversation goes to its log before anything is made of it.

Invariants
- Callbacks are called once with each event, when it is known to be durable.
- Events that could not be written (the store failed, a cancel came first) go with the next write, before
  anything newer.
- After a cancel, or if the answer of the store was lost, it is uncertain whether a write took place. Then the log
  is read before the next write. If the lost attempt arrives after that, it is refused because its place is taken;
  or it comes before its repetition, which is refused and finds it there. So nothing is written twice.

There are two kinds of writes.
- What happened in a run has happened: if it cannot be written now, it is written later. In a store that others
  can open, it needs the lease (`SharedStore`). Events that others have posted come in between: they are handed
  to `on_news`, and the write is repeated behind them. If another one has the lease by now, what is not written
  is forgotten: that one has recorded what it found instead.
- A caller who says something is told when it fails, and must be able to say it again: a failed message is
  forgotten. In a store that others can open, it is posted, which needs no lease.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

from quiesce import shielded
from quiesce._safe.printed import logger
from quiesce.agents.agent import check_each, is_async
from quiesce.agents.run import state_lock
from quiesce.agents.store import (
    Event,
    Lease,
    Log,
    MemoryLog,
    MemoryStore,
    MessageQueued,
    Posted,
    RunStarted,
    Snapshot,
    Store,
    StoreConflict,
    StoreError,
    StoreFenced,
    StoreHeld,
    StoreInDoubt,
    encode_event,
    stamp,
)
from quiesce.kernel.inner import WaitQueue
from quiesce.models import Item, Usage

from .shared_store import SharedStore

if TYPE_CHECKING:
    from .restore import Restored

_POSTED = get_args(Posted)
# So often in a row a write asks what became of it, before the caller is told. Each time is bounded by the store.
_MOST_DOUBTS = 3
_NONE: frozenset[str] = frozenset()
_NO_EVENTS: deque[Event] = deque(maxlen=0)  # an empty one takes 600 bytes

EventCallback: TypeAlias = Callable[[Event], object]


class _Write(NamedTuple):
    """One write to the log: all of `batch` gets there, or none of it."""

    after: int  # the number of the last event before it
    batch: list[Event]
    to_retry: list[Event]  # what the next write has to contain if this one fails
    accepted: int  # how many events were, until then
    on_durable: Callable[[], None] | None


class EventWriter:
    """Writes the events of one conversation to its log, and calls the callbacks with them."""

    __slots__ = (
        "_accepted",
        "_callbacks",
        "_called",
        "_called_to",
        "_conversation_id",
        "_counted_usage",
        "_durable",
        "_in_flight",
        "_is_writing",
        "_log",
        "_must_write",
        "_not_called_back",
        "_on_news",
        "_store",
        "_uncertain",
        "_unwatch",
        "_unwritten",
        "_written_one",
        "failure_was_raised",
        "fenced",
        "in_snapshot",
        "known_messages",
        "last_seq",
        "message_ids",
        "owns_store",
        "shared",
        "since_snapshot",
        "turns",
        "usage",
    )

    def __init__(
        self,
        store: Store | str | os.PathLike[str] | None,
        conversation_id: str,
        callbacks: Sequence[EventCallback],
        lease: Lease | None = None,
        on_news: Callable[[Sequence[Event]], None] | None = None,
    ) -> None:
        self._callbacks = _checked_callbacks(callbacks)
        #: Whether closing this closes the store. One in memory needs no closing.
        self.owns_store = isinstance(store, (str, os.PathLike))
        self._store: Store | None = _store_at(store)
        self._conversation_id = conversation_id
        #: The store, if others can open it too.
        self.shared = SharedStore(self._store, conversation_id, lease) if self._store is not None else None
        # Weak, as a conversation that is dropped would otherwise wait for the garbage collector.
        self._on_news = weakref.WeakMethod(on_news) if on_news is not None else None
        self._unwatch: Callable[[], None] | None = None
        #: Another one has the lease: nothing of this run is written any more.
        self.fenced = False
        #: The ids of messages that were sent or found here: of all, if others can send some too, and otherwise of
        #: those that the user has named.
        self.known_messages: set[str] | frozenset[str] = _NONE
        #: The number of the last event that was written or taken in here.
        self.last_seq = 0
        #: How many events follow the last snapshot, and how many items are in that.
        self.since_snapshot = 0
        self.in_snapshot = 0
        #: How many turns of the model were taken by runs that were lost, and that the next one continues.
        self.turns = 0
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
        # How many events were accepted, and how many of these are in the log.
        self._accepted = 0
        self._durable = 0
        self._is_writing = False
        self._in_flight: _Write | None = None
        self._written_one = WaitQueue() if self.shared is not None else None
        self._not_called_back: deque[Event] = deque() if callbacks else _NO_EVENTS
        # Of a store that others write to: all events up to this number were called back, and these after it.
        self._called_to: int | None = None
        self._called: set[int] | None = None

    def restore(self, restored: Restored) -> None:
        """Continue where the log ends."""
        found = restored.found
        self.usage = found.usage
        self._counted_usage = replace(found.usage)
        # What was here was derived from an earlier state of the log, and so is this from the present one.
        self._unwritten, self._uncertain, self._must_write = [], [], False
        self.derive(restored.unwritten)
        self.last_seq = found.last_seq
        self.since_snapshot, self.in_snapshot = found.since_snapshot, found.in_snapshot
        self.message_ids = {id(item): message_id for message_id, item in restored.history.inbox or ()}
        self.known_messages |= set(self.message_ids.values())
        self.turns = found.turns

    @property
    def log(self) -> Log:
        """The log to append to; opened on first use."""
        if self.shared is not None:
            return self.shared.appending_log()
        if self._log is None:
            with state_lock:
                if self._log is None:
                    self._store = MemoryStore()
                    self._log = self._store.open(self._conversation_id)
        return self._log

    @property
    def in_memory(self) -> bool:
        """Whether a write never waits."""
        return self.shared is None or self.shared.in_memory

    @property
    def calls_back(self) -> bool:
        """Whether there are callbacks."""
        return bool(self._callbacks)

    @property
    def has_unwritten(self) -> bool:
        """Whether a run has left something that its log lacks."""
        return self._must_write or bool(self._uncertain)

    def defer(self, events: Sequence[Event]) -> None:
        """Write these events with the next ones, or when the conversation is closed."""
        self._accept(events)
        self._must_write = True

    def derive(self, events: Sequence[Event]) -> None:
        """Write these events with the next ones. If there are none, the next reader of the log derives them too."""
        self._accept(events)

    def remember(self, messages: Sequence[tuple[str, Item]], *, named: bool = False) -> None:
        """Keep the ids of these messages for when a run takes them; those that the user has `named`, for good."""
        self.message_ids.update((id(item), message_id) for message_id, item in messages)
        if self.shared is not None or named:
            self.known_messages |= {message_id for message_id, _ in messages}

    def forget(self, messages: Sequence[tuple[str, Item]]) -> None:
        """Undo `remember`: they could not be sent."""
        with state_lock:
            for _, item in messages:
                self.message_ids.pop(id(item), None)
            self.known_messages -= {message_id for message_id, _ in messages}

    def drop_start(self, run_id: str) -> None:
        """Do not write that this run has started: it never did."""
        self._unwritten = [
            event
            for event in self._unwritten
            if not (isinstance(event, RunStarted) and event.run_id == run_id)
        ]
        self._must_write = bool(self._unwritten) and self._must_write

    def was_sent(self, messages: Sequence[tuple[str, Item]]) -> bool:
        """Whether these messages, under these ids, were sent or found here already."""
        return bool(messages) and all(message_id in self.known_messages for message_id, _ in messages)

    def take_spent(self) -> Usage | None:
        """Return what was spent since the last call; None if nothing was."""
        if self.usage == self._counted_usage:
            return None
        spent = _difference(self.usage, self._counted_usage)
        self._counted_usage.add(spent)
        return spent

    def read(self, after: int = 0) -> list[Event]:
        """Return what is in the log after event number `after`. Blocks."""
        if self.shared is not None:
            return self.shared.log.read_sync(after)
        return self._log.read_sync(after) if self._log is not None else []

    # What anyone may say: written when this returns, forgotten if it raises

    def say_sync(self, events: Sequence[Posted], on_durable: Callable[[int], None]) -> None:
        """Write events, then call `on_durable` with the number of the last one; if this raises, they were not written.

        Of messages that were there already, `on_durable` is not called. Blocks.
        """
        if self.shared is None:
            self._write_private(events, lambda: on_durable(0))
            return
        try:
            last = self.shared.log.post_sync(events)
        except BaseException as error:
            self.failure_was_raised = isinstance(error, StoreError)
            if _wrote_nothing(error):
                raise
            was_said = self._was_said(events, self.shared.log.read_sync(self.last_seq), on_durable)
            if was_said and isinstance(error, StoreInDoubt):
                return
            raise
        self._said(events, last, on_durable)

    async def say(self, events: Sequence[Posted], on_durable: Callable[[int], None]) -> None:
        """`say_sync` for async code.

        A cancelled caller gets its cancel when it is known whether they were written.
        """
        if self.in_memory or self.shared is None:
            self.say_sync(events, on_durable)
            return
        try:
            last = await self.shared.log.post(events)
        except BaseException as error:
            self.failure_was_raised = isinstance(error, StoreError)
            if _wrote_nothing(error):
                raise
            # A cancel, or an answer that was lost: it may be in the log.
            was_said = False

            async def look() -> None:
                nonlocal was_said
                assert self.shared is not None
                was_said = self._was_said(events, await self.shared.log.read(self.last_seq), on_durable)

            try:
                await shielded(look)
            except Exception as failure:  # it is found when the conversation is looked at again
                error.add_note(f"whether this was kept is not known yet: {failure!r}")
            if was_said and isinstance(error, StoreInDoubt):
                return
            raise
        self._said(events, last, on_durable)

    def _was_said(
        self, events: Sequence[Posted], found: Sequence[Event], on_durable: Callable[[int], None]
    ) -> bool:
        place = _place_of(events, found)
        if place is None:
            return False
        self._said(events, found[place + len(events) - 1].seq, on_durable)
        return True

    def _said(self, events: Sequence[Posted], last: int, on_durable: Callable[[int], None]) -> None:
        if last == 0:  # all of it was there already: it was sent before, from here or elsewhere
            for event in events:
                if isinstance(event, MessageQueued):
                    self.message_ids.pop(id(event.item), None)
            return
        with state_lock:
            # If others have said something before it, that has not been taken in yet. Then the position stays.
            if last - len(events) == self.last_seq:
                self.last_seq = last
            on_durable(last)
        self._call_back_later(events, last)
        self.since_snapshot += len(events)
        self.call_callbacks()

    def _write_private(self, events: Sequence[Event], on_durable: Callable[[], None] | None = None) -> None:
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

    # What happened in a run: written now or with the next write

    async def write(self, events: Sequence[Event], *, call_back: bool = True) -> None:
        """Write events, or keep them for the next write if that fails.

        Without `call_back`: see `call_callbacks`.
        """
        if self.in_memory:
            self.write_sync(events, call_back=call_back)
            return
        # One write at a time; what comes meanwhile goes together with the next one. Tools that start at the same
        # moment so share a trip to the store, and no write of ours takes the place of another one.
        self._accept(events)
        mine = self._accepted
        while self._durable < mine and not self.fenced:
            if self._is_writing:
                assert self._written_one is not None
                await self._written_one.wait_until(lambda: not self._is_writing)
                continue
            self._is_writing = True
            try:
                await self._write_accepted(call_back)
            finally:
                self._is_writing = False
                if self._written_one is not None:
                    self._written_one.wake_all()

    async def _write_accepted(self, call_back: bool) -> None:
        assert self.shared is not None
        doubts = 0
        while not self.fenced:
            await self.resolve()
            write = self._next_write((), to_retry=True)
            if not write.batch:
                self._durable = write.accepted
                return
            self._in_flight = write
            try:
                last = await self.log.append(write.batch, after=write.after)
            except StoreConflict as error:
                self._in_flight = None
                self._keep(write, error)
                self._catch_up(write, error, await shielded(self.shared.log.read, write.after))
            except BaseException as error:
                self._in_flight = None
                self._failed(write, error)
                if not isinstance(error, StoreInDoubt) or doubts == _MOST_DOUBTS:
                    raise
                doubts += 1  # ask what became of it, and go on from there
            else:
                self._in_flight = None
                self._durable = max(self._durable, write.accepted)
                self._written(write.batch, last, call_back=call_back)
                return

    def lose_loop(self) -> None:
        """The event loop was closed in which a run has written: what it was writing is uncertain."""
        self._is_writing = False
        if self._in_flight is not None:
            self._uncertain.append(self._in_flight)
            self._in_flight = None
        self.end_watch()
        if self.shared is not None:
            self.shared.abandon()

    def _accept(self, events: Sequence[Event]) -> None:
        self._unwritten += events
        self._accepted += len(events)

    def write_sync(self, events: Sequence[Event] = (), *, call_back: bool = True) -> None:
        """`write` for plain threads: it blocks, unless the log is in memory."""
        if self.shared is None:
            batch = [*self._take_unwritten(), *events] if self._unwritten else events
            if not batch:
                return
            try:
                last = self.log.append_sync(batch)
            except BaseException:
                self._retry(batch)
                raise
            self._written(batch, last, call_back=call_back)
            return
        self._accept(events)
        while not self.fenced:
            self._resolve_all_sync()
            write = self._next_write((), to_retry=True)
            if not write.batch:
                return
            try:
                last = self.log.append_sync(write.batch, after=write.after)
            except StoreConflict as error:
                self._keep(write, error)
                self._catch_up(write, error, self.shared.log.read_sync(write.after))
            except BaseException as error:
                self._failed(write, error)
                raise
            else:
                self._written(write.batch, last, call_back=call_back)
                return

    def _keep(self, write: _Write, error: StoreConflict) -> None:
        """Keep what was refused for the next attempt, unless this is the end of the lease."""
        if isinstance(error, StoreFenced):
            self.fenced = True
            self._unwritten, self._must_write = [], False
            raise error
        self._retry(write.to_retry)

    def _catch_up(self, write: _Write, error: StoreConflict, found: Sequence[Event]) -> None:
        """Take in what stands where a write was to stand: our own lost attempt, or what others have posted."""
        if not found:  # the conversation was deleted
            raise error
        batch = write.batch
        if (start := _place_of(batch, found)) is not None:
            del self._unwritten[: len(batch)]
            self._must_write = bool(self._unwritten)
            self._take_in(found[:start])
            self._durable = max(self._durable, write.accepted)
            self._written(batch, found[start + len(batch) - 1].seq, write.on_durable)
            return
        if not all(isinstance(event, (*_POSTED, Snapshot)) for event in found):
            raise error  # a writer without a lease
        self._take_in(found)

    def _take_in(self, found: Sequence[Event]) -> None:
        """Take in what others have posted."""
        if not found:
            return
        self.last_seq = max(self.last_seq, found[-1].seq)
        self.since_snapshot += len(found)
        for event in found:
            if isinstance(event, Snapshot):  # our own, whose answer was lost
                self.since_snapshot, self.in_snapshot = 0, event.kept + len(event.items)
        self.call_back([event for event in found if not self._is_own(event)])
        self._tell_news(found)

    def _is_own(self, event: Event) -> bool:
        return isinstance(event, MessageQueued) and event.message_id in self.known_messages

    # What others say while a run goes on here

    def watch(self) -> None:
        """Hand to `on_news` what is added to the log from now on, by whomever it is."""
        if self.shared is None or self._unwatch is not None:
            return
        # Weak, as a store keeps what it calls: it would keep this conversation, and its lease.
        on_news = self._on_news

        def tell(found: Sequence[Event]) -> None:
            if on_news is not None and (take := on_news()) is not None:
                take(found)

        self._unwatch = self.shared.log.watch(tell, after=self.last_seq)

    def end_watch(self) -> None:
        """Hand over nothing more."""
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()

    def _tell_news(self, found: Sequence[Event]) -> None:
        on_news = self._on_news() if self._on_news is not None else None
        if on_news is not None:
            on_news(found)

    async def fold(self, snapshot: Snapshot) -> None:
        """Write a snapshot of everything so far, unless others have posted something meanwhile."""
        if self.in_memory:
            self.fold_sync(snapshot)
            return
        with suppress(StoreError):  # the log is complete without it
            last = await self.log.append([snapshot], after=self.last_seq)
            self._folded(snapshot, last)

    def fold_sync(self, snapshot: Snapshot) -> None:
        """`fold` for plain threads."""
        with suppress(StoreError):
            last = self.log.append_sync([snapshot], after=self.last_seq)
            self._folded(snapshot, last)

    def _folded(self, snapshot: Snapshot, last: int) -> None:
        self._written([snapshot], last)
        self.since_snapshot, self.in_snapshot = 0, snapshot.kept + len(snapshot.items)

    async def end_run(self, *, has_begun: bool = True) -> None:
        """Release the lease, unless something of a run that has begun could not be written yet."""
        self.end_watch()
        if self.shared is not None and (self.fenced or not has_begun or not self.has_unwritten):
            self.fenced = False
            await self.shared.release()

    def end_run_sync(self) -> None:
        """`end_run` for plain threads."""
        self.end_watch()
        if self.shared is not None and (self.fenced or not self.has_unwritten):
            self.fenced = False
            self.shared.release_sync()

    def begin_callbacks(self, after: int) -> None:
        """Events up to this number were there before: they are not called back."""
        if self._called_to is None:
            self._called_to = after

    def _is_called_first(self, seq: int) -> bool:
        """Whether an event was not called back yet; notes that it is now."""
        with state_lock:
            reached = self._called_to or 0
            called = self._called if self._called is not None else set()
            if seq <= reached or seq in called:
                return False
            called.add(seq)
            while reached + 1 in called:
                reached += 1
                called.discard(reached)
            self._called_to, self._called = reached, called
            return True

    def call_back(self, events: Sequence[Event]) -> None:
        """Call the callbacks with events that were found in the log."""
        if self._callbacks:
            self._not_called_back += events
            self.call_callbacks()

    def call_callbacks(self) -> None:
        """Call the callbacks with the durable events that they have not been called with yet."""
        while self._not_called_back:
            try:
                event = self._not_called_back.popleft()
            except IndexError:  # another thread was faster, and calls them
                return
            if self.shared is not None and not self._is_called_first(event.seq):
                continue
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
        if self.has_unwritten:
            was_raised = self.failure_was_raised
            try:
                await shielded(self.write_rest, within=within)
            except Exception as error:
                self._log_loss(error, was_raised)
        self.end_watch()
        if self.shared is not None:
            if self.shared.in_memory:
                self.shared.release_sync()
            elif self.shared.lease is not None:
                await shielded(self.shared.release, within=within)
            self.shared.log.close()
        elif self._log is not None:
            self._log.close()
        if self.owns_store and self._store is not None:
            await shielded(self._store.close, within=within)

    async def write_rest(self) -> None:
        """Write what is not written yet, unless the log has gone on since."""
        if not self.has_unwritten:
            return
        if self.shared is not None and self.shared.lease is None:
            lease = await self.shared.take_lease()
            await self.resolve()
            if lease.last_seq != self.last_seq:
                # It was derived from an earlier state of the log; or the lease was lost, and another one has recorded
                # what it found instead.
                self._unwritten, self._must_write = [], False
                return
        await self.write([])

    def close_sync(self) -> None:
        """`close` for plain threads."""
        if self.has_unwritten:
            was_raised = self.failure_was_raised
            try:
                if (
                    self.shared is None
                    or self.shared.lease is not None
                    or self.shared.take_lease_sync().last_seq == self.last_seq
                ):
                    self.write_sync([])
            except Exception as error:
                self._log_loss(error, was_raised)
        self.end_watch()
        if self.shared is not None:
            self.shared.release_sync()
            self.shared.log.close()
        elif self._log is not None:
            self._log.close()
        if self.owns_store and self._store is not None:
            self._store.close_sync()

    def _log_loss(self, error: Exception, was_raised: bool) -> None:
        if isinstance(error, (StoreHeld, StoreFenced)):
            return  # another one runs it, and has recorded what it found
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
        to_keep = batch if to_retry else earlier
        return _Write(self.last_seq, batch, to_keep, self._accepted, on_durable)

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
        self.last_seq = max(last, self.last_seq)
        self.since_snapshot += len(batch)
        self.failure_was_raised = False
        self._call_back_later(batch, last)
        if self._callbacks and call_back:
            self.call_callbacks()

    def _call_back_later(self, batch: Sequence[Event], last: int) -> None:
        if self._callbacks:
            first, moment = last - len(batch) + 1, time.time()
            self._not_called_back += [stamp(event, seq, moment) for seq, event in enumerate(batch, first)]

    def _failed(self, write: _Write, error: BaseException) -> None:
        if _wrote_nothing(error) or self.shared is None:
            self._retry(write.to_retry)
        else:
            # A cancel, or Ctrl-C, while the batch was on its way, or an answer that was lost: it may be in the
            # log or not. To write it again could double it, and to forget it could lose it.
            self._uncertain.append(write)

    def _retry(self, events: Sequence[Event]) -> None:
        if events:
            self._unwritten[:0] = events
            self._must_write = True

    async def resolve(self) -> None:
        """Find out what became of writes that are uncertain."""
        while self._uncertain:
            write = self._uncertain[0]
            assert self.shared is not None
            self._resolve(write, await self.shared.log.read(write.after))

    def _resolve_all_sync(self) -> None:
        while self._uncertain:
            write = self._uncertain[0]
            self._resolve(write, self.read(write.after))

    def _resolve(self, write: _Write, found: Sequence[Event]) -> None:
        """Find out, from the events in the log after its beginning, whether an uncertain write took place."""
        if not any(one is write for one in self._uncertain):
            return  # another caller has found out meanwhile
        self._uncertain = [one for one in self._uncertain if one is not write]
        start = _place_of(write.batch, found)
        if start is None:
            self._retry(write.to_retry)
            return
        self._take_in(found[:start])
        self._durable = max(self._durable, write.accepted)
        self._written(write.batch, found[start + len(write.batch) - 1].seq, write.on_durable)


def _place_of(batch: Sequence[Event], found: Sequence[Event]) -> int | None:
    """Return where in `found` this batch stands, in one piece; None if it does not."""
    # As they are written: what comes back from JSON is not always equal to what went in.
    wanted, there = list(map(encode_event, batch)), list(map(encode_event, found))
    for start in range(len(there) - len(wanted) + 1):
        if there[start : start + len(wanted)] == wanted:
            return start
    return None


def _wrote_nothing(error: BaseException) -> bool:
    """Whether it is known that a write which raised this did not take place."""
    return isinstance(error, StoreError) and not isinstance(error, StoreInDoubt)


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
