"""How a conversation goes on where its log ends, also if the program ended in the middle of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quiesce.agents.agent import Agent, as_handoff
from quiesce.agents.run import CallRecord
from quiesce.agents.store import Event, ItemAdded, Recovered, RunEnded, StatusChanged, recover
from quiesce.models import Item, ToolCall, ToolResult, Usage


@dataclass(slots=True)
class Restored:
    """What a conversation begins with.

    `items` end with the calls of `calls`, if some of these wait for approval. `owed` is what the log lacks: results of calls that
    nobody can wait for any more, and the end of a run that had none.
    """

    items: list[Item] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    decisions: dict[str, tuple[bool, str]] = field(default_factory=dict)
    queued: dict[str, Item] = field(default_factory=dict)
    unchecked: list[Item] = field(default_factory=list)
    owed: list[Event] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    status: str = "idle"
    last_seq: int = 0


def restore(events: Sequence[Event]) -> Restored:
    """What the events of a log come to."""
    found = recover(events)
    restored = Restored(
        items=found.complete(),
        queued=found.queued,
        usage=found.usage,
        status=found.status or "idle",
        last_seq=found.last_seq,
    )
    restored.owed += [ItemAdded(item=result) for result in found.results]
    if found.awaiting_approval:
        _reopen(restored, found)
    if found.unfinished_run is not None:
        ended = "the program ended in the middle of it"
        restored.status = "paused"
        restored.owed += [
            RunEnded(run_id=found.unfinished_run, status="interrupted", reason=ended),
            StatusChanged(status="paused", reason=ended),
        ]
    elif restored.status == "finished" and restored.queued:
        restored.status = "idle"
    restored.unchecked = found.unchecked
    return restored


def _reopen(restored: Restored, found: Recovered) -> None:
    """Take the results of the last block of calls out again: some of these calls wait for approval."""
    items = restored.items
    results: list[ToolResult] = []
    while items and isinstance(last := items[-1], ToolResult):
        results.insert(0, last)
        items.pop()
    first = len(items) - len(results)
    waiting = {call.call_id for call in found.awaiting_approval}
    for call, result in zip(items[first:], results, strict=True):
        assert isinstance(call, ToolCall)
        record = CallRecord(call)
        if call.call_id not in waiting:
            record.result = result
        restored.calls.append(record)
    restored.decisions = {
        call_id: (decided.approved, decided.message) for call_id, decided in found.decided.items()
    }


def agent_after(agent: Agent[Any], items: Sequence[Item]) -> Agent[Any]:
    """Whose turn it is after all the handoffs among these items."""
    if not agent.handoffs:
        return agent
    answered = {item.call_id for item in items if isinstance(item, ToolResult) and item.outcome == "finished"}
    for item in items:
        if isinstance(item, ToolCall) and item.call_id in answered:
            for handoff in map(as_handoff, agent.handoffs):
                if handoff.tool_name == item.name:
                    agent = handoff.agent
                    break
    return agent
