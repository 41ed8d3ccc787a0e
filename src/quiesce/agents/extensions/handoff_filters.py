"""Filters for `handoff(..., input_filter=)`."""

from __future__ import annotations

from quiesce.agents.agent import HandoffInputData
from quiesce.models import Item, Reasoning, ToolCall, ToolResult

__all__ = ["remove_all_tools"]


def remove_all_tools(handoff_input_data: HandoffInputData) -> HandoffInputData:
    """Leave out what was done with tools: calls, their results, and the reasoning, which belongs to the calls."""
    return handoff_input_data.clone(
        input_history=_without_tools(handoff_input_data.input_history),
        pre_handoff_items=_without_tools(handoff_input_data.pre_handoff_items),
        new_items=_without_tools(handoff_input_data.new_items),
    )


def _without_tools(items: tuple[Item, ...]) -> tuple[Item, ...]:
    return tuple(item for item in items if not isinstance(item, (ToolCall, ToolResult, Reasoning)))
