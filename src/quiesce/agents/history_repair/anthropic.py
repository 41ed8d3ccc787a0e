"""Repair of Anthropic Messages.

What the API insists on
- The `tool_use` blocks of an assistant message come last in it, and the next message is the user's and begins
  with one `tool_result` for each of them; no other `tool_result` is accepted. Ids are unique.
- The user begins, and roles alternate. (The API joins neighbours itself, but only after some of its checks.)
  No text block is blank, and no message empty.
- Thinking blocks come back as they were, signed. One without a signature was cut off, and one at the end of a
  message leads to nothing: both are rejected, and so dropped here.

Left alone: what the server runs (`server_tool_use` and its results), other roles, and blocks that this
version does not know. Messages on both sides of an unknown role are not joined.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .pairs import Call, Pairing, Result
from .reading import are_same, as_dict, field, filled, parts, text_in, with_changes

BEGINNING = "(The beginning of this conversation is left out.)"
_THINKING = ("thinking", "redacted_thinking")


@dataclass(slots=True)
class _Turn:
    """Neighbouring messages of one role, joined: their blocks, and for each block its call, if it is one."""

    role: str
    sources: list[Any]
    blocks: list[tuple[Any, Call | None]]

    @property
    def calls(self) -> list[Call]:
        """The calls in it that are kept."""
        return [call for _, call in self.blocks if call is not None and not call.is_replay]


def repair_anthropic(messages: Sequence[Any], missing: str) -> list[Any]:
    """Return a history that the Messages API accepts."""
    pairing = Pairing(missing, "all")
    turns = _turns(messages, pairing)
    pairing.settle()
    repaired: list[_Turn] = []
    unanswered: list[Call] = []
    for turn in turns:
        results: list[tuple[Any, Call | None]] = [(_result(call), None) for call in unanswered]
        if results and turn.role != "user":
            repaired.append(_Turn("user", [], results))
        elif results:
            turn.blocks[:0] = results
        unanswered = turn.calls
        if turn.role == "assistant":
            turn.blocks = _assistant_blocks(turn.blocks)
        if turn.blocks or turn.role == "other":
            _join(repaired, turn)
    if unanswered:
        repaired.append(_Turn("user", [], [(_result(call), None) for call in unanswered]))
    _begin_with_the_user(repaired)
    return [_message(turn) for turn in repaired]


def _turns(messages: Sequence[Any], pairing: Pairing) -> list[_Turn]:
    turns: list[_Turn] = []
    for message in messages:
        role = field(message, "role")
        if role not in ("user", "assistant"):
            if role != "system" or field(message, "content") is not None:
                turns.append(_Turn("other", [message], []))
            continue
        blocks = _blocks(field(message, "content"))
        turn = turns[-1] if turns else None
        if turn is None or turn.role != role or _is_another_answer(turn, blocks):
            turn = _Turn(role, [], [])
            turns.append(turn)
        turn.sources.append(message)
        for block in blocks:
            _sort_in(block, turn, len(turns), pairing)
    return turns


def _blocks(content: object) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return parts(content)


def _is_another_answer(last: _Turn, blocks: list[Any]) -> bool:
    """Return whether these blocks begin another answer of the model, although no user message is between.

    It has thought again after its calls, so their results stood between the two, and are lost.
    """
    return bool(last.calls) and any(field(block, "type") in _THINKING for block in blocks)


def _sort_in(block: Any, turn: _Turn, number: int, pairing: Pairing) -> None:
    kind = field(block, "type")
    if kind == "tool_result":
        if filled(field(block, "tool_use_id")):
            text = text_in(field(block, "content"))
            pairing.add_result(Result("tool", field(block, "tool_use_id"), block, text))
    elif kind == "tool_use":
        if turn.role == "assistant" and filled(field(block, "id")) and filled(field(block, "name")):
            block, cut_off = _with_valid_input(block)
            request = (field(block, "name"), field(block, "input"))
            call = pairing.add_call(Call("tool", field(block, "id"), number, request, cut_off))
            turn.blocks.append((block, call))
    elif not _is_rejected(block):
        turn.blocks.append((block, None))


def _is_rejected(block: Any) -> bool:
    kind = field(block, "type")
    unsigned = kind == "thinking" and not field(block, "signature")
    return unsigned or (kind == "redacted_thinking" and not field(block, "data")) or _is_blank(block)


def _is_blank(block: Any) -> bool:
    return field(block, "type") == "text" and not str(field(block, "text") or "").strip()


def _with_valid_input(block: Any) -> tuple[Any, bool]:
    """Return a `tool_use` whose input is an object, and whether a cut-off input had to be dropped."""
    found = field(block, "input")
    if isinstance(found, Mapping):
        return block, False
    try:
        whole = json.loads(found) if isinstance(found, str) and found.strip() else {}
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict):
        return with_changes(block, input=whole), False
    return with_changes(block, input={}), True


def _assistant_blocks(blocks: list[tuple[Any, Call | None]]) -> list[tuple[Any, Call | None]]:
    """Return the blocks that are kept: calls under their new ids, and no thinking that leads to nothing."""
    # Calls go last only where text follows one: other blocks between them, such as those of the server's own
    # tools, stay where they are.
    kept = [(block, call) for block, call in blocks if call is None or not call.is_replay]
    first = next((number for number, (_, call) in enumerate(kept) if call is not None), len(kept))
    if any(field(block, "type") == "text" for block, _ in kept[first:]):
        kept.sort(key=lambda pair: pair[1] is not None)
    while kept and field(kept[-1][0], "type") in _THINKING:
        kept.pop()
    return [
        (with_changes(block, id=call.new_id) if call is not None and call.new_id else block, call)
        for block, call in kept
    ]


def _join(repaired: list[_Turn], turn: _Turn) -> None:
    last = repaired[-1] if repaired else None
    if last is not None and last.role == turn.role and turn.role != "other":
        last.sources += turn.sources
        last.blocks += turn.blocks
    else:
        repaired.append(turn)


def _begin_with_the_user(repaired: list[_Turn]) -> None:
    # A history that was cut at the front may begin in the middle: the text says so, instead of an invented
    # message.
    first = next((number for number, turn in enumerate(repaired) if turn.role != "other"), None)
    if first is not None and repaired[first].role == "assistant":
        repaired.insert(first, _Turn("other", [{"role": "user", "content": BEGINNING}], []))


def _message(turn: _Turn) -> Any:
    blocks = [block for block, _ in turn.blocks]
    for source in turn.sources:
        # The very object where nothing has changed: a valid history comes back as it was.
        if turn.role == "other" or _has_blocks(source, blocks):
            return source
    if len(turn.sources) == 1 and isinstance(turn.sources[0], Mapping):
        return with_changes(turn.sources[0], content=blocks)
    return {"role": turn.role, "content": blocks}


def _has_blocks(message: Any, blocks: list[Any]) -> bool:
    content = field(message, "content")
    return blocks == _blocks(content) if isinstance(content, str) else are_same(parts(content), blocks)


def _result(call: Call) -> Any:
    if call.result is None:
        return {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": call.filler,
            "is_error": True,
        }
    block = call.result.message
    content = field(block, "content")
    kept = [part for part in parts(content) if not _is_blank(part)]
    if len(kept) != len(parts(content)):
        block = with_changes(block, content=kept)
    elif content is None and "content" in as_dict(block):
        block = with_changes(block, content="")
    return with_changes(block, tool_use_id=call.new_id) if call.new_id else block
