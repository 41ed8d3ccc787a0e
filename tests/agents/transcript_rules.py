"""What each provider checks of a history before it reads it, as a list of complaints.

Written from the providers' error messages, apart from `repair`, and used to test it and whatever else writes histories. It reads
dicts and objects through JSON, so that what is checked is what would be sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

_RESPONSES_PAIRS = {
    "function_call": ("call_id", "function_call_output", "call_id"),
    "custom_tool_call": ("call_id", "custom_tool_call_output", "call_id"),
    "local_shell_call": ("call_id", "local_shell_call_output", "id"),
    "shell_call": ("call_id", "shell_call_output", "call_id"),
    "apply_patch_call": ("call_id", "apply_patch_call_output", "call_id"),
    "computer_call": ("call_id", "computer_call_output", "call_id"),
    "mcp_approval_request": ("id", "mcp_approval_response", "approval_request_id"),
}


def problems(messages: Sequence[Any], shape: str) -> list[str]:
    """What the provider would complain about; empty if nothing."""
    rules: dict[str, Callable[[list[dict[str, Any]]], Iterator[str]]] = {
        "chat": _chat,
        "responses": _responses,
        "anthropic": _anthropic,
        "items": _items,
    }
    return list(rules[shape]([_plain(message) for message in messages]))


def _plain(message: Any) -> dict[str, Any]:
    def dumped(thing: Any) -> Any:
        return thing.model_dump(exclude_unset=True)

    plain: dict[str, Any] = json.loads(msgspec.json.encode(message, enc_hook=dumped))
    return plain


def _is_json_object(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError):
        return False


# --- Chat Completions ---------------------------------------------------------------------------------------------------------


def _chat(messages: list[dict[str, Any]]) -> Iterator[str]:
    owed: list[tuple[str, str]] = []  # the results that must come next, in this order
    for number, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        at = f"messages[{number}]"
        if role in ("tool", "function"):
            mine = (role, message.get("tool_call_id") if role == "tool" else message.get("name"))
            if not owed or owed[0] != mine:
                yield f"{at}: role {role!r} must be a response to a preceding call, in order; {mine[1]} is not"
            else:
                owed.pop(0)
            if content is None:
                yield f"{at}: expected a string, got null"
            continue
        if owed:
            yield f"{at}: tool_calls must be followed by tool messages; missing {owed}"
            owed = []
        if role == "assistant":
            yield from _chat_assistant(at, message)
            owed = [("tool", call.get("id")) for call in message.get("tool_calls") or ()]
            if message.get("function_call"):
                owed.append(("function", message["function_call"].get("name")))
        elif role in ("user", "system", "developer") and content is None:
            yield f"{at}: expected a string, got null"
    if owed:
        yield f"at the end: tool_calls must be followed by tool messages; missing {owed}"


def _chat_assistant(at: str, message: dict[str, Any]) -> Iterator[str]:
    calls = message.get("tool_calls")
    if calls == []:
        yield f"{at}.tool_calls: [] is too short"
    ids = [call.get("id") for call in calls or ()]
    if len(set(ids)) != len(ids):
        yield f"{at}.tool_calls: ids repeat"
    for call in calls or ():
        asked = call.get("custom") or call.get("function") or {}
        if not call.get("id") or not asked.get("name") or call.get("type") not in ("function", "custom"):
            yield f"{at}.tool_calls: a call without an id, a name or a type"
        if call.get("type") == "function" and not _is_json_object(asked.get("arguments")):
            yield f"{at}.tool_calls: arguments must be a valid JSON object string"
    legacy = message.get("function_call")
    if legacy is not None and not (legacy.get("name") and _is_json_object(legacy.get("arguments"))):
        yield f"{at}.function_call: no name, or arguments that are no JSON object"
    if not calls and legacy is None and not message.get("refusal") and not message.get("audio"):
        content = message.get("content")
        if not content or all(part == {"type": "text", "text": ""} for part in content):
            yield f"{at}: the assistant says nothing and calls nothing"


# --- Responses ----------------------------------------------------------------------------------------------------------------


def _responses(items: list[dict[str, Any]]) -> Iterator[str]:
    outputs = {output: (call, key) for call, (_, output, key) in _RESPONSES_PAIRS.items()}
    # The output of a local shell names its call by either of its two ids.
    aliases = {
        item.get("id"): item.get("call_id") for item in items if item.get("type") == "local_shell_call"
    }
    called: set[tuple[str, Any]] = set()
    ids: set[str] = set()
    owed: list[tuple[str, Any]] = []
    has_reference = False
    for number, item in enumerate(items):
        kind, at = item.get("type"), f"input[{number}]"
        if kind in outputs:
            call, key = outputs[kind]
            named = item.get(key)
            mine = (call, aliases.get(named, named) if call == "local_shell_call" else named)
            if owed and owed[0] == mine:
                owed.pop(0)
            elif not has_reference:
                yield f"{at}: no tool call found for the output of {mine}, at this place"
            continue
        if owed and (kind not in _RESPONSES_PAIRS or items[number - 1].get("type") in outputs):
            yield f"{at}: no tool output found for {owed}"
            owed = []
        if kind in _RESPONSES_PAIRS:
            one = (kind, item.get(_RESPONSES_PAIRS[kind][0]))
            if one in called or not one[1]:
                yield f"{at}: the id of {one} is used twice, or there is none"
            called.add(one)
            owed.append(one)
            has_arguments = kind in ("function_call", "mcp_approval_request")
            if has_arguments and not (item.get("name") and _is_json_object(item.get("arguments"))):
                yield f"{at}: no name, or arguments that are no JSON object"
        if kind == "reasoning" and not _leads_to_something(items[number + 1 :]):
            yield f"{at}: 'reasoning' was provided without its required following item"
        if item.get("id") and kind not in ("item_reference", "mcp_approval_request"):
            if item["id"] in ids:
                yield f"{at}: duplicate item found with id {item['id']}"
            ids.add(item["id"])
        has_reference = has_reference or kind == "item_reference"
        if item.get("role") in ("user", "assistant", "system", "developer") and item.get("content") is None:
            yield f"{at}: content is null"
    if owed:
        yield f"at the end: no tool output found for {owed}"


def _leads_to_something(following: list[dict[str, Any]]) -> bool:
    for item in following:
        if item.get("type") != "reasoning":
            is_the_clients = str(item.get("type")).endswith(("_output", "approval_response"))
            return not is_the_clients and item.get("role") in (None, "assistant")
    return False


# --- Anthropic ----------------------------------------------------------------------------------------------------------------


def _anthropic(messages: list[dict[str, Any]]) -> Iterator[str]:
    talk = [message for message in messages if message.get("role") in ("user", "assistant")]
    if talk and talk[0]["role"] != "user":
        yield "messages: first message must use the 'user' role"
    for number, (before, after) in enumerate(pairwise(messages)):
        if before.get("role") == after.get("role") and before.get("role") in ("user", "assistant"):
            yield f"messages.{number}: roles must alternate"
    ids: list[Any] = []
    for number, message in enumerate(messages):
        if message.get("role") not in ("user", "assistant"):
            continue
        at = f"messages.{number}"
        blocks = _anthropic_blocks(message)
        if not blocks:
            yield f"{at}: must have non-empty content"
        yield from _anthropic_content(at, message["role"], blocks)
        calls = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
        ids += calls
        following = messages[number + 1] if number + 1 < len(messages) else {}
        answers = _results(following) if following.get("role") == "user" else []
        if calls and answers != calls:
            yield f"{at}: tool_use ids were found without tool_result blocks immediately after: {calls}, {answers}"
        before = messages[number - 1] if number else {}
        asked = [b.get("id") for b in _anthropic_blocks(before) if b.get("type") == "tool_use"]
        for result in _results(message):
            if result not in asked or before.get("role") != "assistant":
                yield f"{at}: unexpected tool_use_id found in tool_result blocks: {result}"
    if len(set(ids)) != len(ids):
        yield "messages: tool_use ids must be unique"


def _anthropic_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def _results(message: dict[str, Any]) -> list[Any]:
    return [b.get("tool_use_id") for b in _anthropic_blocks(message) if b.get("type") == "tool_result"]


def _anthropic_content(at: str, role: str, blocks: list[dict[str, Any]]) -> Iterator[str]:
    kinds = [block.get("type") for block in blocks]
    for block in blocks:
        inner = block.get("content") if block.get("type") == "tool_result" else None
        for text in [block, *(inner if isinstance(inner, list) else ())]:
            if text.get("type") == "text" and not text.get("text", "").strip():
                yield f"{at}: text content blocks must contain non-whitespace text"
        if block.get("type") == "tool_use" and not (
            block.get("id") and block.get("name") and isinstance(block.get("input"), dict)
        ):
            yield f"{at}: tool_use wants an id, a name and an object as input"
        if block.get("type") == "thinking" and not block.get("signature"):
            yield f"{at}: invalid signature in thinking block"
    if role == "assistant":
        if kinds and kinds[-1] in ("thinking", "redacted_thinking"):
            yield f"{at}: the final block in an assistant message cannot be thinking"
        if "tool_use" in kinds and "text" in kinds[kinds.index("tool_use") :]:
            yield f"{at}: text after tool_use"
        if "tool_result" in kinds:
            yield f"{at}: tool_result blocks can only be in user messages"
    else:
        if "tool_use" in kinds:
            yield f"{at}: tool_use blocks can only be in assistant messages"
        if "tool_result" in kinds[kinds.count("tool_result") :]:
            yield f"{at}: tool_result blocks come first"


# --- our own items ------------------------------------------------------------------------------------------------------------


def _items(items: list[dict[str, Any]]) -> Iterator[str]:
    owed: list[str] = []
    seen: set[str] = set()
    for number, item in enumerate(items):
        kind, at = item.get("type"), f"items[{number}]"
        if kind == "tool_result":
            if not owed or owed.pop(0) != item["call_id"]:
                yield f"{at}: the result of {item['call_id']} is not next to its call"
            continue
        if owed and not (kind == "tool_call" and items[number - 1].get("type") == "tool_call"):
            yield f"{at}: no results for {owed}"
            owed = []
        if kind == "tool_call":
            if item["call_id"] in seen or not item["call_id"] or not item["name"]:
                yield f"{at}: the call has no id or name, or its id is used twice"
            if not _is_json_object(item.get("arguments", "{}")):
                yield f"{at}: arguments are no JSON object"
            seen.add(item["call_id"])
            owed.append(item["call_id"])
        if kind == "assistant" and not item["text"]:
            yield f"{at}: the assistant says nothing"
    if owed:
        yield f"at the end: no results for {owed}"
