"""The record of a conversation: what happens in it goes to its log before anything is made of it.

Invariants
- Callbacks are told of each event once, when it is known to be durable.
- What could not be written (a store that failed, a cancel that came first) is owed: it goes with the next write, before anything newer.
- After a cancel it may be in doubt whether a write took place; then the log itself is asked before the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from quiesce.kernel._guarded import is_cancellation
from quiesce.models._items import Item, ToolCall, ToolResult
from quiesce.models._model import Usage

from ._log import (
    ApprovalRequested,
    Event,
    ItemAdded,
    Log,
    RunStarted,
    ToolStarted,
    UsageAdded,
    stamp,
)
from ._memory_store import MemoryLog

if TYPE_CHECKING:
    from ._conversation_restore import Restored
    from ._transcript import Transcript

logger = logging.getLogger("quiesce")

EventCallback: TypeAlias = Callable[[Event], object]


class LogJournal:
    """Writes to the log of a conversation."""

    __slots__ = (
        "_acknowledged",
        "_callbacks",
        "_counted",
        "_doubts",
        "_in_memory",
        "_owed",
        "_untold",
        "log",
        "message_ids",
        "usage",
    )

    def __init__(self, log: Log, callbacks: Sequence[EventCallback] = ()) -> None:
        self.log = log
        self.usage = Usage()  # of the whole conversation
        self.message_ids: dict[int, str] = {}  # by the identity of an item that was queued
        self._counted = Usage()
        self._callbacks = callbacks
        self._in_memory = type(log) is MemoryLog
        self._owed: list[Event] = []
        self._doubts: list[tuple[int, list[Event]]] = []  # batches, and the event that they come after
        self._acknowledged = 0
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
        """Write these with the next ones."""
        self._owed += events

    @property
    def writes_at_once(self) -> bool:
        """Whether nothing is ever waited for."""
        return self._in_memory

    def write_sync(self, events: Sequence[Event]) -> None:
        """Write these, in a plain thread; they are durable when this returns, and were not written if it raises."""
        owed = self._take_owed()
        try:
            last = self.log.append_sync([*owed, *events])
        except BaseException:
            self._owed[:0] = owed
            raise
        self._tell([*owed, *events], last)

    async def write_message(self, events: Sequence[Event]) -> None:
        """The same in an event loop."""
        if self._in_memory:
            self.write_sync(events)
            return
        owed = self._take_owed()
        try:
            last = await self.log.append([*owed, *events])
        except BaseException:
            self._owed[:0] = owed
            raise
        self._tell([*owed, *events], last)

    async def write(self, events: Sequence[Event], *, tell: bool = True) -> None:
        """Write what has happened in a run: if that fails now, it goes with the next write. Without `tell`: see `tell_now`."""
        if self._in_memory:
            self.write_at_once(events, tell=tell)
            return
        while self._doubts:
            await self._resolve()
        batch = [*self._take_owed(), *events]
        if not batch:
            return
        since = self._acknowledged
        try:
            last = await self.log.append(batch)
        except BaseException as error:
            if is_cancellation(error):
                self._doubts.append((since, batch))
            else:
                self._owed[:0] = batch
            raise
        self._tell(batch, last, now=tell)

    def write_at_once(self, events: Sequence[Event], *, tell: bool = True) -> None:
        """The same for a log in memory."""
        batch = [*self._take_owed(), *events] if self._owed else events
        if batch:
            try:
                last = self.log.append_sync(batch)
            except BaseException:
                self._owed[:0] = batch
                raise
            self._tell(batch, last, now=tell)

    async def close(self) -> None:
        """Write what a run still owes, if that is possible now, and no more."""
        if self._owes_items():
            try:
                await self.write([])
            except Exception as error:
                self._log_loss(error)
        self.log.close()

    def close_sync(self) -> None:
        """The same in a plain thread."""
        if self._owes_items() and not self._doubts:
            try:
                self.write_sync([])
            except Exception as error:
                self._log_loss(error)
        self.log.close()

    def _owes_items(self) -> bool:
        # What was only found missing when the log was read is found again by the next who reads it.
        return bool(self._doubts) or any(
            isinstance(event, ItemAdded) and event.run_id for event in self._owed
        )

    def _log_loss(self, error: Exception) -> None:
        name = self.log.conversation_id
        logger.error("the end of conversation %r could not be saved", name, exc_info=error)

    async def _resolve(self) -> None:
        """A cancel came while a batch was on its way: all of it is in the log, or none."""
        since, batch = self._doubts[0]
        found = [stamp(event, 0, 0.0) for event in await self.log.read(since)]
        del self._doubts[0]
        size = len(batch)
        for start in range(len(found) - size + 1):
            if found[start : start + size] == batch:
                self._tell(batch, since + start + size)
                return
        self._owed[:0] = batch

    def _take_owed(self) -> list[Event]:
        owed, self._owed = self._owed, []
        return owed

    def _tell(self, events: Sequence[Event], last: int, *, now: bool = True) -> None:
        self._acknowledged = max(last, self._acknowledged)
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

    __slots__ = ("_journal", "_transcript", "_written", "over", "run_id")

    def __init__(
        self, journal: LogJournal, run_id: str, agent: str, transcript: Transcript, written: frozenset[str]
    ) -> None:
        self._journal = journal
        self._transcript = transcript
        self._written = written  # calls that waited beside others, and whose results are in the log already
        self.run_id = run_id
        self.over = False
        journal.owe([RunStarted(run_id=run_id, agent=agent)])

    def events_of(self, items: Sequence[Item]) -> list[Event]:
        """What to write for items, and for what was spent since the last time."""
        ids, written = self._journal.message_ids, self._written
        events: list[Event] = [
            ItemAdded(item=item, run_id=self.run_id, message_id=ids.pop(id(item), "") if ids else "")
            for item in items
            if not (written and isinstance(item, ToolResult) and item.call_id in written)
        ]
        spent = self._journal.spent()
        if spent is not None:
            events.append(UsageAdded(usage=spent, run_id=self.run_id))
        return events

    async def load(self) -> list[Item]:
        """The conversation has the history."""
        return []

    async def add(self, items: list[Item]) -> None:
        """Keep these, and whatever else of the run is not in the log yet."""
        self._check()
        await self._journal.write(self.events_of(items or self._transcript.take_unsaved()))

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
