"""How a conversation continues where its log ends, even if the program ended in the middle of a run.

`store.replay` says what the events add up to; this turns it into the state of a conversation that can run
again, and into the events that the log still lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quiesce.agents.agent import Agent, as_handoff
from quiesce.agents.run import CallRecord
from quiesce.agents.store import Event, ItemAdded, Recovered, RunEnded, StatusChanged, recover
from quiesce.models import Item, ToolCall, ToolResult, Usage

from .history import History

_CRASHED = "the program ended in the middle of it"


@dataclass(slots=True)
class Restored:
    """What a conversation begins with.

    `unwritten` is what the log lacks: results of calls that can no longer give one, and the end of a run that
    has none.
    """

    history: History
    unwritten: list[Event]
    usage: Usage
    status: str
    last_seq: int


def restore(events: Sequence[Event]) -> Restored:
    """Return the state that the events of a log lead to."""
    found = recover(events)
    history = History()
    history.items = found.complete()
    history.inbox = list(found.queued.items()) or None
    history.unchecked = found.unchecked
    if found.awaiting_approval:
        _reopen_calls(history, found)
    status = found.status or "idle"
    unwritten: list[Event] = [ItemAdded(item=result) for result in found.results]
    if found.unfinished_run is not None:
        status = "paused"
        unwritten.append(RunEnded(run_id=found.unfinished_run, status="interrupted", reason=_CRASHED))
        unwritten.append(StatusChanged(status="paused", reason=_CRASHED))
    elif status == "finished" and found.queued:
        status = "idle"
    return Restored(history, unwritten, found.usage, status, found.last_seq)


def _reopen_calls(history: History, found: Recovered) -> None:
    """Take the results of the last block of calls out again: some of these calls wait for approval."""
    # `complete()` has put a result behind every call, in the order of the calls, so the two halves of the
    # block match.
    items = history.items
    results: list[ToolResult] = []
    while items and isinstance(last := items[-1], ToolResult):
        results.insert(0, last)
        items.pop()
    waiting = {call.call_id for call in found.awaiting_approval}
    calls: list[CallRecord] = []
    for call, result in zip(items[len(items) - len(results) :], results, strict=True):
        assert isinstance(call, ToolCall)
        calls.append(CallRecord(call, None if call.call_id in waiting else result))
    history.calls = calls
    if found.decided:
        history.decide(list(found.decided.values()))


def agent_after(agent: Agent[Any], items: Sequence[Item]) -> Agent[Any]:
    """Return whose turn it is after all handoffs among `items`, beginning with `agent`."""
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
