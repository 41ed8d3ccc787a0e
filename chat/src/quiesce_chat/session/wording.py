"""The sentences of a chat: what a stop did, how a call ended, what was said so far."""

from __future__ import annotations

from collections.abc import Sequence

from quiesce import StopReport
from quiesce.inner import shortened, shown
from quiesce.models import AssistantMessage, Item, Note, ToolCall, ToolResult, UserMessage
from quiesce_chat.tools import title_of

_OUTCOMES = {
    "finished": "",
    "failed": "failed",
    "rejected": "not allowed",
    "interrupted": "stopped",
    "not_started": "not started",
    "still_running": "still running",
    "unknown": "outcome unknown",
}


def outcome_in_words(outcome: str) -> str:
    """How a call ended, in words; empty if it simply returned."""
    return _OUTCOMES.get(outcome, outcome)


def seconds(value: float) -> str:
    """A duration with its unit, rounded so that it can be read at a glance."""
    if value < 0.1:
        return f"{value * 1000:.0f} ms"
    if value < 10:
        return f"{value:.1f} s"
    if value < 100:
        return f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def stop_line(stopped: Sequence[str], report: StopReport) -> str:
    """One line that says what was stopped and how long it took, and one more for each thing that is left."""
    what = ", ".join(stopped) or "between two steps"
    line = f"stopped {what} in {seconds(report.elapsed)}: "
    left = [f"  left: {leftover.kind} {leftover.name!r}, at {leftover.stuck_at}" for leftover in report.left]
    unseen = [f"  unseen: {unseen}" for unseen in report.unseen]
    line += f"{len(left)} left" if left else "nothing left"
    return "\n".join([line + ", as far as can be seen" if unseen else line, *left, *unseen])


def history(items: Sequence[Item], width: int) -> str:
    """The conversation so far, one shortened line per message or call."""
    calls = {item.call_id: item for item in items if isinstance(item, ToolCall)}
    lines = list[str]()
    for item in items:
        if isinstance(item, UserMessage):
            lines.append(f"› {text_of(item)}")
        elif isinstance(item, AssistantMessage):
            lines.append(f"  {item.text}" + (" [stopped here]" if item.interrupted else ""))
        elif isinstance(item, Note):
            lines.append(f"  ({item.text})")
        elif isinstance(item, ToolResult):
            call = calls.get(item.call_id)
            name, title = (call.name, title_of(call.name, call.arguments)) if call else ("tool", item.call_id)
            how = outcome_in_words(item.outcome) or shortened(item.output, 40) or "no output"
            lines.append(f"  · {name} {shortened(title, max(width // 2, 20))} → {how}")
    return (
        "\n".join(line[:2] + shortened(shown(line[2:]), max(width - 2, 20)) for line in lines)
        or "The conversation is empty."
    )


def text_of(item: UserMessage) -> str:
    """The text of a user's message, with a placeholder for each picture."""
    content = item.content
    return (
        content
        if isinstance(content, str)
        else "".join(getattr(part, "text", "[picture]") for part in content)
    )
