"""What happens in a session, as its user reads it. Each event has its `type`, and `info.context`: the user's own object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from .items import RealtimeItem
from .model_events import RealtimeModelAudioEvent, RealtimeModelEvent

if TYPE_CHECKING:
    from quiesce.agents import FunctionTool, OutputGuardrailResult, RunContextWrapper

    from .agent import RealtimeAgent


class RealtimeEventInfo(msgspec.Struct):
    """What all events of a session share."""

    context: RunContextWrapper[Any]


class RealtimeAgentStartEvent(msgspec.Struct):
    """An agent begins."""

    type: ClassVar[Literal["agent_start"]] = "agent_start"
    agent: RealtimeAgent[Any]
    info: RealtimeEventInfo


class RealtimeAgentEndEvent(msgspec.Struct):
    """An agent has ended."""

    type: ClassVar[Literal["agent_end"]] = "agent_end"
    agent: RealtimeAgent[Any]
    info: RealtimeEventInfo


class RealtimeHandoffEvent(msgspec.Struct):
    """One agent has handed over to another."""

    type: ClassVar[Literal["handoff"]] = "handoff"
    from_agent: RealtimeAgent[Any]
    to_agent: RealtimeAgent[Any]
    info: RealtimeEventInfo


class RealtimeToolStart(msgspec.Struct):
    """A tool is called."""

    type: ClassVar[Literal["tool_start"]] = "tool_start"
    agent: RealtimeAgent[Any]
    tool: FunctionTool
    arguments: str
    info: RealtimeEventInfo
    call_id: str


class RealtimeToolEnd(msgspec.Struct):
    """A tool has ended; `output` is what it has returned."""

    type: ClassVar[Literal["tool_end"]] = "tool_end"
    agent: RealtimeAgent[Any]
    tool: FunctionTool
    arguments: str
    output: Any
    info: RealtimeEventInfo
    call_id: str


class RealtimeToolApprovalRequired(msgspec.Struct):
    """Somebody must decide: `session.approve_tool_call(call_id)` or `reject_tool_call(call_id)`."""

    type: ClassVar[Literal["tool_approval_required"]] = "tool_approval_required"
    agent: RealtimeAgent[Any]
    tool: FunctionTool
    call_id: str
    arguments: str
    info: RealtimeEventInfo


class RealtimeRawModelEvent(msgspec.Struct):
    """What the model has told the session, whatever it is."""

    type: ClassVar[Literal["raw_model_event"]] = "raw_model_event"
    data: RealtimeModelEvent
    info: RealtimeEventInfo


class RealtimeAudio(msgspec.Struct):
    """Audio to be played: `audio.data`."""

    type: ClassVar[Literal["audio"]] = "audio"
    audio: RealtimeModelAudioEvent
    item_id: str
    content_index: int
    info: RealtimeEventInfo


class RealtimeAudioEnd(msgspec.Struct):
    """The model has said what it had to say; or `is_cut`: the connection was lost, and the rest of it will not come."""

    type: ClassVar[Literal["audio_end"]] = "audio_end"
    item_id: str
    content_index: int
    info: RealtimeEventInfo
    is_cut: bool = False


class RealtimeAudioInterrupted(msgspec.Struct):
    """Stop playing this content, and throw away what was not played of it."""

    type: ClassVar[Literal["audio_interrupted"]] = "audio_interrupted"
    item_id: str
    content_index: int
    info: RealtimeEventInfo


class RealtimeError(msgspec.Struct):
    """Something was wrong: with what the server was told (a `RealtimeServerError`), or in a tool or guardrail (the exception). The session goes on."""

    type: ClassVar[Literal["error"]] = "error"
    error: Any
    info: RealtimeEventInfo


class RealtimeHistoryUpdated(msgspec.Struct):
    """The history has changed; this is all of it."""

    type: ClassVar[Literal["history_updated"]] = "history_updated"
    history: list[RealtimeItem]
    info: RealtimeEventInfo


class RealtimeHistoryAdded(msgspec.Struct):
    """The history has one item more."""

    type: ClassVar[Literal["history_added"]] = "history_added"
    item: RealtimeItem
    info: RealtimeEventInfo


class RealtimeGuardrailTripped(msgspec.Struct):
    """A guardrail says no, and the response was interrupted. `message` is what had been said."""

    type: ClassVar[Literal["guardrail_tripped"]] = "guardrail_tripped"
    guardrail_results: list[OutputGuardrailResult]
    message: str
    info: RealtimeEventInfo


class RealtimeInputAudioTimeoutTriggered(msgspec.Struct):
    """The user has said nothing for a while."""

    type: ClassVar[Literal["input_audio_timeout_triggered"]] = "input_audio_timeout_triggered"
    info: RealtimeEventInfo


class RealtimeConnectionLost(msgspec.Struct):
    """The connection to the model is lost, because of `error`, and the session tries to get it back: see `RealtimeReconnect`."""

    type: ClassVar[Literal["connection_lost"]] = "connection_lost"
    error: Exception
    info: RealtimeEventInfo


class RealtimeReconnecting(msgspec.Struct):
    """It connects again, now. `number`: which of the `tries` this is; `error`: why the one before it has failed, or why the connection was lost."""

    type: ClassVar[Literal["reconnecting"]] = "reconnecting"
    number: int
    tries: int
    error: Exception
    info: RealtimeEventInfo


class RealtimeReconnected(msgspec.Struct):
    """It is connected again, and the model has been told the conversation so far.

    - `number`: which of the tries it was. `seconds`: how long there was no connection.
    - `unknown_calls`: ids of the tool calls whose outcome is unknown so far; the model is told when they end.
    - `audio_dropped`: how many bytes of the user's audio were not sent meanwhile.
    """

    type: ClassVar[Literal["reconnected"]] = "reconnected"
    number: int
    seconds: float
    unknown_calls: list[str]
    audio_dropped: int
    info: RealtimeEventInfo


RealtimeSessionEvent: TypeAlias = (
    RealtimeAgentStartEvent
    | RealtimeAgentEndEvent
    | RealtimeHandoffEvent
    | RealtimeToolStart
    | RealtimeToolEnd
    | RealtimeToolApprovalRequired
    | RealtimeRawModelEvent
    | RealtimeAudio
    | RealtimeAudioEnd
    | RealtimeAudioInterrupted
    | RealtimeError
    | RealtimeHistoryUpdated
    | RealtimeHistoryAdded
    | RealtimeGuardrailTripped
    | RealtimeInputAudioTimeoutTriggered
    | RealtimeConnectionLost
    | RealtimeReconnecting
    | RealtimeReconnected
)
