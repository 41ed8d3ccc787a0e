"""What the server says: those of its events that mean something here, as structures.

One pass over a frame finds out which event it is and decodes it, base64 included. A frame that is not understood is looked at a second
time, to say why: see `look_again`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, get_args

import msgspec

Index: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class MalformedServerEvent(ValueError):
    """The server has sent something that is no event, or one that lacks what such an event has. The session goes on without it."""

    def __init__(self, message: str, event_type: str | None = None) -> None:
        super().__init__(message)
        self.event_type = event_type


class Part(msgspec.Struct):
    """A part of a message."""

    type: str | None = None
    text: str | None = None
    transcript: str | None = None
    audio: str | None = None
    image_url: str | None = None
    detail: str | None = None


class Item(msgspec.Struct):
    """An item of the conversation, of any kind."""

    type: str
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


class ServerError(msgspec.Struct):
    """What went wrong."""

    type: str | None = None
    message: str | None = None
    code: str | None = None
    event_id: str | None = None
    param: str | None = None


class StatusDetails(msgspec.Struct):
    """Why a response has ended so."""

    error: ServerError | None = None
    reason: str | None = None


class Tokens(msgspec.Struct):
    """What a response has cost."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_token_details: dict[str, Any] | None = None
    output_token_details: dict[str, Any] | None = None


class Response(msgspec.Struct):
    """A response. One that is outside of the conversation has None for `conversation_id`."""

    id: str | None = None
    status: str | None = None
    status_details: StatusDetails | None = None
    usage: Tokens | None = None
    conversation_id: str | msgspec.UnsetType | None = msgspec.UNSET


class ServerEvent(msgspec.Struct, tag_field="type"):
    """Every event has its `type`, and is known by it."""


class AudioDelta(ServerEvent, tag="response.output_audio.delta", gc=False):
    """A piece of what the model says."""

    response_id: str
    item_id: str
    delta: bytes
    content_index: Index = 0


class BetaAudioDelta(AudioDelta, tag="response.audio.delta", gc=False):
    """The same, as it was called before."""


class AudioDone(ServerEvent, tag="response.output_audio.done"):
    """There is no more audio in this content."""

    item_id: str
    response_id: str | None = None
    content_index: Index = 0


class BetaAudioDone(AudioDone, tag="response.audio.done"):
    """The same, as it was called before."""


class TranscriptDelta(ServerEvent, tag="response.output_audio_transcript.delta"):
    """A piece of what the model says, as text."""

    response_id: str
    item_id: str
    delta: str
    content_index: Index = 0


class BetaTranscriptDelta(TranscriptDelta, tag="response.audio_transcript.delta"):
    """The same, as it was called before."""


class TextDelta(ServerEvent, tag="response.output_text.delta"):
    """A piece of what the model writes."""

    response_id: str
    item_id: str
    delta: str


class BetaTextDelta(TextDelta, tag="response.text.delta"):
    """The same, as it was called before."""


class ResponseCreated(ServerEvent, tag="response.created"):
    """A response is on."""

    response: Response


class ResponseDone(ServerEvent, tag="response.done"):
    """A response has ended, however."""

    response: Response


class OutputItemAdded(ServerEvent, tag="response.output_item.added"):
    """The model begins an item."""

    item: Item
    response_id: str | None = None


class OutputItemDone(ServerEvent, tag="response.output_item.done"):
    """The model has ended an item, or was made to."""

    item: Item
    response_id: str | None = None


class ItemAdded(ServerEvent, tag="conversation.item.added"):
    """An item is in the conversation."""

    item: Item
    previous_item_id: str | None = None


class ItemCreated(ItemAdded, tag="conversation.item.created"):
    """The same, as it was called before."""


class ItemDone(ItemAdded, tag="conversation.item.done"):
    """It is as it will stay."""


class ItemRetrieved(ItemAdded, tag="conversation.item.retrieved"):
    """It was asked for."""


class ItemDeleted(ServerEvent, tag="conversation.item.deleted"):
    """It is no more in the conversation."""

    item_id: str


class ItemTruncated(ServerEvent, tag="conversation.item.truncated"):
    """What was not heard of it is no more in the conversation."""

    item_id: str
    audio_end_ms: Index
    content_index: Index = 0


class TranscriptionCompleted(ServerEvent, tag="conversation.item.input_audio_transcription.completed"):
    """What the user has said."""

    item_id: str
    transcript: str


class TranscriptionFailed(ServerEvent, tag="conversation.item.input_audio_transcription.failed"):
    """What the user has said could not be written down."""

    item_id: str
    error: ServerError


class SpeechStarted(ServerEvent, tag="input_audio_buffer.speech_started"):
    """The user begins to speak."""


class TimeoutTriggered(ServerEvent, tag="input_audio_buffer.timeout_triggered"):
    """The user has said nothing for a while."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class SessionCreated(ServerEvent, tag="session.created"):
    """What the session is like before anybody has changed it."""

    session: dict[str, Any]


class SessionUpdated(ServerEvent, tag="session.updated"):
    """What it is like now."""

    session: dict[str, Any]


class Error(ServerEvent, tag="error"):
    """Something was wrong, mostly with what the server was told."""

    error: ServerError


Meaningful: TypeAlias = (
    AudioDelta
    | BetaAudioDelta
    | AudioDone
    | BetaAudioDone
    | TranscriptDelta
    | BetaTranscriptDelta
    | TextDelta
    | BetaTextDelta
    | ResponseCreated
    | ResponseDone
    | OutputItemAdded
    | OutputItemDone
    | ItemAdded
    | ItemCreated
    | ItemDone
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | TranscriptionCompleted
    | TranscriptionFailed
    | SpeechStarted
    | TimeoutTriggered
    | SessionCreated
    | SessionUpdated
    | Error
)

decode = msgspec.json.Decoder(Meaningful).decode

KNOWN: frozenset[str] = frozenset(str(each.__struct_config__.tag) for each in get_args(Meaningful))

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What `decode` raises. An error of the event's shape (`msgspec.ValidationError`) is one of them."""


def look_again(frame: bytes, why: Exception) -> tuple[Any, MalformedServerEvent | None]:
    """What a frame is that `decode` has refused: its data (UNSET if it is no JSON), and what is wrong with it, if anything is."""
    try:
        data = msgspec.json.decode(frame)
    except UNREADABLE as error:
        return msgspec.UNSET, MalformedServerEvent(
            f"the server has sent {len(frame)} bytes that are no JSON: {error}; they begin with {bytes(frame[:60])!r}"
        )
    if not isinstance(data, dict):
        return data, MalformedServerEvent(
            f"the server has sent a JSON {_KINDS.get(type(data), 'value')}, and every event is an object"
        )
    kind = data.get("type")
    if not isinstance(kind, str):
        found = "no type" if "type" not in data else f"the type {kind!r:.60}"
        return data, MalformedServerEvent(
            f"the server has sent an event with {found}; it has {_fields(data)}"
        )
    if kind in KNOWN:
        return data, MalformedServerEvent(f"the server's event {kind!r} is malformed: {why}", kind)
    return data, None


_KINDS = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _fields(data: dict[str, Any]) -> str:
    names = [repr(name)[:40] for name in list(data)[:5]]
    return ", ".join(names) + (", ..." if len(data) > 5 else "") if names else "no fields at all"
