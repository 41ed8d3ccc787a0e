"""The record of a conversation: what happens in it goes to its log before anything is made of it.

Invariants
- Callbacks are told of each event once, when it is known to be durable.
- What could not be written (a store that failed, a cancel that came first) is owed: it goes with the next write, before anything newer.
- After a cancel it may be in doubt whether a write took place; then the log itself is asked before the next one. It is read through a
  second log: reading moves the position of a log, and the one that writes would not notice a second writer any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from quiesce import shielded
from quiesce._safe.printed import logger
from quiesce.agents.store import (
    ApprovalRequested,
    Event,
    ItemAdded,
    Log,
    MemoryLog,
    RunStarted,
    Store,
    StoreError,
    ToolStarted,
    UsageAdded,
    stamp,
)
from quiesce.models import Item, ToolCall, ToolResult, Usage

if TYPE_CHECKING:
    from quiesce.agents.run import CallRecord, Transcript

    from .restore import Restored


EventCallback: TypeAlias = Callable[[Event], object]


class _Doubt(NamedTuple):
    """A write of which nobody knows whether it took place: all of it is in the log, or none."""

    since: int  # the event that it comes after
    batch: list[Event]
    else_owed: list[Event]  # if it did not
    then: Callable[[], None] | None  # if it did


class LogJournal:
    """Writes to the log of a conversation."""

    __slots__ = (
        "_acknowledged",
        "_callbacks",
        "_counted",
        "_doubts",
        "_due",
        "_in_memory",
        "_owed",
        "_store",
        "_untold",
        "failure_is_told",
        "log",
        "message_ids",
        "usage",
    )

    def __init__(self, store: Store, log: Log, callbacks: Sequence[EventCallback] = ()) -> None:
        self._store = store
        self.log = log
        self.usage = Usage()  # of the whole conversation
        self.message_ids: dict[int, str] = {}  # by the identity of an item that was queued
        self._counted = Usage()
        self._callbacks = callbacks
        self._in_memory = type(log) is MemoryLog
        self._owed: list[Event] = []
        self._due = (
            False  # whether something is owed that the next who reads the log would not find out by itself
        )
        self._doubts: list[_Doubt] = []
        self._acknowledged = 0
        self.failure_is_told = False  # a caller has had the error of the store as it is
        self._untold: list[Event] = []

    # For the conversation

    def take_up(self, restored: Restored) -> None:
        """Go on where the log ends."""
        self.usage = restored.usage
        self._counted = _copy(restored.usage)
        self._owed += restored.owed
        self._acknowledged = restored.last_seq
        self.message_ids = {id(item): message_id for message_id, item in restored.queued.items()}

    def owe(self, events: Sequence[Event]) -> None:
        """Write these with the next ones, or at the end."""
        self._owed += events
        self._due = True

    @property
    def writes_at_once(self) -> bool:
        """Whether nothing is ever waited for."""
        return self._in_memory

    def read(self, after: int = 0) -> list[Event]:
        """What is in the log, in a plain thread."""
        return self._store.open(self.log.conversation_id).read_sync(after)

    def write_sync(self, events: Sequence[Event], *, then: Callable[[], None] | None = None) -> None:
        """Write these, in a plain thread, and do `then`; they are durable when this returns, and were not written if it fails."""
        while self._doubts:
            doubt = self._doubts[0]
            self._resolve(doubt, self.read(doubt.since))
        owed = self._take_owed()
        batch, since = [*owed, *events], self._acknowledged
        if batch:
            try:
                last = self.log.append_sync(batch)
            except BaseException as error:
                self._not_written(error, _Doubt(since, batch, owed, then))
                self.failure_is_told = isinstance(error, StoreError)
                raise
            if then is not None:
                then()
            self._tell(batch, last)

    async def write_message(self, events: Sequence[Event], then: Callable[[], None]) -> None:
        """The same in an event loop. Cancelled meanwhile, it finds out first whether they were written."""
        if self._in_memory:
            self.write_sync(events, then=then)
            return
        await self._resolve_all()
        owed = self._take_owed()
        batch, since = [*owed, *events], self._acknowledged
        try:
            last = await self.log.append(batch)
        except BaseException as error:
            self._not_written(error, _Doubt(since, batch, owed, then))
            self.failure_is_told = isinstance(error, StoreError)
            if self._doubts:
                try:
                    await shielded(self._resolve_all)
                except Exception as failure:  # then the next write finds out
                    error.add_note(f"whether the message was kept is not known yet: {failure!r}")
            raise
        then()
        self._tell(batch, last)

    async def write(self, events: Sequence[Event], *, tell: bool = True) -> None:
        """Write what has happened in a run: if that fails now, it goes with the next write. Without `tell`: see `tell_now`."""
        if self._in_memory:
            self.write_at_once(events, tell=tell)
            return
        await self._resolve_all()
        batch = [*self._take_owed(), *events]
        if not batch:
            return
        since = self._acknowledged
        try:
            last = await self.log.append(batch)
        except BaseException as error:
            self._not_written(error, _Doubt(since, batch, batch, None))
            raise
        self._tell(batch, last, now=tell)

    def write_at_once(self, events: Sequence[Event], *, tell: bool = True) -> None:
        """The same for a log in memory."""
        batch = [*self._take_owed(), *events] if self._owed else events
        if batch:
            try:
                last = self.log.append_sync(batch)
            except BaseException:
                self._owe_again(batch)
                raise
            self._tell(batch, last, now=tell)

    async def close(self, within: float | None) -> None:
        """Write what is still owed, if that is possible now, and within so many seconds, and no more."""
        if self._due or self._doubts:
            told = self.failure_is_told
            try:
                await shielded(self.write, [], within=within)
            except Exception as error:
                self._log_loss(error, told)
        self.log.close()

    def close_sync(self) -> None:
        """The same in a plain thread."""
        if self._due or self._doubts:
            told = self.failure_is_told
            try:
                self.write_sync([])
            except Exception as error:
                self._log_loss(error, told)
        self.log.close()

    def _log_loss(self, error: Exception, told: bool) -> None:
        if not (told and isinstance(error, StoreError)):
            name = self.log.conversation_id
            logger.error("the end of conversation %r could not be saved", name, exc_info=error)

    def _not_written(self, error: BaseException, doubt: _Doubt) -> None:
        if isinstance(error, Exception):
            self._owe_again(doubt.else_owed)
        else:  # a cancel, or Ctrl-C, while the batch was on its way
            self._doubts.append(doubt)

    async def _resolve_all(self) -> None:
        while self._doubts:
            doubt = self._doubts[0]
            self._resolve(doubt, await self._store.open(self.log.conversation_id).read(doubt.since))

    def _resolve(self, doubt: _Doubt, since_then: Sequence[Event]) -> None:
        if not any(one is doubt for one in self._doubts):  # somebody else has asked at the same time
            return
        self._doubts = [one for one in self._doubts if one is not doubt]
        found, batch = [stamp(event, 0, 0.0) for event in since_then], doubt.batch
        size = len(batch)
        for start in range(len(found) - size + 1):
            if found[start : start + size] == batch:
                if doubt.then is not None:
                    doubt.then()
                self._tell(batch, doubt.since + start + size)
                return
        self._owe_again(doubt.else_owed)

    def _take_owed(self) -> list[Event]:
        owed, self._owed = self._owed, []
        self._due = False
        return owed

    def _owe_again(self, events: Sequence[Event]) -> None:
        if events:
            self._owed[:0] = events
            self._due = True

    def _tell(self, events: Sequence[Event], last: int, *, now: bool = True) -> None:
        self._acknowledged = max(last, self._acknowledged)
        self.failure_is_told = False
        if self._callbacks:
            first, moment = last - len(events) + 1, time.time()
            self._untold += [stamp(event, seq, moment) for seq, event in enumerate(events, first)]
            if now:
                self.tell_now()

    def tell_now(self) -> None:
        """Tell the callbacks what they have not been told yet."""
        while self._untold:
            try:
                stamped = self._untold.pop(0)
            except IndexError:  # another thread tells it
                return
            for callback in self._callbacks:
                try:
                    callback(stamped)
                except Exception:
                    logger.exception(
                        "a callback of conversation %r failed: %r", self.log.conversation_id, callback
                    )

    def spent(self) -> Usage | None:
        """What was spent since the last time; None if nothing was."""
        if self.usage == self._counted:
            return None
        spent = _difference(self.usage, self._counted)
        self._counted = _copy(self.usage)
        return spent


class RunJournal:
    """What the engine of one run writes down. When the run is over it refuses: what comes late does not get into the history."""

    __slots__ = ("_carried", "_journal", "_transcript", "_written", "over", "run_id")

    def __init__(
        self,
        journal: LogJournal,
        run_id: str,
        agent: str,
        transcript: Transcript,
        written: Sequence[ToolResult],
    ) -> None:
        self._journal = journal
        self._transcript = transcript
        self._written = written  # of calls beside others that wait: these results are in the log already
        self._carried = list(transcript.calls)  # that an earlier run has asked for approval of
        self.run_id = run_id
        self.over = False
        journal.owe([RunStarted(run_id=run_id, agent=agent)])

    def events_of(self, items: Sequence[Item], late: Sequence[tuple[Item, int]] = ()) -> list[Event]:
        """What to write for items, for those that come late, and for what was spent since the last time."""
        ids, written = self._journal.message_ids, self._written
        events: list[Event] = [
            ItemAdded(item=item, run_id=self.run_id, message_id=ids.pop(id(item), "") if ids else "")
            for item in items
            if not any(item is one for one in written)
        ]
        events += [ItemAdded(item=item, run_id=self.run_id, back=back) for item, back in late]
        spent = self._journal.spent()
        if spent is not None:
            events.append(UsageAdded(usage=spent, run_id=self.run_id))
        return events

    def events_of_waiting(self, unasked: Sequence[CallRecord]) -> list[Event]:
        """What to write while calls of the last turn wait: how those beside them have ended, and which nobody had come to ask for."""
        results: list[Item] = [one.result for one in self._transcript.calls if one.result is not None]
        return [
            *self.events_of(results),
            *(ApprovalRequested(call_id=one.call.call_id) for one in unasked if one not in self._carried),
        ]

    async def load(self) -> list[Item]:
        """The conversation has the history."""
        return []

    async def add(self, items: list[Item], late: Sequence[tuple[Item, int]] = ()) -> None:
        """Keep these, and whatever else of the run is not in the log yet."""
        self._check()
        await self._journal.write(self.events_of(items or self._transcript.take_unsaved(), late))

    async def tool_starting(self, call: ToolCall) -> None:
        """From here on the outcome of this call is unknown until it has a result."""
        self._check()
        await self._journal.write([ToolStarted(call_id=call.call_id, name=call.name)])

    async def approval_requested(self, call: ToolCall) -> None:
        """This call waits for somebody's decision."""
        self._check()
        await self._journal.write([ApprovalRequested(call_id=call.call_id)])

    def _check(self) -> None:
        if self.over:
            raise RuntimeError(
                f"run {self.run_id} was stopped and settled, and something in it did not heed that"
            )


def _difference(now: Usage, before: Usage) -> Usage:
    return Usage(
        now.requests - before.requests,
        now.input_tokens - before.input_tokens,
        now.output_tokens - before.output_tokens,
        now.cached_input_tokens - before.cached_input_tokens,
        now.reasoning_tokens - before.reasoning_tokens,
        now.unreported - before.unreported,
    )


def _copy(usage: Usage) -> Usage:
    return _difference(usage, _NOTHING)


_NOTHING = Usage()
