"""What was said and done in a conversation, in words of no provider.

A transcript is a list of items. The one rule that every provider insists on: a block of tool calls is followed at once by exactly one
result for each of them, in the same order (see `quiesce.agents.repair`).

Items are plain data: they compare by value, and `encode_items` and `decode_items` turn them into JSON and back. An item of a kind
that this version does not know is kept as `UnknownItem`, and given to no provider.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from quiesce._safe.nested import decode_json, decoder_of

ToolOutcome: TypeAlias = Literal[
    "finished", "failed", "rejected", "interrupted", "not_started", "still_running", "unknown"
]
"""How a tool call ended.

- `finished`: it returned. `failed`: it raised, or was called wrongly; the output says so. `rejected`: a guardrail or a person did.
- `interrupted`: stopped while it ran; it may have partially executed. `not_started`: stopped before it began.
- `still_running`: stopped, but it did not end in time (a thread, say). `unknown`: the program ended while it ran.
"""


class Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """A piece of text in a message."""

    text: str


class Image(msgspec.Struct, frozen=True, tag="image", tag_field="type"):
    """A picture in a message: an address, `https:` or `data:`."""

    url: str


Content: TypeAlias = str | list[Text | Image]


class UserMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="user", tag_field="type"):
    """What the user said."""

    content: Content


class Note(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="note", tag_field="type"):
    """What the runtime tells the model, for example that the user has interrupted it. Providers get it as a user's message."""

    text: str


class AssistantMessage(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="assistant", tag_field="type"
):
    """What the model said. `interrupted`: it was stopped there, and this is as far as it came."""

    text: str
    interrupted: bool = False
    refusal: bool = False
    agent: str = ""


class Reasoning(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="reasoning", tag_field="type"):
    """What the model thought. `data` is what its provider wants back unchanged; other providers never see it."""

    text: str
    provider: str = ""
    data: dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_call", tag_field="type"):
    """The model asks for a tool. `arguments` is the JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str = "{}"
    agent: str = ""


class ToolResult(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_result", tag_field="type"
):
    """What came of a tool call; see `ToolOutcome`. `elapsed` is in seconds, if it ran."""

    call_id: str
    output: str
    outcome: ToolOutcome = "finished"
    elapsed: float | None = None


class UnknownItem(msgspec.Struct, frozen=True):
    """An item that a newer version has written."""

    data: dict[str, Any]


Item: TypeAlias = UserMessage | Note | AssistantMessage | Reasoning | ToolCall | ToolResult | UnknownItem

_Known: TypeAlias = UserMessage | Note | AssistantMessage | Reasoning | ToolCall | ToolResult
_TAGS = frozenset({"user", "note", "assistant", "reasoning", "tool_call", "tool_result"})
_encoder = msgspec.json.Encoder()
_decode = decoder_of(_Known)


def encode_item(item: Item) -> bytes:
    """One item as JSON."""
    return _encoder.encode(item.data if isinstance(item, UnknownItem) else item)


def decode_item(data: bytes | str) -> Item:
    """One item from JSON; ValueError if it is none."""
    try:
        item: Item = _decode(data)
    except msgspec.ValidationError:
        plain = decode_json(data)
        if isinstance(plain, dict) and isinstance(plain.get("type"), str) and plain["type"] not in _TAGS:
            return UnknownItem(plain)
        raise
    return item


def as_items(said: str | Item | Iterable[Item]) -> list[Item]:
    """What a user passes as input, as items; TypeError if it is nothing of the kind."""
    if isinstance(said, str):
        return [UserMessage(said)]
    if isinstance(said, ITEM_TYPES):
        return [said]
    items = list(said) if isinstance(said, Iterable) else None
    if items is None or not all(isinstance(item, ITEM_TYPES) for item in items):
        wrong = said if items is None else next(item for item in items if not isinstance(item, ITEM_TYPES))
        raise TypeError(
            f"the input of a run is a str, an item or a list of items, not {type(wrong).__name__}: "
            "write UserMessage(text) for what the user said, AssistantMessage(text) for what a model did"
        )
    return items


def text_of(content: Content) -> str:
    """The text in a message's content, without pictures."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, Text))


def pending_calls(items: Sequence[Item]) -> list[ToolCall]:
    """The tool calls that have no result, in order."""
    answered = {item.call_id for item in items if isinstance(item, ToolResult)}
    return [item for item in items if isinstance(item, ToolCall) and item.call_id not in answered]


ITEM_TYPES = (UserMessage, Note, AssistantMessage, Reasoning, ToolCall, ToolResult, UnknownItem)
