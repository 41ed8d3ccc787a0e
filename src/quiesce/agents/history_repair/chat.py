"""Repair of OpenAI Chat Completions messages, as also llama.cpp, Ollama, vLLM and others take them.

What the API and the strict ones among its imitators insist on
- An assistant message with `tool_calls` is followed at once by one `tool` message for each; no other `tool` messages are taken.
- `tool_calls` is not empty, a call has an id, a type and a name, and its arguments are the text of a JSON object.
- The content of a message is not null, unless it is an assistant's with calls; an assistant says something or calls something.
- The `function_call` of old is followed by a `function` message of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .pairs import Call, Pairing, Result
from .reading import field, filled, is_empty, parts, text_in, valid_arguments, with_changes

_LEGACY = "function"


def repair_chat(messages: Sequence[Any], missing: str) -> list[Any]:
    """A history that Chat Completions takes."""
    pairing = Pairing(missing, "block", frozenset({_LEGACY}))
    kept: list[tuple[Any, list[tuple[Call, Any]]]] = []
    for number, message in enumerate(messages):
        role = field(message, "role")
        if role in ("tool", "function"):
            call_id = field(message, "tool_call_id" if role == "tool" else "name")
            if filled(call_id):
                pairing.result(Result(role, call_id, message, text_in(field(message, "content"))))
        elif role == "assistant":
            kept.append((message, _calls_of(message, number, pairing)))
        elif field(message, "content") is not None or role not in ("user", "system", "developer"):
            kept.append((message, []))
    pairing.settle()
    repaired: list[Any] = []
    for message, made in kept:
        whole = _assistant(message, made) if field(message, "role") == "assistant" else message
        if whole is not None:
            repaired.append(whole)
            repaired.extend(_result(call, missing) for call, _ in made if not call.replay)
    return repaired


def _calls_of(message: Any, number: int, pairing: Pairing) -> list[tuple[Call, Any]]:
    """The calls that can be kept, each with what stands for it in the message."""
    made: list[tuple[Call, Any]] = []
    for entry in parts(field(message, "tool_calls")):
        custom = field(entry, "custom")
        asked = custom if custom is not None else field(entry, "function")
        if not filled(field(entry, "id")) or not filled(field(asked, "name")):
            continue
        said, cut_off, whole = (field(asked, "input"), False, entry) if custom is not None else _whole(entry)
        call = Call("tool", field(entry, "id"), number, (field(asked, "name"), said), cut_off)
        made.append((pairing.call(call), whole))
    asked = field(message, "function_call")
    if filled(field(asked, "name")):
        said, cut_off = valid_arguments(field(asked, "arguments"))
        whole = asked if said == field(asked, "arguments") else with_changes(asked, arguments=said)
        call = Call(_LEGACY, field(asked, "name"), number, said, cut_off)
        made.append((pairing.call(call), whole))
    return made


def _whole(entry: Any) -> tuple[str, bool, Any]:
    asked = field(entry, "function")
    arguments, cut_off = valid_arguments(field(asked, "arguments"))
    if arguments != field(asked, "arguments"):
        entry = with_changes(entry, function=with_changes(asked, arguments=arguments))
    if not filled(field(entry, "type")):
        entry = with_changes(entry, type="function")
    return arguments, cut_off, entry


def _assistant(message: Any, made: list[tuple[Call, Any]]) -> Any | None:
    """The message with the calls that are kept, or None if nothing is left of it."""
    entries = [
        with_changes(entry, id=call.new_id) if call.new_id else entry
        for call, entry in made
        if call.kind == "tool" and not call.replay
    ]
    legacy = next((entry for call, entry in made if call.kind == _LEGACY), None)
    changes: dict[str, Any] = {}
    before = field(message, "tool_calls")
    if before is not None and not _same(entries, before):
        changes["tool_calls"] = entries or None
    if field(message, "function_call") is not None and legacy is not field(message, "function_call"):
        changes["function_call"] = legacy
    says_something = not is_empty(field(message, "content")) or any(
        field(message, name) for name in ("refusal", "audio")
    )
    if not (entries or legacy is not None or says_something):
        return None
    return with_changes(message, **changes) if changes else message


def _same(entries: list[Any], before: Any) -> bool:
    found = parts(before)
    return (
        bool(found)
        and len(found) == len(entries)
        and all(a is b for a, b in zip(found, entries, strict=True))
    )


def _result(call: Call, missing: str) -> Any:
    if call.result is None:
        text = call.text_if_missing(missing)
        if call.kind == _LEGACY:
            return {"role": "function", "name": call.call_id, "content": text}
        return {"role": "tool", "tool_call_id": call.id, "content": text}
    message = call.result.message
    if field(message, "content") is None:
        message = with_changes(message, content="")
    return with_changes(message, tool_call_id=call.new_id) if call.new_id else message
