"""Repair of this package's own items (`quiesce.models`).

A block of tool calls is followed at once by one result for each, in the same order; ids are unique; arguments are the text of a JSON
object; nobody says nothing. Reasoning that its provider wants back is followed by what the model made of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quiesce.models import AssistantMessage, Item, Note, Reasoning, ToolCall, ToolResult, UserMessage

from .pairs import Call, Pairing, Result
from .reading import valid_arguments


def repair_items(items: Sequence[Item], missing: str) -> list[Item]:
    """A history that any model of `quiesce.models` takes."""
    pairing = Pairing(missing, "all")
    kept: list[tuple[Item | None, Call | None]] = []
    block, in_block = 0, False
    for item in items:
        if isinstance(item, ToolCall):
            block += not in_block
            in_block = True
            if item.call_id and item.name:
                arguments, cut_off = valid_arguments(item.arguments)
                whole = item if arguments == item.arguments else replace(item, arguments=arguments)
                asks = (item.name, arguments)
                kept.append((whole, pairing.call(Call("tool", item.call_id, block, asks, cut_off))))
            continue
        in_block = False
        if isinstance(item, ToolResult):
            pairing.result(Result("tool", item.call_id, item, item.output))
            kept.append((None, None))
        elif not (isinstance(item, AssistantMessage) and not item.text):
            kept.append((item, None))
    pairing.settle()
    kept = [(item, call) for item, call in kept if call is None or not call.replay]
    return _arranged(_without_idle_reasoning(kept), missing)


def _without_idle_reasoning(
    kept: list[tuple[Item | None, Call | None]],
) -> list[tuple[Item | None, Call | None]]:
    """Without reasoning that its provider wants back, but only with what the model made of it."""
    led: list[tuple[Item | None, Call | None]] = []
    has_end = False
    for item, call in reversed(kept):
        if isinstance(item, Reasoning):
            if item.data and not has_end:
                continue
        elif item is not None:
            has_end = not isinstance(item, (UserMessage, Note))
        led.append((item, call))
    return led[::-1]


def _arranged(kept: list[tuple[Item | None, Call | None]], missing: str) -> list[Item]:
    repaired: list[Item] = []
    unanswered: list[Call] = []
    for item, call in kept:
        if call is None:
            repaired.extend(_result(answered, missing) for answered in unanswered)
            unanswered.clear()
        if isinstance(item, ToolCall) and call is not None:
            unanswered.append(call)
            repaired.append(replace(item, call_id=call.new_id) if call.new_id else item)
        elif item is not None:
            repaired.append(item)
    repaired.extend(_result(answered, missing) for answered in unanswered)
    return repaired


def _result(call: Call, missing: str) -> ToolResult:
    if call.result is None:
        return ToolResult(call.id, call.text_if_missing(missing), "interrupted")
    found: ToolResult = call.result.message
    return replace(found, call_id=call.new_id) if call.new_id else found
