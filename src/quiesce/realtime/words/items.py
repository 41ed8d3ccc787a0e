"""The items of a conversation, as in the session's history: messages and tool calls."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]

Place: TypeAlias = tuple[str, int]
"""The id of an item, and the index of a content in it."""


class InputText(msgspec.Struct, omit_defaults=True):
    """Text from the user or the system."""

    type: ClassVar[Literal["input_text"]] = "input_text"
    text: str | None = None


class InputAudio(msgspec.Struct, omit_defaults=True):
    """Speech of the user; `audio` is base64, if the server has sent it back."""

    type: ClassVar[Literal["input_audio"]] = "input_audio"
    audio: str | None = None
    transcript: str | None = None


class InputImage(msgspec.Struct, omit_defaults=True):
    """An image from the user."""

    type: ClassVar[Literal["input_image"]] = "input_image"
    image_url: str | None = None
    detail: str | None = None


class AssistantText(msgspec.Struct, omit_defaults=True):
    """Text from the model."""

    type: ClassVar[Literal["text"]] = "text"
    text: str | None = None


class AssistantAudio(msgspec.Struct, omit_defaults=True):
    """Speech of the model."""

    type: ClassVar[Literal["audio"]] = "audio"
    audio: str | None = None
    transcript: str | None = None


class SystemMessageItem(msgspec.Struct):
    """A system message."""

    type: ClassVar[Literal["message"]] = "message"
    role: ClassVar[Literal["system"]] = "system"
    item_id: str
    content: list[InputText] = msgspec.field(default_factory=list)
    previous_item_id: str | None = None


class UserMessageItem(msgspec.Struct):
    """A message of the user."""

    type: ClassVar[Literal["message"]] = "message"
    role: ClassVar[Literal["user"]] = "user"
    item_id: str
    content: list[InputText | InputAudio | InputImage] = msgspec.field(default_factory=list)
    previous_item_id: str | None = None


class AssistantMessageItem(msgspec.Struct):
    """A message of the model; `status` is "incomplete" if it was interrupted."""

    type: ClassVar[Literal["message"]] = "message"
    role: ClassVar[Literal["assistant"]] = "assistant"
    item_id: str
    content: list[AssistantText | AssistantAudio] = msgspec.field(default_factory=list)
    status: ItemStatus | None = None
    previous_item_id: str | None = None


class RealtimeToolCallItem(msgspec.Struct):
    """A tool call, with its output once there is one."""

    type: ClassVar[Literal["function_call"]] = "function_call"
    item_id: str
    call_id: str | None
    name: str
    arguments: str
    status: ItemStatus = "in_progress"
    output: str | None = None
    previous_item_id: str | None = None


RealtimeMessageItem: TypeAlias = SystemMessageItem | UserMessageItem | AssistantMessageItem
RealtimeItem: TypeAlias = RealtimeMessageItem | RealtimeToolCallItem
