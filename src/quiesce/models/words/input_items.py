"""What a run, a message or a session may be given: text, items, and dicts that become items.

A dict is a message or a tool call as OpenAI's APIs have them, or one of our items as plain data.

Programs written for OpenAI's Agents SDK pass `{"role": "user", "content": "Hello"}`, and keep histories as JSON. Such a
dict becomes an item when it is passed, and from there on it is one: transcripts, sessions and models see no dicts.

What has no counterpart among the items is refused with an error that names it. To drop it would change what the model
is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeAlias, cast

import msgspec

from .items import (
    ITEM_TYPES,
    AssistantMessage,
    Image,
    Item,
    Note,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)

InputItem: TypeAlias = Item | Mapping[str, object]
"""An item of a run's input: an item, or a dict that becomes one."""

_OURS: Any = UserMessage | Note | AssistantMessage | Reasoning | ToolCall | ToolResult
_OUR_TYPES = frozenset({"user", "note", "assistant", "tool_call", "tool_result"})


def as_items(given: str | InputItem | Iterable[InputItem]) -> list[Item]:
    """Return the input of a run as a list of items; raise `TypeError` if it is not a str, an item or items."""
    if isinstance(given, str):
        return [UserMessage(given)]
    if isinstance(given, ITEM_TYPES):
        return [given]
    if isinstance(given, Mapping):
        return [_item_of(cast("Mapping[str, object]", given))]
    if not isinstance(given, Iterable):
        _refuse(given)
    items = list(given)
    for place, item in enumerate(items):
        if isinstance(item, Mapping):
            items[place] = _item_of(item)
        elif not isinstance(item, ITEM_TYPES):
            _refuse(item)
    return cast("list[Item]", items)


def _refuse(given: object) -> NoReturn:
    raise TypeError(
        f"the input of a run must be a str, an item or a list of items, not {type(given).__name__}: "
        "use UserMessage(text) for a user's message, AssistantMessage(text) for a model's"
    )


def _item_of(given: Mapping[str, object]) -> Item:
    """Return the item that a dict describes; raise `TypeError` if it describes none."""
    kind, role = given.get("type"), given.get("role")
    try:
        # Reasoning has the same type in both forms. Only ours has its text at the top.
        if kind in _OUR_TYPES or (kind == "reasoning" and "text" in given):
            return cast("Item", msgspec.convert(given, _OURS))
        if role is not None and kind in (None, "message"):
            return _message(str(role), given.get("content"))
        if kind == "function_call":
            return ToolCall(_text(given, "call_id"), _text(given, "name"), _text(given, "arguments"))
        if kind == "function_call_output":
            return ToolResult(_text(given, "call_id"), _joined(given.get("output")))
        if kind == "reasoning":
            # Without the provider that wrote it, so it is kept for people, and sent to no model.
            return Reasoning(_joined(given.get("summary") or []))
    except (msgspec.ValidationError, _NotUnderstood) as wrong:
        raise TypeError(f"this dict is not an item of a run: {wrong}: {_shown(given)}") from None
    raise TypeError(
        f"this dict is not an item of a run: {_shown(given)}; write {{'role': 'user', 'content': '...'}}, "
        "or an item of quiesce.models"
    )


class _NotUnderstood(Exception):
    """A part of a dict has no counterpart here; the message says which."""


def _message(role: str, content: object) -> Item:
    if role == "user":
        if isinstance(content, str):
            return UserMessage(content)
        return UserMessage([_part(part) for part in _parts(content)])
    if role == "assistant":
        return AssistantMessage(_joined(content))
    # A transcript has no second place for instructions. A note is what the runtime says to the model.
    if role in ("system", "developer"):
        return Note(_joined(content))
    raise _NotUnderstood(f"the role {role!r} is not one of user, assistant, system and developer")


def _part(part: Mapping[str, object]) -> Text | Image:
    kind = part.get("type")
    if kind in ("input_text", "text", "output_text"):
        return Text(_text(part, "text"))
    if kind in ("input_image", "image_url"):
        url = part.get("image_url")
        if isinstance(url, Mapping):
            url = url.get("url")
        if isinstance(url, str):
            return Image(url)
        raise _NotUnderstood("a picture needs an image_url")
    raise _NotUnderstood(f"content of the type {kind!r} is not text and not a picture")


def _parts(content: object) -> list[Mapping[str, object]]:
    parts: list[object] = list(content) if isinstance(content, (list, tuple)) else [content]
    for part in parts:
        if not isinstance(part, Mapping):
            raise _NotUnderstood(f"its content must be a str or a list of dicts, not {type(part).__name__}")
    return cast("list[Mapping[str, object]]", parts)


def _joined(content: object) -> str:
    """The text of content that is text, or parts of text."""
    if isinstance(content, str):
        return content
    pieces: list[str] = []
    for part in _parts(content):
        kind = part.get("type")
        if kind not in ("input_text", "text", "output_text", "summary_text", "refusal"):
            raise _NotUnderstood(f"content of the type {kind!r} is not text")
        pieces.append(_text(part, "refusal" if kind == "refusal" else "text"))
    return "".join(pieces)


def _text(given: Mapping[str, object], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise _NotUnderstood(f"its {name} must be a str, not {type(value).__name__}")
    return value


def _shown(given: Mapping[str, object]) -> str:
    """Its names only: what it says may be secret."""
    named = {name: given[name] for name in ("type", "role") if name in given}
    return f"{named} with {', '.join(map(str, given)) or 'nothing in it'}"
