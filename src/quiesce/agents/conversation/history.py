"""What a conversation knows between its runs: what was said and done, what waits to be said, and what waits for approval.

Everything here is touched under the lock of the conversations (`state_lock`), by its callers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING

from quiesce.agents.agent import UserError
from quiesce.agents.run import CallRecord
from quiesce.agents.store import ApprovalDecided, Event, ItemAdded, MessageQueued
from quiesce.models import AssistantMessage, Item, ToolResult
from quiesce.models.inner import as_items

if TYPE_CHECKING:
    from quiesce.agents.run import Engine

    from .event_writer import LogJournal
    from .restore import Restored

_NOT_DECIDED = "Not started: the user said something else before anybody had approved this call."


class History:
    """The state of a conversation, without its run."""

    __slots__ = ("calls", "decisions", "held", "inbox", "items", "unchecked")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.held: Sequence[Item] = ()  # of these, what waits for output guardrails: it is in no record yet
        self.calls: Sequence[
            CallRecord
        ] = ()  # of the last block of `items`, while some of them wait for approval
        self.decisions: dict[str, tuple[bool, str]] | None = None
        self.inbox: list[tuple[str, Item]] | None = None  # what no run has taken up
        self.unchecked: Sequence[Item] = ()  # what no guardrail has passed

    def take_up(self, restored: Restored) -> None:
        """Go on where a log ends."""
        self.items = restored.items
        self.calls = restored.calls
        self.decisions = restored.decisions or None
        self.inbox = list(restored.queued.items()) or None
        self.unchecked = restored.unchecked

    def recorded(self) -> list[Item]:
        """The items without those that wait for a guardrail."""
        if not self.held:
            return self.items
        return [item for item in self.items if not any(item is one for one in self.held)]

    # Messages

    def put(self, said: list[tuple[str, Item]]) -> None:
        """These wait for the next turn of the model."""
        if self.inbox is None:
            self.inbox = []
        self.inbox += said

    def take(self) -> list[Item]:
        """What waits; it does no longer."""
        said, self.inbox = self.inbox, None
        return [item for _, item in said or ()]

    def queued(self) -> list[Item]:
        """What waits."""
        return [item for _, item in self.inbox or ()]

    # Approvals

    def undecided(self) -> list[CallRecord]:
        """The calls that somebody has to decide on."""
        decided = self.decisions or {}
        return [r for r in self.calls if r.result is None and r.call.call_id not in decided]

    def chosen(self, call_id: str | None) -> list[str]:
        """The ids of the calls that a decision is about; UserError if that is none."""
        waiting = [record.call.call_id for record in self.undecided()]
        chosen = waiting if call_id is None else [one for one in waiting if one == call_id]
        if not chosen:
            which = "no call waits" if call_id is None else f"tool call {call_id!r} does not wait"
            raise UserError(f"{which} for approval: `pending_approvals` lists those that do")
        return chosen

    def decide(self, decided: Sequence[ApprovalDecided]) -> None:
        """Keep what was decided, for the next run; the first word counts."""
        if self.decisions is None:
            self.decisions = {}
        for one in decided:
            self.decisions.setdefault(one.call_id, (one.approved, one.message))

    def give_up_calls(self, told: str = _NOT_DECIDED) -> list[Event]:
        """Nobody waits for an approval any more; returns what to write down."""
        events: list[Event] = []
        for record in self.calls:
            if record.result is None:
                events.append(ItemAdded(item=record.finish(told, "not_started")))
            assert record.result is not None
            self.items.append(record.result)
        self.calls = ()
        self.decisions = None
        return events

    # Runs

    def has_work(self, status: str, *, asks: bool) -> bool:
        """Whether a run would do anything. `asks`: there is a function that decides on approvals."""
        if self.calls:
            return asks or not self.undecided()
        if self.inbox or self.unchecked:
            return True
        last = self.items[-1]
        if isinstance(last, AssistantMessage) and last.interrupted:
            return True
        # A run may also end with what a tool has returned.
        return not (status == "finished" and isinstance(last, (AssistantMessage, ToolResult)))

    def give_to(self, engine: Engine) -> list[ToolResult]:
        """Let a run go on from here; returns the results that are in the log, though not in the history."""
        transcript = engine.transcript
        transcript.given = list(self.items)
        transcript.held = list(self.held)
        if self.calls:
            transcript.calls = [_again(record) for record in self.calls]
            engine.approvals = dict(self.decisions or {})
        else:
            transcript.new += self.take()
        to_check = [*self.unchecked, *transcript.new]
        engine.checks_input = bool(to_check)
        engine.guardrail_input = guardrail_input(to_check)
        return [record.result for record in self.calls if record.result is not None]

    def take_from(self, engine: Engine) -> None:
        """A run has ended: this is how far it came."""
        transcript = engine.transcript
        self.items = transcript.given + transcript.new
        self.held = transcript.held or ()
        self.calls = transcript.calls
        waiting = {record.call.call_id for record in engine.pending_approvals}
        decided = {call_id: said for call_id, said in engine.approvals.items() if call_id in waiting}
        self.decisions = decided or None
        if engine.checks_input and not engine.input_passed:
            checked = engine.guardrail_input
            self.unchecked = as_items(checked)
        else:
            self.unchecked = ()


def messages_of(message: str | Item | Iterable[Item]) -> list[tuple[str, Item]]:
    """What a user says, each with an id."""
    return [
        (uuid.uuid4().hex, copy(item)) for item in as_items(message)
    ]  # an object of its own: it is known by its identity


def queued_events(journal: LogJournal, said: list[tuple[str, Item]]) -> list[Event]:
    """What to write down before any of it counts."""
    journal.message_ids.update((id(item), message_id) for message_id, item in said)
    return [MessageQueued(message_id=message_id, item=item) for message_id, item in said]


def guardrail_input(items: list[Item]) -> str | list[Item]:
    """What input guardrails are given: the text, if there is nothing else."""
    if len(items) == 1 and isinstance(content := getattr(items[0], "content", None), str):
        return content
    return items


def _again(record: CallRecord) -> CallRecord:
    """The same call for another run."""
    again = CallRecord(record.call)
    again.result = record.result
    return again
