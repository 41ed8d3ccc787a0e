"""How a conversation continues where its log ends, even if the program ended in the middle of a run.

`store.replay` says what the events add up to; this turns it into the state of a conversation that can run
again, and into the events that the log still lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quiesce import Leftover, Reason, StopReport
from quiesce.agents.agent import Agent, as_handoff
from quiesce.agents.run import CallRecord
from quiesce.agents.store import Event, ItemAdded, Recovered, RunEnded, StatusChanged
from quiesce.models import Item, ToolCall, ToolResult

from .history import History

LOST = Reason("shutdown", "the program ended in the middle of it")


@dataclass(slots=True)
class Restored:
    """What a conversation begins with.

    - `unwritten` is what the log lacks: results of calls that can no longer give one, the results of calls that
      wait for approval no longer, and the end of a run that has none.
    - `lost`: what to say of that run: its calls that may have had an effect are left over.
    """

    history: History
    unwritten: list[Event]
    status: str
    found: Recovered
    lost: StopReport | None = None


def restore(found: Recovered, *, is_run_elsewhere: bool = False, reason: Reason = LOST) -> Restored:
    """Return the state that the events of a log lead to.

    `is_run_elsewhere`: its run goes on in another process, so nothing is made up. Otherwise `reason` says why
    the run that has no end did not go on.
    """
    history = History()
    history.inbox = list(found.queued.items()) or None
    history.unchecked = found.unchecked
    if is_run_elsewhere and found.unfinished_run is not None:
        history.items = found.items
        return Restored(history, [], "running", found)
    history.items = found.complete()
    if found.awaiting_approval:
        _reopen_calls(history, found)
    status = found.status or "idle"
    unwritten: list[Event] = [ItemAdded(item=result) for result in found.results]
    if history.calls and found.superseded:
        # The message was posted, by one who could not write more. The user has said something else.
        unwritten += history.give_up_calls()
        status = "idle"
    lost: StopReport | None = None
    if found.unfinished_run is not None:
        status = "paused"
        lost = report_of_lost(found, reason)
        unwritten.append(
            RunEnded(
                run_id=found.unfinished_run,
                status="interrupted",
                reason=reason.text,
                lost=True,
                report=lost.to_dict(),
            )
        )
        unwritten.append(StatusChanged(status="paused", reason=reason.text))
    elif found.queued and status in ("finished", "error"):
        status = "idle"
    if any(
        one is not other for one, other in zip(found.items, history.items[: found.in_snapshot], strict=False)
    ):
        found.in_snapshot = 0  # it was repaired where the snapshot ends, or before
    return Restored(history, unwritten, status, found, lost)


def report_of_lost(found: Recovered, reason: Reason) -> StopReport:
    """Return what is known of a run whose program has ended: the calls that may have had an effect are left over."""
    left = [
        Leftover("tool", f"{call.name} ({call.call_id})", "", "an unknown place: its program has ended")
        for call in found.unknown
    ]
    return StopReport(f"run of {found.agent}", reason, 0.0, left, 0)


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
