"""The client events of the protocol, encoded. Nothing is decided here."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quiesce.agents import UserError

if TYPE_CHECKING:
    from quiesce.realtime.words import RealtimeUserInput

AUDIO_PIECE = 1024 * 1024
"""How many bytes of audio one event carries at most."""


def _plain(value: Any) -> Any:
    """Return other mappings and sequences as dicts and lists, and types of the official client as dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(exclude_unset=True)
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded as JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return an event as a frame."""
    try:
        return _encoder.encode(message)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise UserError(f"{message.get('type')!r} cannot be sent: {error}") from None


def session_update(session: Mapping[str, Any]) -> bytes:
    """Change the settings."""
    return encode({"type": "session.update", "session": session})


def audio_append(audio: Any) -> list[bytes]:
    """Send the user's audio, in pieces of at most `AUDIO_PIECE` bytes."""
    try:
        view = memoryview(audio)
    except TypeError:
        raise TypeError(f"audio must be bytes, not {type(audio).__name__}") from None
    view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
    # Written by hand: base64 needs no escaping, and the encoder would need a str, which is one more copy.
    return [
        b'{"type":"input_audio_buffer.append","audio":"'
        + b2a_base64(view[start : start + AUDIO_PIECE], newline=False)
        + b'"}'
        for start in range(0, len(view), AUDIO_PIECE)
    ]


AUDIO_COMMIT = b'{"type":"input_audio_buffer.commit"}'


def user_message(given: RealtimeUserInput) -> bytes:
    """Send text or images of the user."""
    content = [{"type": "input_text", "text": given}] if isinstance(given, str) else _content(given)
    return item_create({"type": "message", "role": "user", "content": content})


def item_create(item: Mapping[str, Any], *, after: str | None = None) -> bytes:
    """Add an item at the end of the conversation, or after another one."""
    place = {"previous_item_id": after} if after is not None else {}
    return encode({"type": "conversation.item.create", **place, "item": item})


def item_delete(item_id: str) -> bytes:
    """Delete an item."""
    return encode({"type": "conversation.item.delete", "item_id": item_id})


def _content(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, Mapping):
        raise UserError(f"a message must be a str, or a dict with `content`, not {type(given).__name__}")
    if given.get("type", "message") != "message" or given.get("role", "user") != "user":
        raise UserError(
            "a message of the user must have the type 'message' and the role 'user', "
            f"not {given.get('type')!r} and {given.get('role')!r}"
        )
    parts = given.get("content")
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        raise UserError(f"the content of a message must be a list with at least one part, not {parts!r:.80}")
    return [_part(part) for part in parts]


def _part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    needed = {"input_text": "text", "input_image": "image_url"}.get(kind) if isinstance(kind, str) else None
    if needed is None:
        raise UserError(f"a part of a message must be an 'input_text' or an 'input_image', not {part!r:.80}")
    if not isinstance(part.get(needed), str):
        raise UserError(
            f"a part {kind!r} of a message needs {needed!r}, a str, and has {part.get(needed)!r:.80}"
        )
    return dict(part)


def tool_output(call_id: str, output: str, *, after: str | None = None) -> bytes:
    """Send the output of a tool call."""
    return item_create({"type": "function_call_output", "call_id": call_id, "output": output}, after=after)


def truncate(item_id: str, content_index: int, audio_end_ms: int) -> bytes:
    """Remove what was not heard of this content."""
    return encode(
        {
            "type": "conversation.item.truncate",
            "item_id": item_id,
            "content_index": content_index,
            "audio_end_ms": audio_end_ms,
        }
    )


def response_cancel(event_id: str, response_id: str | None) -> bytes:
    """Cancel a response; without an id, the active one."""
    message = {"type": "response.cancel", "event_id": event_id}
    if response_id is not None:
        message["response_id"] = response_id
    return encode(message)


def raw_message(given: Any) -> dict[str, Any]:
    """Return a user's own message, with the fields of `other_data` in it."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or not kind:
        raise UserError(
            f"a raw message must be a dict with a 'type', and perhaps 'other_data', not {given!r:.80}"
        )
    more = given.get("other_data") or {}
    if not isinstance(more, Mapping):
        raise UserError(f"'other_data' of a raw message {kind!r} must be a dict, not {type(more).__name__}")
    return {**{name: value for name, value in given.items() if name != "other_data"}, **more, "type": kind}
