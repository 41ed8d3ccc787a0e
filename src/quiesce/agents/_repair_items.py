"""Repair of this package's own items (`quiesce.models`).

A block of tool calls is followed at once by one result for each, in the same order; ids are unique; arguments are the text of a JSON
object; nobody says nothing. Reasoning that its provider wants back is followed by what the model made of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..models._items import AssistantMessage, Item, Note, Reasoning, ToolCall, ToolResult, UserMessage
from ._repair_pairs import Call, Pairing, Result
from ._repair_reading import valid_arguments


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
    return _arranged([pair for pair in kept if pair[1] is None or not pair[1].replay], missing)


def _arranged(kept: list[tuple[Item | None, Call | None]], missing: str) -> list[Item]:
    repaired: list[Item] = []
    unanswered: list[Call] = []
    for number, (item, call) in enumerate(kept):
        if call is None:
            repaired.extend(_result(answered, missing) for answered in unanswered)
            unanswered.clear()
        if isinstance(item, ToolCall) and call is not None:
            unanswered.append(call)
            repaired.append(replace(item, call_id=call.new_id) if call.new_id else item)
        elif item is not None and not (isinstance(item, Reasoning) and item.data and _has_no_end(kept, number)):
            repaired.append(item)
    repaired.extend(_result(answered, missing) for answered in unanswered)
    return repaired


def _has_no_end(kept: list[tuple[Item | None, Call | None]], number: int) -> bool:
    following = (item for item, _ in kept[number + 1 :] if item is not None)
    end = next((item for item in following if not isinstance(item, Reasoning)), None)
    return end is None or isinstance(end, (UserMessage, Note))


def _result(call: Call, missing: str) -> ToolResult:
    if call.result is None:
        return ToolResult(call.id, call.text_if_missing(missing), "interrupted")
    found: ToolResult = call.result.message
    return replace(found, call_id=call.new_id) if call.new_id else found
