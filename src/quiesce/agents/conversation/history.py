"""What a conversation knows between its runs: its items, queued messages, and calls that need approval.

A run gets all of it when it begins (`give_to`) and hands it back when it has ended (`take_from`). Callers
hold the lock of the conversations (`state_lock`) whenever they touch a history.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING

from quiesce.agents.agent import UserError
from quiesce.agents.run import CallRecord, Transcript
from quiesce.agents.store import ApprovalDecided, Event, ItemAdded
from quiesce.models import AssistantMessage, Item, ToolResult
from quiesce.models.inner import InputItem, as_items

if TYPE_CHECKING:
    from quiesce.agents.run import Engine

_SUPERSEDED = "Not started: the user sent another message before this call was approved."


class History:
    """The items of a conversation, and what they wait for.

    Empty parts take no memory: most conversations have none.
    """

    __slots__ = ("calls", "decisions", "held", "inbox", "items", "unchecked")

    def __init__(self) -> None:
        self.items: list[Item] = []
        #: Those of `items` that wait for output guardrails. They are not in the log yet.
        self.held: Sequence[Item] = ()
        #: The calls at the end of `items`, while at least one of them needs approval.
        self.calls: Sequence[CallRecord] = ()
        #: By call id: whether the call is approved, and what to tell the model if it is not.
        self.decisions: dict[str, tuple[bool, str]] | None = None
        #: Messages that no run has taken yet, each with its id.
        self.inbox: list[tuple[str, Item]] | None = None
        #: Input that has not passed the input guardrails.
        self.unchecked: Sequence[Item] = ()

    def recorded(self) -> list[Item]:
        """Return the items without those that wait for a guardrail."""
        if not self.held:
            return self.items
        return [item for item in self.items if not any(item is one for one in self.held)]

    # Messages

    def queue(self, messages: list[tuple[str, Item]]) -> None:
        """Let these messages wait for the next turn of the model."""
        if self.inbox is None:
            self.inbox = []
        self.inbox += messages

    def has_queued(self, messages: Sequence[tuple[str, Item]]) -> bool:
        """Whether all of these messages wait for the next turn of the model."""
        waiting = {message_id for message_id, _ in self.inbox or ()}
        return all(message_id in waiting for message_id, _ in messages)

    def queued(self) -> list[Item]:
        """Return the messages that no run has taken yet."""
        return [item for _, item in self.inbox or ()]

    def take_queued(self) -> list[Item]:
        """Empty the queue, and return what was in it."""
        messages = self.queued()
        self.inbox = None
        return messages

    # Approvals

    def undecided(self) -> list[CallRecord]:
        """Return the calls that need a decision."""
        decisions = self.decisions or {}
        return [call for call in self.calls if call.result is None and call.call.call_id not in decisions]

    def choose(self, call_id: str | None) -> list[str]:
        """Return the ids of the undecided calls that are meant: `call_id`, or all.

        UserError if there is none.
        """
        waiting = [record.call.call_id for record in self.undecided()]
        chosen = waiting if call_id is None else [one for one in waiting if one == call_id]
        if not chosen:
            which = "no call waits" if call_id is None else f"tool call {call_id!r} does not wait"
            raise UserError(f"{which} for approval: `pending_approvals` lists those that do")
        return chosen

    def decide(self, decisions: Sequence[ApprovalDecided]) -> None:
        """Keep these decisions for the next run. The first decision on a call counts."""
        if self.decisions is None:
            self.decisions = {}
        for one in decisions:
            self.decisions.setdefault(one.call_id, (one.approved, one.message))

    def give_up_calls(self, text: str = _SUPERSEDED) -> list[Event]:
        """Stop waiting for approvals: `text` becomes the result of each such call.

        Returns the events to write.
        """
        events: list[Event] = []
        for record in self.calls:
            # The results of the other calls of the block are in the log already, written when the run ended.
            if record.result is None:
                events.append(ItemAdded(item=record.finish(text, "not_started")))
            assert record.result is not None
            self.items.append(record.result)
        self.calls = ()
        self.decisions = None
        return events

    # Runs

    def has_work(self, status: str, *, can_ask: bool) -> bool:
        """Return whether a run would do anything.

        `can_ask`: the run can ask a function for missing approvals.
        """
        if self.calls:
            return can_ask or not self.undecided()
        if self.inbox or self.unchecked:
            return True
        last = self.items[-1]
        if isinstance(last, AssistantMessage) and last.interrupted:
            return True
        # The result of a tool can be the final answer too (`tool_use_behavior`), so look at the status as
        # well.
        return not (status == "finished" and isinstance(last, (AssistantMessage, ToolResult)))

    def begin_transcript(self) -> Transcript:
        """Return the transcript of a run that continues from here, with the messages that were queued."""
        # New records of the same calls, without how far an earlier run came with them.
        calls = [CallRecord(record.call, record.result) for record in self.calls]
        # Messages only without open calls: one between a call and its result would make the history invalid.
        return Transcript(list(self.items), () if calls else self.take_queued(), calls, self.held)

    def to_check(self, transcript: Transcript) -> str | list[Item] | None:
        """Return what the input guardrails of a run with this transcript look at; None if nothing is new."""
        items = [*self.unchecked, *transcript.new]
        return _guardrail_input(items) if items else None

    def recorded_results(self) -> list[ToolResult]:
        """Return the results that are in the log already, but not in `items`."""
        return [record.result for record in self.calls if record.result is not None]

    def take_from(self, engine: Engine) -> None:
        """Take over what the run of `engine`, which has ended, came to."""
        transcript = engine.transcript
        self.items = transcript.given + transcript.new
        self.held = transcript.awaits_output_guards or ()
        self.calls = transcript.calls
        # An approval is for one attempt: keep it only if the call is still waiting to be made.
        waiting = {record.call.call_id for record in engine.approvals.pending}
        decisions = engine.approvals.decisions
        self.decisions = {key: kept for key, kept in decisions.items() if key in waiting} or None
        self.unchecked = engine.unchecked_input


def messages_of(
    message: str | InputItem | Iterable[InputItem], message_id: str | None = None
) -> list[tuple[str, Item]]:
    """Return what a user says as items, each with an id: a new one, or one that is made from `message_id`."""
    if message_id is not None and not (isinstance(message_id, str) and message_id):
        raise ValueError(f"message_id is a str that is not empty, not {message_id!r}")
    # Copies: a queued message is recognised by its identity, and users may send one object twice.
    items = [copy(item) for item in as_items(message)]
    if message_id is None:
        return [(uuid.uuid4().hex, item) for item in items]
    return [(f"{message_id}/{place}" if place else message_id, item) for place, item in enumerate(items)]


def _guardrail_input(items: list[Item]) -> str | list[Item]:
    """Return what input guardrails are given: plain text where there is nothing else."""
    if len(items) == 1 and isinstance(content := getattr(items[0], "content", None), str):
        return content
    return items
