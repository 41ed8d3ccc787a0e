"""The state of a conversation, from its events: a pure function, so that tests can try any prefix of a log.

The hard part is a log that stops in the middle: the program may have ended after any event.
- A tool that had started and has no result is "unknown": it may have done its work, so it is never called
  again automatically.
- A tool call that had not started is "not_started".
- A call that waits for approval still waits. The first decision on it counts, whoever made others.

Whether the program has ended, or the run still goes on elsewhere, is not in the log: the lease tells. So what is
made up here ("unknown", "not_started") is right only where no one holds that.

It makes no difference whether all events are given, or only every snapshot and what follows the last one
(`Log.load`). Turns are counted for `max_turns`: those of runs that were lost, since the user's last message.

`Recovered.complete()` is the transcript that a provider accepts: right behind each block of tool calls
exactly one result for each call, in the order of the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field

from quiesce.models import AssistantMessage, Item, Reasoning, ToolCall, ToolResult, Usage, UserMessage

from .events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ItemAdded,
    ItemPopped,
    ItemsCleared,
    MessageQueued,
    RunEnded,
    RunStarted,
    Snapshot,
    StatusChanged,
    ToolStarted,
    UsageAdded,
)

UNKNOWN_TEXT = "The program ended while this tool ran: its outcome is unknown. It was not repeated."
NOT_STARTED_TEXT = "Not started: the program ended before this tool began."


@dataclass(slots=True)
class Recovered:
    """How far a conversation came.

    - `items`: the transcript as it was recorded; calls may lack their results.
    - `unanswered`: the calls that lack theirs, in order. Of these, `awaiting_approval` still wait, with what
      was `decided` about them, if anything was; `results` has a made-up one ("unknown" or "not_started") for
      each of the others.
    - `queued`: the messages that no run has taken, by message id.
    - `unchecked`: input that may not have passed its guardrails.
    - `status`: the last one that was recorded, "" if none was.
    - `unfinished_run`: the id of the run that has not ended; None if there is none. `agent` is that which began it.
    - `unknown`: the calls of it that had started and have no result.
    - `turns`: how many turns of the model were taken by runs that were lost, or have not ended, since the last
      message.
    - `usage`: the sum.
    - `last_seq`: the number of the last event.
    - `superseded`: the user has sent a message while calls waited for approval, and no run went on.
    - `since_snapshot`: how many events follow the last snapshot; `in_snapshot`: with how many items of that the
      transcript still begins.
    """

    items: list[Item] = field(default_factory=list)
    unanswered: list[ToolCall] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    awaiting_approval: list[ToolCall] = field(default_factory=list)
    decided: dict[str, ApprovalDecided] = field(default_factory=dict)
    queued: dict[str, Item] = field(default_factory=dict)
    status: str = ""
    unfinished_run: str | None = None
    usage: Usage = field(default_factory=Usage)
    last_seq: int = 0
    unchecked: list[Item] = field(default_factory=list)
    agent: str = ""
    unknown: list[ToolCall] = field(default_factory=list)
    turns: int = 0
    superseded: bool = False
    since_snapshot: int = 0
    in_snapshot: int = 0

    def complete(self) -> list[Item]:
        """Return the transcript with a result for every call, including those that wait for approval."""
        given_up = [
            ToolResult(call.call_id, NOT_STARTED_TEXT, "not_started") for call in self.awaiting_approval
        ]
        return completed(self.items, [*self.results, *given_up])


def recover(events: Sequence[Event]) -> Recovered:
    """Return what the events of a log add up to. Events that this version does not know are ignored."""
    found = Recovered()
    entries: list[_Entry] = []
    waiting: set[str] = set()
    turns = _Turns()
    for event in events:
        found.last_seq = max(found.last_seq + 1, event.seq)
        found.since_snapshot += 1
        turns.see(event)
        match event:
            case ItemAdded(item=item, message_id=message_id, back=back):
                # Where it was said, which is not always where it was written.
                place = max(len(entries) - back, 0)
                entries.insert(place, _Entry(item))
                found.in_snapshot = min(found.in_snapshot, place)
                if isinstance(item, UserMessage):
                    found.unchecked.append(item)
                found.queued.pop(message_id, None)
                # A new call with the id of an old one does not inherit the decision on that.
                if isinstance(item, (ToolCall, ToolResult)):
                    waiting.discard(item.call_id)
                    found.decided.pop(item.call_id, None)
            case ItemPopped():
                del entries[-1:]
                found.in_snapshot = min(found.in_snapshot, len(entries))
            case ItemsCleared():
                entries.clear()
                found.in_snapshot = 0
            case ToolStarted(call_id=call_id):
                _start(entries, call_id)
            case ApprovalRequested(call_id=call_id):
                waiting.add(call_id)
                found.decided.pop(call_id, None)
                found.superseded = False
            case ApprovalDecided(call_id=call_id):
                found.decided.setdefault(call_id, event)
            case MessageQueued(message_id=message_id, item=item):
                found.queued[message_id] = item
                # One that is sent during a run waits for its next turn, or for the next run.
                found.superseded = found.superseded or (bool(waiting) and found.unfinished_run is None)
            case RunStarted(run_id=run_id, agent=agent):
                found.unfinished_run, found.agent = run_id, agent
            case Snapshot(items=items, kept=kept, status=status, usage=total):
                entries[kept:] = map(_Entry, items)
                found.status, found.usage = status, copy(total)
                found.since_snapshot, found.in_snapshot = 0, len(entries)
                found.unfinished_run = None
                for part in (found.queued, found.unchecked, found.decided, waiting):
                    part.clear()
            case RunEnded(run_id=run_id, status=ended):
                # A run gets this far only after its input has passed the guardrails.
                if ended in ("finished", "waiting_for_approval"):
                    found.unchecked.clear()
                if found.unfinished_run == run_id:
                    found.unfinished_run = None
            case StatusChanged(status=status):
                found.status = status
            case UsageAdded(usage=usage):
                found.usage.add(usage)
            case _:
                pass
    found.turns = turns.of_lost_runs()
    found.items = [entry.item for entry in entries]
    answers = _answers(found.items)
    for index, entry in enumerate(entries):
        call = entry.item
        if not isinstance(call, ToolCall) or index in answers:
            continue
        found.unanswered.append(call)
        if entry.started:
            found.unknown.append(call)
            found.results.append(ToolResult(call.call_id, UNKNOWN_TEXT, "unknown"))
        elif call.call_id in waiting:
            found.awaiting_approval.append(call)
        else:
            found.results.append(ToolResult(call.call_id, NOT_STARTED_TEXT, "not_started"))
    # A decision on a call that was made since, or that never came to the transcript, decides nothing.
    open_ids = {call.call_id for call in found.awaiting_approval}
    found.decided = {call_id: said for call_id, said in found.decided.items() if call_id in open_ids}
    return found


def items_of(events: Iterable[Event]) -> list[Item]:
    """Return only the items, as they were recorded."""
    items: list[Item] = []
    for event in events:
        if isinstance(event, ItemAdded):
            items.insert(max(len(items) - event.back, 0), event.item)
        elif isinstance(event, ItemPopped):
            del items[-1:]
        elif isinstance(event, ItemsCleared):
            items.clear()
        elif isinstance(event, Snapshot):
            items[event.kept :] = event.items
    return items


def completed(items: Sequence[Item], results: Iterable[ToolResult] = ()) -> list[Item]:
    """Return the items with every result right behind its block of calls.

    `results` are for calls that have none among the items. What the model said between two calls of a block
    goes before the block. A result without a call is left out, and so is a call without any result.
    """
    answers = _answers(items)
    spare: dict[str, deque[ToolResult]] = {}
    for extra in results:
        spare.setdefault(extra.call_id, deque()).append(extra)
    done: list[Item] = []
    block: list[tuple[ToolCall, ToolResult]] = []
    is_answered = False  # a result has come since the last call, so the next call begins another block

    def end_block() -> None:
        done.extend(call for call, _ in block)
        done.extend(result for _, result in block)
        block.clear()

    for index, item in enumerate(items):
        if isinstance(item, ToolResult):
            is_answered = True
            continue
        if is_answered or not isinstance(item, (ToolCall, AssistantMessage, Reasoning)):
            end_block()
        is_answered = False
        if isinstance(item, ToolCall):
            result = answers.get(index)
            if result is None and spare.get(item.call_id):
                result = spare[item.call_id].popleft()
            if result is not None:
                block.append((item, result))
        else:
            done.append(item)
    end_block()
    return done


class _Entry:
    """An item of the transcript; for a call, also whether its tool has started."""

    __slots__ = ("item", "started")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.started = False


class _Turns:
    """Counts the turns of the model in runs that did not end by themselves, since the last message of the user.

    A run that was lost before the model had answered counts as one turn: it may have asked.
    """

    __slots__ = ("_before", "_in_answer", "_of_run", "_runs")

    def __init__(self) -> None:
        self._before = 0  # by runs that were lost
        self._of_run = 0
        self._runs = False
        self._in_answer = False

    def see(self, event: Event) -> None:
        """Count what this event says."""
        match event:
            case ItemAdded(item=item, back=0):
                is_answer = isinstance(item, (AssistantMessage, Reasoning, ToolCall))
                self._of_run += is_answer and not self._in_answer
                self._in_answer = is_answer
            case MessageQueued():
                self._before = 0
            case RunStarted(turns=turns):
                if self._runs:  # the run before it was lost, and its end was never written
                    self._lose()
                self._before = max(self._before, turns)
                self._of_run, self._runs, self._in_answer = 0, True, False
            case RunEnded(lost=lost):
                if lost:
                    self._lose()
                else:
                    self._before = 0
                self._runs = False
            case Snapshot():
                self._before, self._runs = 0, False
            case _:
                pass

    def _lose(self) -> None:
        self._before += max(self._of_run, 1)

    def of_lost_runs(self) -> int:
        """Return the number of turns that a run which continues here has already taken."""
        return self._before + (max(self._of_run, 1) if self._runs else 0)


def _start(entries: list[_Entry], call_id: str) -> None:
    # Backwards: where a model has used an id twice, the newest call is meant.
    for entry in reversed(entries):
        if isinstance(entry.item, ToolCall) and entry.item.call_id == call_id:
            entry.started = True
            return


def _answers(items: Sequence[Item]) -> dict[int, ToolResult]:
    """Return the result of each call that has one, by the index of the call.

    Some models use an id twice: a result then belongs to a call of the newest block.
    """
    unanswered: dict[str, deque[int]] = {}
    answers: dict[int, ToolResult] = {}
    for index, item in enumerate(items):
        if isinstance(item, ToolCall):
            # A new block: what is still open under this id belongs to an earlier one, and stays unanswered.
            if index and not isinstance(items[index - 1], ToolCall):
                unanswered.pop(item.call_id, None)
            unanswered.setdefault(item.call_id, deque()).append(index)
        elif isinstance(item, ToolResult) and unanswered.get(item.call_id):
            answers[unanswered[item.call_id].popleft()] = item
    return answers
