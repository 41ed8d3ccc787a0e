"""The items of a conversation, independent of any provider.

A transcript is a list of items. Every provider insists on one rule: a block of tool calls is followed immediately by
exactly one result for each call, in the same order (see `quiesce.agents.repair`).

Items are plain data. `type` says what an item is, in the words of OpenAI's Agents SDK; in JSON, the tag of the same
name has our own. Items compare by value, and `encode_item` and `decode_item` turn them into JSON and back. An item
of a kind that this version does not know is kept as `UnknownItem` and is not sent to any provider.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, TypeAlias

import msgspec

from quiesce._safe.nested import decode_json, decoder_of

ToolOutcome: TypeAlias = Literal[
    "finished", "failed", "rejected", "interrupted", "not_started", "still_running", "unknown"
]
"""How a tool call ended.

- `finished`: the tool returned.
- `failed`: the tool raised, or its arguments were wrong; the output says which.
- `rejected`: a guardrail or a person rejected the call.
- `interrupted`: the call was stopped while it ran; it may have partially executed.
- `not_started`: the call was stopped before it began.
- `still_running`: the call was stopped but did not end in time (a thread, for example).
- `unknown`: the program ended while the call ran.
"""


class Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """A piece of text in a message."""

    text: str


class Image(msgspec.Struct, frozen=True, tag="image", tag_field="type"):
    """A picture in a message, by its `https:` or `data:` URL."""

    url: str


Content: TypeAlias = str | list[Text | Image]


class UserMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="user", tag_field="type"):
    """A message from the user."""

    type: ClassVar[Literal["message"]] = "message"
    content: Content


class Note(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="note", tag_field="type"):
    """A message from the runtime to the model, for example that the user interrupted it.

    Providers receive it as a user message.
    """

    type: ClassVar[Literal["message"]] = "message"
    text: str


class AssistantMessage(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="assistant", tag_field="type"
):
    """A message from the model. If `interrupted` is true, the model was stopped and the text ends there."""

    type: ClassVar[Literal["message_output_item"]] = "message_output_item"
    text: str
    interrupted: bool = False
    refusal: bool = False
    agent: str = ""

    @property
    def raw_item(self) -> Self:
        """The item itself: what OpenAI's Agents SDK keeps one level deeper, under this name."""
        return self


class Reasoning(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="reasoning", tag_field="type"):
    """The model's reasoning.

    `data` is sent back unchanged to the provider that wrote it; other providers never see it.
    """

    type: ClassVar[Literal["reasoning_item"]] = "reasoning_item"
    text: str
    provider: str = ""
    data: dict[str, Any] | None = None

    @property
    def raw_item(self) -> Self:
        """The item itself: what OpenAI's Agents SDK keeps one level deeper, under this name."""
        return self


class ToolCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_call", tag_field="type"):
    """A tool call by the model. `arguments` is the JSON text exactly as the model wrote it."""

    type: ClassVar[Literal["tool_call_item"]] = "tool_call_item"
    call_id: str
    name: str
    arguments: str = "{}"
    agent: str = ""

    @property
    def raw_item(self) -> Self:
        """The item itself: what OpenAI's Agents SDK keeps one level deeper, under this name."""
        return self


class ToolResult(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_result", tag_field="type"
):
    """The result of a tool call; see `ToolOutcome`. `elapsed` is the time in seconds, if the tool ran."""

    type: ClassVar[Literal["tool_call_output_item"]] = "tool_call_output_item"
    call_id: str
    output: str
    outcome: ToolOutcome = "finished"
    elapsed: float | None = None

    @property
    def raw_item(self) -> Self:
        """The item itself: what OpenAI's Agents SDK keeps one level deeper, under this name."""
        return self


class UnknownItem(msgspec.Struct, frozen=True):
    """An item written by a newer version, kept as it is."""

    type: ClassVar[Literal["unknown_item"]] = "unknown_item"
    data: dict[str, Any]

    @property
    def raw_item(self) -> Self:
        """The item itself: what OpenAI's Agents SDK keeps one level deeper, under this name."""
        return self


Item: TypeAlias = UserMessage | Note | AssistantMessage | Reasoning | ToolCall | ToolResult | UnknownItem

_Known: TypeAlias = UserMessage | Note | AssistantMessage | Reasoning | ToolCall | ToolResult
_TAGS = frozenset({"user", "note", "assistant", "reasoning", "tool_call", "tool_result"})
_encoder = msgspec.json.Encoder()
_decode = decoder_of(_Known)


def encode_item(item: Item) -> bytes:
    """Return the item as JSON."""
    return _encoder.encode(item.data if isinstance(item, UnknownItem) else item)


def decode_item(data: bytes | str) -> Item:
    """Return the item that `data` holds as JSON; raise `ValueError` if it is not an item."""
    try:
        item: Item = _decode(data)
    except msgspec.ValidationError:
        # Only an unknown tag makes an UnknownItem. A known tag with wrong fields is damage, and must not pass as a
        # newer version's item.
        plain = decode_json(data)
        if _is_of_newer_version(plain):
            return UnknownItem(plain)
        raise
    return item


def convert_item(plain: Any) -> Item:
    """Return the item that `plain` holds as plain values, as `decode_item` does for JSON."""
    if _is_of_newer_version(plain):
        return UnknownItem(plain)
    item: Item = msgspec.convert(plain, _Known)
    return item


def _is_of_newer_version(plain: Any) -> bool:
    return isinstance(plain, dict) and isinstance(plain.get("type"), str) and plain["type"] not in _TAGS


def text_of(content: Content) -> str:
    """Return the text of a message's content, without pictures."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, Text))


def pending_calls(items: Sequence[Item]) -> list[ToolCall]:
    """Return the tool calls that have no result yet, in order."""
    answered = {item.call_id for item in items if isinstance(item, ToolResult)}
    return [item for item in items if isinstance(item, ToolCall) and item.call_id not in answered]


ITEM_TYPES = (UserMessage, Note, AssistantMessage, Reasoning, ToolCall, ToolResult, UnknownItem)
