"""The conversation, in the form in which a server takes it from a client.

It takes no audio of its own: what was said is sent as text, by its transcript. What was cut off says so; and where the user has said something of which
there is no transcript, that is said in its place. A tool call is sent with its output, right behind it.
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

CUT_OFF: Final = "[cut off here: the user has heard no more of it]"
NOT_TRANSCRIBED: Final = "[the user said something here, of which there is no transcript]"


def wire_items(item: RealtimeItem, output_id: str) -> list[dict[str, Any]]:
    """An item as a server takes it: none if there is nothing in it, two if it is a call. `output_id`: what the second is to be known by."""
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
        said = " ".join(words for part in item.content if (words := _words(part)))
        if said and item.status == "incomplete":
            said = f"{said} {CUT_OFF}"
        return [{"type": "output_text", "text": said}] if said else []
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
