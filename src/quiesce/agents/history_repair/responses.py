"""Repair of OpenAI Responses items (the `input` list, or `to_input_list()` of an SDK that uses Responses).

What the API and its imitators insist on
- Every call that the client must answer has one output item, and every output a call. OpenAI pairs them by
  their ids; others want the outputs right after the block of calls, which suits both.
- A `reasoning` item is followed by what the model made of it: a message, a call, or another reasoning item
  that is.
- No two items have the same `id`.
- Arguments are the text of a JSON object.

Left alone: `item_reference` (what it refers to is on the server, so an output after one may belong to it),
what the server itself runs (`web_search_call`, `mcp_call`, ...), and items that this version does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .pairs import Call, Pairing, Result
from .reading import as_dict, field, filled, is_empty, text_in, valid_arguments, with_changes


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of call: how its items are named, and what replaces a missing output (None if nothing can)."""

    call: str
    output: str
    call_id: str = "call_id"
    output_id: str = "call_id"
    text: str = "output"
    fill: Callable[[str], dict[str, Any]] | None = lambda text: {"output": text}


_KINDS = (
    _Kind("function_call", "function_call_output"),
    _Kind("custom_tool_call", "custom_tool_call_output"),
    _Kind("local_shell_call", "local_shell_call_output", output_id="id"),
    _Kind(
        "shell_call",
        "shell_call_output",
        fill=lambda text: {
            "output": [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 130}}]
        },
    ),
    _Kind(
        "apply_patch_call",
        "apply_patch_call_output",
        fill=lambda text: {"status": "failed", "output": text},
    ),
    # Its output is a screenshot, and nothing else is accepted.
    _Kind("computer_call", "computer_call_output", fill=None),
    _Kind(
        "tool_search_call",
        "tool_search_output",
        fill=lambda text: {"tools": [], "execution": "client", "status": "incomplete"},
    ),
    _Kind(
        "mcp_approval_request",
        "mcp_approval_response",
        call_id="id",
        output_id="approval_request_id",
        text="reason",
        fill=lambda text: {"approve": False, "reason": text},
    ),
)
_BY_CALL = {kind.call: kind for kind in _KINDS}
_BY_OUTPUT = {kind.output: kind for kind in _KINDS}
_NAMED = frozenset({"function_call", "custom_tool_call", "mcp_approval_request"})


@dataclass(slots=True)
class _Entry:
    """An item, and its call if it is one."""

    item: Any
    call: Call | None = None
    is_kept: bool = True


def repair_responses(items: Sequence[Any], missing: str) -> list[Any]:
    """Return a history that the Responses API accepts."""
    pairing = Pairing(missing, "all")
    entries = _read(_without_repeated_ids(items), pairing)
    pairing.settle()
    for entry in entries:
        if entry.call is not None:
            answerable = entry.call.result is not None or _BY_CALL[entry.call.kind].fill is not None
            entry.is_kept = not entry.call.is_replay and answerable
    _drop_reasoning_without_end(entries)
    repaired: list[Any] = []
    unanswered: list[tuple[Call, Any]] = []
    for entry in entries:
        if entry.call is None:
            repaired.extend(_output(call, item) for call, item in unanswered)
            unanswered.clear()
        if entry.is_kept:
            if entry.call is not None:
                unanswered.append((entry.call, entry.item))
            repaired.append(_renamed(entry))
    repaired.extend(_output(call, item) for call, item in unanswered)
    return repaired


def _read(items: Sequence[Any], pairing: Pairing) -> list[_Entry]:
    """Return the items, with the outputs handed to the pairing.

    Such an output leaves an entry that is not kept: it ends a block of calls.
    """
    entries: list[_Entry] = []
    # An output of the local shell names its call by the id of the item, not by the id of the call.
    call_ids_of_shells = {
        field(item, "id"): field(item, "call_id")
        for item in items
        if field(item, "type") == "local_shell_call" and filled(field(item, "call_id"))
    }
    block, in_block, has_reference = 0, False, False
    # All calls, not only those so far: a result may stand before its call.
    known: set[tuple[str, str]] = {
        (kind.call, field(item, kind.call_id))
        for item in items
        if (kind := _BY_CALL.get(str(field(item, "type")))) and filled(field(item, kind.call_id))
    }
    for item in items:
        kind_of_call, kind_of_output = (
            table.get(str(field(item, "type"))) for table in (_BY_CALL, _BY_OUTPUT)
        )
        # The same types for a search on the server, which needs no answer of ours.
        is_server_search = field(item, "type") in ("tool_search_call", "tool_search_output") and (
            field(item, "execution") != "client"
        )
        if kind_of_call is not None and not is_server_search:
            if not in_block:
                block += 1
            in_block = True
            entries.append(_call(item, kind_of_call, block, pairing))
            continue
        in_block = False
        if kind_of_output is None or is_server_search:
            has_reference = has_reference or field(item, "type") == "item_reference"
            entries.append(_Entry(item, is_kept=_says_something(item)))
            continue
        call_id = field(item, kind_of_output.output_id) or field(item, "call_id")
        if kind_of_output.call == "local_shell_call":
            call_id = call_ids_of_shells.get(call_id, call_id)
        is_known = filled(call_id) and (kind_of_output.call, call_id) in known
        if is_known:
            text = text_in(field(item, kind_of_output.text))
            pairing.add_result(Result(kind_of_output.call, call_id, item, text))
        entries.append(_Entry(item, is_kept=not is_known and has_reference))
    return entries


def _call(item: Any, kind: _Kind, block: int, pairing: Pairing) -> _Entry:
    call_id = field(item, kind.call_id)
    if not filled(call_id) or (kind.call in _NAMED and not filled(field(item, "name"))):
        # Cut off before it was a call: it does not interrupt its block, but is left out of the history.
        return _Entry(item, Call(kind.call, "", block, None, is_replay=True))
    cut_off = False
    if kind.call in ("function_call", "mcp_approval_request"):
        arguments, cut_off = valid_arguments(field(item, "arguments"))
        if arguments != field(item, "arguments"):
            item = with_changes(item, arguments=arguments)
    elif kind.call == "custom_tool_call" and not isinstance(field(item, "input"), str):
        item = with_changes(item, input="")
    # Without what the server assigns anew when it sees the same call again.
    request = {name: value for name, value in as_dict(item).items() if name not in ("id", "status")}
    return _Entry(item, pairing.add_call(Call(kind.call, call_id, block, request, cut_off)))


def _says_something(item: Any) -> bool:
    role = field(item, "role")
    if role == "assistant" and field(item, "type") in (None, "message"):
        return not is_empty(field(item, "content"))
    return role not in ("user", "system", "developer") or field(item, "content") is not None


def _drop_reasoning_without_end(entries: list[_Entry]) -> None:
    # Backwards, so that what follows a piece of reasoning is known when it is met. Outputs are passed over:
    # they move to the end of their block.
    has_end = False
    for entry in reversed(entries):
        item = entry.item
        if field(item, "type") == "reasoning":
            entry.is_kept = entry.is_kept and has_end
        elif str(field(item, "type")) not in _BY_OUTPUT:
            is_of_model = field(item, "role") not in ("user", "system", "developer")
            has_end = entry.is_kept and is_of_model
        elif entry.is_kept:
            has_end = False


def _without_repeated_ids(items: Sequence[Any]) -> list[Any]:
    """Return items with distinct ids: the first keeps its own, a copy is dropped, another item loses it."""
    seen: dict[str, Any] = {}
    kept: list[Any] = []
    for item in items:
        item_id = field(item, "id")
        own = filled(item_id) and field(item, "type") not in (
            "item_reference",
            "mcp_approval_request",
            "local_shell_call_output",
        )
        if not own or item_id not in seen:
            kept.append(item)
            if own:
                seen[item_id] = item
        elif as_dict(item) != as_dict(seen[item_id]) and field(item, "type") != "reasoning":
            kept.append(with_changes(item, id=None))
    return kept


def _renamed(entry: _Entry) -> Any:
    if entry.call is None or entry.call.new_id is None:
        return entry.item
    return with_changes(entry.item, **{_BY_CALL[entry.call.kind].call_id: entry.call.new_id})


def _output(call: Call, asked: Any) -> Any:
    """Return the output of a call, which is in the item `asked`."""
    kind = _BY_CALL[call.kind]
    if call.result is not None:
        item = call.result.message
        # An output of the local shell may name its call by the item's id, and that id may belong to another
        # call in the repaired history.
        misnamed = kind.call == "local_shell_call" and field(item, "id") not in (call.id, field(asked, "id"))
        return with_changes(item, **{kind.output_id: call.id}) if call.new_id or misnamed else item
    assert kind.fill is not None
    return {"type": kind.output, kind.output_id: call.id, **kind.fill(call.filler)}
