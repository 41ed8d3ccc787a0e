"""The events of a session. Each has its `type`, and your own context object in `info.context`."""

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
    """An agent begins a response."""

    type: ClassVar[Literal["agent_start"]] = "agent_start"
    agent: RealtimeAgent[Any]
    info: RealtimeEventInfo


class RealtimeAgentEndEvent(msgspec.Struct):
    """An agent has ended its response."""

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
    """A tool has ended; `output` is what it returned."""

    type: ClassVar[Literal["tool_end"]] = "tool_end"
    agent: RealtimeAgent[Any]
    tool: FunctionTool
    arguments: str
    output: Any
    info: RealtimeEventInfo
    call_id: str


class RealtimeToolApprovalRequired(msgspec.Struct):
    """A call needs approval: use `session.approve_tool_call(call_id)` or `reject_tool_call(call_id)`."""

    type: ClassVar[Literal["tool_approval_required"]] = "tool_approval_required"
    agent: RealtimeAgent[Any]
    tool: FunctionTool
    call_id: str
    arguments: str
    info: RealtimeEventInfo


class RealtimeRawModelEvent(msgspec.Struct):
    """An event of the model, unchanged. The session gets every one of them."""

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
    """The end of this audio. `is_cut`: the connection was lost, and the rest will not arrive."""

    type: ClassVar[Literal["audio_end"]] = "audio_end"
    item_id: str
    content_index: int
    info: RealtimeEventInfo
    is_cut: bool = False


class RealtimeAudioInterrupted(msgspec.Struct):
    """Stop playing this content, and discard what was not played."""

    type: ClassVar[Literal["audio_interrupted"]] = "audio_interrupted"
    item_id: str
    content_index: int
    info: RealtimeEventInfo


class RealtimeError(msgspec.Struct):
    """Something failed, and the session goes on.

    `error` is a `RealtimeServerError` if the server rejected something, and otherwise the exception of a tool
    or guardrail.
    """

    type: ClassVar[Literal["error"]] = "error"
    error: Any
    info: RealtimeEventInfo


class RealtimeHistoryUpdated(msgspec.Struct):
    """The history has changed; this is the whole new one."""

    type: ClassVar[Literal["history_updated"]] = "history_updated"
    history: list[RealtimeItem]
    info: RealtimeEventInfo


class RealtimeHistoryAdded(msgspec.Struct):
    """An item was added to the history."""

    type: ClassVar[Literal["history_added"]] = "history_added"
    item: RealtimeItem
    info: RealtimeEventInfo


class RealtimeGuardrailTripped(msgspec.Struct):
    """A guardrail was triggered, and the response interrupted. `message` is the text up to there."""

    type: ClassVar[Literal["guardrail_tripped"]] = "guardrail_tripped"
    guardrail_results: list[OutputGuardrailResult]
    message: str
    info: RealtimeEventInfo


class RealtimeInputAudioTimeoutTriggered(msgspec.Struct):
    """The user has said nothing for a while."""

    type: ClassVar[Literal["input_audio_timeout_triggered"]] = "input_audio_timeout_triggered"
    info: RealtimeEventInfo


class RealtimeConnectionLost(msgspec.Struct):
    """The connection was lost, because of `error`; with `RealtimeReconnect` the session restores it."""

    type: ClassVar[Literal["connection_lost"]] = "connection_lost"
    error: Exception
    info: RealtimeEventInfo


class RealtimeReconnecting(msgspec.Struct):
    """The session tries to reconnect now.

    `number` is the number of this try, out of `tries`. `error` is why the one before failed, or why the
    connection was lost.
    """

    type: ClassVar[Literal["reconnecting"]] = "reconnecting"
    number: int
    tries: int
    error: Exception
    info: RealtimeEventInfo


class RealtimeReconnected(msgspec.Struct):
    """The session is connected again, and the model has the conversation so far.

    - `number`: how many tries it took. `seconds`: how long there was no connection.
    - `unknown_calls`: the ids of tool calls that are still running; the model gets their outputs when they
      end.
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
