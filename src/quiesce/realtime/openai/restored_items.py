"""The conversation, in the form in which a server accepts it from a client.

A server accepts no audio of its own, so speech is sent as text, by its transcript. The text says where speech
was cut off, and where the user said something that has no transcript. A tool call is followed by its output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from quiesce.realtime.words import (
    AssistantAudio,
    AssistantMessageItem,
    InputAudio,
    InputImage,
    RealtimeToolCallItem,
)

if TYPE_CHECKING:
    from quiesce.realtime.words import AssistantText, InputText, RealtimeItem, RealtimeMessageItem

CUT_OFF: Final = "[cut off here: the user has not heard the rest]"
NOT_TRANSCRIBED: Final = "[the user said something here that has no transcript]"


def wire_items(item: RealtimeItem, output_id: str) -> list[dict[str, Any]]:
    """Return an item as the server accepts it: none if it is empty, two for a call (with `output_id`)."""
    identity = {"id": item.item_id} if item.item_id else {}
    if not isinstance(item, RealtimeToolCallItem):
        content = _content(item)
        return [{"type": "message", **identity, "role": item.role, "content": content}] if content else []
    if item.call_id is None or item.output is None:
        return []
    call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
    output = {"id": output_id, "call_id": item.call_id, "output": item.output}
    return [{"type": "function_call", **identity, **call}, {"type": "function_call_output", **output}]


def _content(item: RealtimeMessageItem) -> list[dict[str, Any]]:
    if isinstance(item, AssistantMessageItem):
        text = " ".join(words for part in item.content if (words := _words(part)))
        if text and item.status == "incomplete":
            text = f"{text} {CUT_OFF}"
        return [{"type": "output_text", "text": text}] if text else []
    return [sent for part in item.content if (sent := _part(part)) is not None]


def _words(part: AssistantText | AssistantAudio) -> str | None:
    return part.transcript if isinstance(part, AssistantAudio) else part.text


def _part(part: InputText | InputAudio | InputImage) -> dict[str, Any] | None:
    if isinstance(part, InputImage):
        if part.image_url is None:
            return None
        detail = {"detail": part.detail} if part.detail is not None else {}
        return {"type": "input_image", "image_url": part.image_url, **detail}
    if not isinstance(part, InputAudio):
        return {"type": "input_text", "text": part.text} if part.text else None
    if part.transcript is None and part.audio is not None:
        return {"type": "input_audio", "audio": part.audio}
    return {"type": "input_text", "text": part.transcript or NOT_TRANSCRIBED}
