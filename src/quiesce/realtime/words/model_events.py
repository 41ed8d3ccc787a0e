"""The events that a `RealtimeModel` sends to its listeners."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from quiesce.models import Usage

from .items import RealtimeItem

RealtimeConnectionStatus: TypeAlias = Literal["connecting", "connected", "disconnected"]


class RealtimeModelErrorEvent(msgspec.Struct):
    """The server or the transport reports an error; the session goes on."""

    type: ClassVar[Literal["error"]] = "error"
    error: Any  # a RealtimeServerError, or the exception


class RealtimeModelToolCallEvent(msgspec.Struct):
    """The model wants a tool to be called."""

    type: ClassVar[Literal["function_call"]] = "function_call"
    name: str
    call_id: str
    arguments: str
    id: str | None = None
    previous_item_id: str | None = None
    response_id: str | None = None


class RealtimeModelAudioEvent(msgspec.Struct):
    """A piece of audio, decoded."""

    type: ClassVar[Literal["audio"]] = "audio"
    data: bytes
    response_id: str
    item_id: str
    content_index: int


class RealtimeModelAudioInterruptedEvent(msgspec.Struct):
    """Playing this content must stop, or not begin."""

    type: ClassVar[Literal["audio_interrupted"]] = "audio_interrupted"
    item_id: str
    content_index: int


class RealtimeModelAudioDoneEvent(msgspec.Struct):
    """All audio of this content has arrived."""

    type: ClassVar[Literal["audio_done"]] = "audio_done"
    item_id: str
    content_index: int


class RealtimeModelInputAudioTranscriptionCompletedEvent(msgspec.Struct):
    """The speech of the user, as text."""

    type: ClassVar[Literal["input_audio_transcription_completed"]] = "input_audio_transcription_completed"
    item_id: str
    transcript: str


class RealtimeModelInputAudioTimeoutTriggeredEvent(msgspec.Struct):
    """The user has said nothing for a while."""

    type: ClassVar[Literal["input_audio_timeout_triggered"]] = "input_audio_timeout_triggered"
    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class RealtimeModelTranscriptDeltaEvent(msgspec.Struct):
    """A piece of the transcript of the model's speech."""

    type: ClassVar[Literal["transcript_delta"]] = "transcript_delta"
    item_id: str
    delta: str
    response_id: str


class RealtimeModelOutputTextDeltaEvent(msgspec.Struct):
    """A piece of text that the model writes."""

    type: ClassVar[Literal["output_text_delta"]] = "output_text_delta"
    item_id: str
    delta: str
    response_id: str


class RealtimeModelItemUpdatedEvent(msgspec.Struct):
    """An item is new, or has changed."""

    type: ClassVar[Literal["item_updated"]] = "item_updated"
    item: RealtimeItem


class RealtimeModelItemDeletedEvent(msgspec.Struct):
    """An item was deleted."""

    type: ClassVar[Literal["item_deleted"]] = "item_deleted"
    item_id: str


class RealtimeModelConnectionStatusEvent(msgspec.Struct):
    """The status of the connection has changed."""

    type: ClassVar[Literal["connection_status"]] = "connection_status"
    status: RealtimeConnectionStatus


class RealtimeModelEndOfStreamEvent(msgspec.Struct):
    """No more events follow. `error` is the reason of the server, if it closed the connection."""

    type: ClassVar[Literal["end_of_stream"]] = "end_of_stream"
    error: Exception | None = None


class RealtimeModelTurnStartedEvent(msgspec.Struct):
    """The model begins a response."""

    type: ClassVar[Literal["turn_started"]] = "turn_started"
    response_id: str | None = None


class RealtimeModelTurnEndedEvent(msgspec.Struct):
    """The model has ended a response."""

    type: ClassVar[Literal["turn_ended"]] = "turn_ended"
    response_id: str | None = None
    status: str | None = None  # completed, cancelled, failed, incomplete


class RealtimeModelUsageEvent(msgspec.Struct):
    """The token usage of a response."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    input_tokens_details: dict[str, Any] | None = None
    output_tokens_details: dict[str, Any] | None = None


class RealtimeModelOtherEvent(msgspec.Struct):
    """A message of the server that has no event of its own."""

    type: ClassVar[Literal["other"]] = "other"
    data: Any


class RealtimeModelExceptionEvent(msgspec.Struct):
    """The model has failed, and the session ends."""

    type: ClassVar[Literal["exception"]] = "exception"
    exception: Exception
    context: str | None = None


class RealtimeModelRawServerEvent(msgspec.Struct, dict=True):
    """A message of the server, unchanged. It is decoded again, when `data` is first read."""

    type: ClassVar[Literal["raw_server_event"]] = "raw_server_event"
    frame: bytes

    @cached_property
    def data(self) -> Any:
        """The message as a dict."""
        return msgspec.json.decode(self.frame)


class RealtimeServerError(msgspec.Struct):
    """An error as the server describes it."""

    type: str = "error"
    message: str = ""
    code: str | None = None
    event_id: str | None = None
    param: str | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" + (f" ({self.code})" if self.code else "")


RealtimeModelEvent: TypeAlias = (
    RealtimeModelErrorEvent
    | RealtimeModelToolCallEvent
    | RealtimeModelAudioEvent
    | RealtimeModelAudioInterruptedEvent
    | RealtimeModelAudioDoneEvent
    | RealtimeModelInputAudioTimeoutTriggeredEvent
    | RealtimeModelInputAudioTranscriptionCompletedEvent
    | RealtimeModelTranscriptDeltaEvent
    | RealtimeModelOutputTextDeltaEvent
    | RealtimeModelItemUpdatedEvent
    | RealtimeModelItemDeletedEvent
    | RealtimeModelConnectionStatusEvent
    | RealtimeModelEndOfStreamEvent
    | RealtimeModelTurnStartedEvent
    | RealtimeModelTurnEndedEvent
    | RealtimeModelUsageEvent
    | RealtimeModelOtherEvent
    | RealtimeModelExceptionEvent
    | RealtimeModelRawServerEvent
)
