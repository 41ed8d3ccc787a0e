"""The events of the server that have a meaning here, as structures.

One pass over a frame determines its type and decodes it, base64 included. A frame that cannot be decoded is
looked at again, to describe what is wrong: see `look_again`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, get_args

import msgspec

Index: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class MalformedServerEvent(ValueError):
    """The server sent something that is not a valid event. The session goes on without it."""

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
    """The description of an error."""

    type: str | None = None
    message: str | None = None
    code: str | None = None
    event_id: str | None = None
    param: str | None = None


class StatusDetails(msgspec.Struct):
    """Why a response ended with its status."""

    error: ServerError | None = None
    reason: str | None = None


class Tokens(msgspec.Struct):
    """The tokens that a response used."""

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
    """The base of all events, which `type` tells apart."""


class AudioDelta(ServerEvent, tag="response.output_audio.delta", gc=False):
    """A piece of the model's audio."""

    response_id: str
    item_id: str
    delta: bytes
    content_index: Index = 0


class BetaAudioDelta(AudioDelta, tag="response.audio.delta", gc=False):
    """The same, by its name in the beta version."""


class AudioDone(ServerEvent, tag="response.output_audio.done"):
    """The audio of this content is complete."""

    item_id: str
    response_id: str | None = None
    content_index: Index = 0


class BetaAudioDone(AudioDone, tag="response.audio.done"):
    """The same, by its name in the beta version."""


class TranscriptDelta(ServerEvent, tag="response.output_audio_transcript.delta"):
    """A piece of the transcript of the model's audio."""

    response_id: str
    item_id: str
    delta: str
    content_index: Index = 0


class BetaTranscriptDelta(TranscriptDelta, tag="response.audio_transcript.delta"):
    """The same, by its name in the beta version."""


class TextDelta(ServerEvent, tag="response.output_text.delta"):
    """A piece of the model's text."""

    response_id: str
    item_id: str
    delta: str


class BetaTextDelta(TextDelta, tag="response.text.delta"):
    """The same, by its name in the beta version."""


class ResponseCreated(ServerEvent, tag="response.created"):
    """A response has begun."""

    response: Response


class ResponseDone(ServerEvent, tag="response.done"):
    """A response has ended, in any way."""

    response: Response


class OutputItemAdded(ServerEvent, tag="response.output_item.added"):
    """The model begins an item."""

    item: Item
    response_id: str | None = None


class OutputItemDone(ServerEvent, tag="response.output_item.done"):
    """The model has ended an item, or was interrupted."""

    item: Item
    response_id: str | None = None


class ItemAdded(ServerEvent, tag="conversation.item.added"):
    """An item was added to the conversation."""

    item: Item
    previous_item_id: str | None = None


class ItemCreated(ItemAdded, tag="conversation.item.created"):
    """The same, by its name in the beta version."""


class ItemDone(ItemAdded, tag="conversation.item.done"):
    """An item is complete."""


class ItemRetrieved(ItemAdded, tag="conversation.item.retrieved"):
    """An item that was requested."""


class ItemDeleted(ServerEvent, tag="conversation.item.deleted"):
    """An item was deleted from the conversation."""

    item_id: str


class ItemTruncated(ServerEvent, tag="conversation.item.truncated"):
    """The part of an item that was not heard was cut from the conversation."""

    item_id: str
    audio_end_ms: Index
    content_index: Index = 0


class TranscriptionCompleted(ServerEvent, tag="conversation.item.input_audio_transcription.completed"):
    """The transcript of the user's speech."""

    item_id: str
    transcript: str


class TranscriptionFailed(ServerEvent, tag="conversation.item.input_audio_transcription.failed"):
    """The user's speech could not be transcribed."""

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
    """The initial settings of the session."""

    session: dict[str, Any]


class SessionUpdated(ServerEvent, tag="session.updated"):
    """The settings of the session, after a change."""

    session: dict[str, Any]


class Error(ServerEvent, tag="error"):
    """An error, mostly in something that we sent."""

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
"""What `decode` raises, including `msgspec.ValidationError` for an event of the wrong shape."""


def look_again(frame: bytes, why: Exception) -> tuple[Any, MalformedServerEvent | None]:
    """Return the data of a frame that `decode` refused (UNSET if it is not JSON), and its fault, if any."""
    try:
        data = msgspec.json.decode(frame)
    except UNREADABLE as error:
        return msgspec.UNSET, MalformedServerEvent(
            f"the server sent {len(frame)} bytes that are not JSON: {error}; they begin with {bytes(frame[:60])!r}"
        )
    if not isinstance(data, dict):
        return data, MalformedServerEvent(
            f"the server sent a JSON {_KINDS.get(type(data), 'value')}, but every event is an object"
        )
    kind = data.get("type")
    if not isinstance(kind, str):
        found = "no type" if "type" not in data else f"the type {kind!r:.60}"
        return data, MalformedServerEvent(f"the server sent an event with {found}; it has {_fields(data)}")
    if kind in KNOWN:
        return data, MalformedServerEvent(f"the server's event {kind!r} is malformed: {why}", kind)
    return data, None


_KINDS = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _fields(data: dict[str, Any]) -> str:
    names = [repr(name)[:40] for name in list(data)[:5]]
    return ", ".join(names) + (", ..." if len(data) > 5 else "") if names else "no fields at all"
