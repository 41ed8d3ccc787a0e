"""What a conversation consists of, as the session's history shows it: messages and tool calls."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec


class InputText(msgspec.Struct, omit_defaults=True):
    """Text of the user, or of the system."""

    type: ClassVar[Literal["input_text"]] = "input_text"
    text: str | None = None


class InputAudio(msgspec.Struct, omit_defaults=True):
    """What the user has said; `audio` is base64 if the server has sent it back."""

    type: ClassVar[Literal["input_audio"]] = "input_audio"
    audio: str | None = None
    transcript: str | None = None


class InputImage(msgspec.Struct, omit_defaults=True):
    """A picture that the user has shown."""

    type: ClassVar[Literal["input_image"]] = "input_image"
    image_url: str | None = None
    detail: str | None = None


class AssistantText(msgspec.Struct, omit_defaults=True):
    """Text of the model."""

    type: ClassVar[Literal["text"]] = "text"
    text: str | None = None


class AssistantAudio(msgspec.Struct, omit_defaults=True):
    """What the model has said."""

    type: ClassVar[Literal["audio"]] = "audio"
    audio: str | None = None
    transcript: str | None = None


class SystemMessageItem(msgspec.Struct):
    """A message of the system."""

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
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    previous_item_id: str | None = None


class RealtimeToolCallItem(msgspec.Struct):
    """A tool call, and its output as soon as there is one."""

    type: ClassVar[Literal["function_call"]] = "function_call"
    item_id: str
    call_id: str | None
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    output: str | None = None
    previous_item_id: str | None = None


RealtimeMessageItem: TypeAlias = SystemMessageItem | UserMessageItem | AssistantMessageItem
RealtimeItem: TypeAlias = RealtimeMessageItem | RealtimeToolCallItem
