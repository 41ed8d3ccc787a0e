"""Repair of OpenAI Chat Completions messages, which llama.cpp, Ollama, vLLM and others accept too.

What the API and its stricter imitators insist on
- An assistant message with `tool_calls` is followed at once by one `tool` message for each; no other `tool`
  messages are accepted.
- `tool_calls` is not empty; a call has an id, a type and a name; its arguments are the text of a JSON object.
- The content of a message is not null, except in an assistant message with calls. An assistant message has
  content or calls.
- The deprecated `function_call` is followed by a `function` message of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .pairs import Call, Pairing, Result
from .reading import are_same, field, filled, is_empty, parts, text_in, valid_arguments, with_changes

_LEGACY = "function"


def repair_chat(messages: Sequence[Any], missing: str) -> list[Any]:
    """Return a history that Chat Completions accepts."""
    # Ids need to differ within one answer only: servers accept the same id in two of them.
    pairing = Pairing(missing, "block", frozenset({_LEGACY}))
    kept: list[tuple[Any, list[tuple[Call, Any]]]] = []
    for number, message in enumerate(messages):
        role = field(message, "role")
        if role in ("tool", "function"):
            call_id = field(message, "tool_call_id" if role == "tool" else "name")
            if filled(call_id):
                pairing.add_result(Result(role, call_id, message, text_in(field(message, "content"))))
        elif role == "assistant":
            kept.append((message, _calls_of(message, number, pairing)))
        elif field(message, "content") is not None or role not in ("user", "system", "developer"):
            kept.append((message, []))
    pairing.settle()
    repaired: list[Any] = []
    for message, calls in kept:
        whole = _assistant(message, calls) if field(message, "role") == "assistant" else message
        if whole is not None:
            repaired.append(whole)
            repaired.extend(_result(call) for call, _ in calls if not call.is_replay)
    return repaired


def _calls_of(message: Any, number: int, pairing: Pairing) -> list[tuple[Call, Any]]:
    """Return the calls that can be kept, each with its entry in the message."""
    calls: list[tuple[Call, Any]] = []
    for entry in parts(field(message, "tool_calls")):
        custom = field(entry, "custom")
        called = custom if custom is not None else field(entry, "function")
        # A call that was cut off before it had a name cannot be answered by anything.
        if not filled(field(entry, "id")) or not filled(field(called, "name")):
            continue
        if custom is not None:
            arguments, cut_off, whole = field(custom, "input"), False, entry
        else:
            arguments, cut_off, whole = _with_valid_arguments(entry)
        call = Call("tool", field(entry, "id"), number, (field(called, "name"), arguments), cut_off)
        calls.append((pairing.add_call(call), whole))
    called = field(message, "function_call")
    if filled(field(called, "name")):
        arguments, cut_off = valid_arguments(field(called, "arguments"))
        is_valid = arguments == field(called, "arguments")
        whole = called if is_valid else with_changes(called, arguments=arguments)
        call = Call(_LEGACY, field(called, "name"), number, arguments, cut_off)
        calls.append((pairing.add_call(call), whole))
    return calls


def _with_valid_arguments(entry: Any) -> tuple[str, bool, Any]:
    function = field(entry, "function")
    arguments, cut_off = valid_arguments(field(function, "arguments"))
    if arguments != field(function, "arguments"):
        entry = with_changes(entry, function=with_changes(function, arguments=arguments))
    if not filled(field(entry, "type")):
        entry = with_changes(entry, type="function")
    return arguments, cut_off, entry


def _assistant(message: Any, calls: list[tuple[Call, Any]]) -> Any | None:
    """Return the message with the calls that are kept; None if nothing is left of it."""
    entries = [
        with_changes(entry, id=call.new_id) if call.new_id else entry
        for call, entry in calls
        if call.kind == "tool" and not call.is_replay
    ]
    legacy = next((entry for call, entry in calls if call.kind == _LEGACY), None)
    changes: dict[str, Any] = {}
    before = field(message, "tool_calls")
    if before is not None and not (entries and are_same(parts(before), entries)):
        changes["tool_calls"] = entries or None
    if field(message, "function_call") is not None and legacy is not field(message, "function_call"):
        changes["function_call"] = legacy
    says_something = not is_empty(field(message, "content")) or any(
        field(message, name) for name in ("refusal", "audio")
    )
    if not (entries or legacy is not None or says_something):
        return None
    return with_changes(message, **changes) if changes else message


def _result(call: Call) -> Any:
    if call.result is None:
        if call.kind == _LEGACY:
            return {"role": "function", "name": call.call_id, "content": call.filler}
        return {"role": "tool", "tool_call_id": call.id, "content": call.filler}
    message = call.result.message
    if field(message, "content") is None:
        message = with_changes(message, content="")
    return with_changes(message, tool_call_id=call.new_id) if call.new_id else message
