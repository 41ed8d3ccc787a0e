"""Repair of this package's own items (`quiesce.models`).

A block of tool calls is followed at once by one result for each, in the same order; ids are unique; arguments
are the text of a JSON object; no message is empty. Reasoning that its provider wants back is followed by what
the model made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec.structs import replace

from quiesce.models import AssistantMessage, Item, Note, Reasoning, ToolCall, ToolResult, UserMessage

from .pairs import Call, Pairing, Result
from .reading import valid_arguments

# A result that was taken out leaves (None, None): it ends a block of calls.
_Entry: TypeAlias = tuple[Item | None, Call | None]


def repair_items(items: Sequence[Item], missing: str) -> list[Item]:
    """Return a history that any model of `quiesce.models` accepts."""
    pairing = Pairing(missing, "all")
    entries: list[_Entry] = []
    block, in_block = 0, False
    for item in items:
        if isinstance(item, ToolCall):
            block += not in_block
            in_block = True
            if item.call_id and item.name:
                arguments, cut_off = valid_arguments(item.arguments)
                whole = item if arguments == item.arguments else replace(item, arguments=arguments)
                call = Call("tool", item.call_id, block, (item.name, arguments), cut_off)
                entries.append((whole, pairing.add_call(call)))
            continue
        in_block = False
        if isinstance(item, ToolResult):
            pairing.add_result(Result("tool", item.call_id, item, item.output))
            entries.append((None, None))
        elif not (isinstance(item, AssistantMessage) and not item.text):
            entries.append((item, None))
    pairing.settle()
    entries = [(item, call) for item, call in entries if call is None or not call.is_replay]
    return _with_results(_without_idle_reasoning(entries))


def _without_idle_reasoning(entries: list[_Entry]) -> list[_Entry]:
    """Drop reasoning that its provider accepts only with what the model made of it, where that is missing."""
    kept: list[_Entry] = []
    has_end = False
    # Backwards, so that what follows a piece of reasoning is known when it is met.
    for item, call in reversed(entries):
        if isinstance(item, Reasoning):
            if item.data and not has_end:
                continue
        elif item is not None:
            has_end = not isinstance(item, (UserMessage, Note))
        kept.append((item, call))
    return kept[::-1]


def _with_results(entries: list[_Entry]) -> list[Item]:
    repaired: list[Item] = []
    unanswered: list[Call] = []
    for item, call in entries:
        if call is None:
            repaired.extend(map(_result, unanswered))
            unanswered.clear()
        if isinstance(item, ToolCall) and call is not None:
            unanswered.append(call)
            repaired.append(replace(item, call_id=call.new_id) if call.new_id else item)
        elif item is not None:
            repaired.append(item)
    repaired.extend(map(_result, unanswered))
    return repaired


def _result(call: Call) -> ToolResult:
    if call.result is None:
        return ToolResult(call.id, call.filler, "interrupted")
    found: ToolResult = call.result.message
    return replace(found, call_id=call.new_id) if call.new_id else found
