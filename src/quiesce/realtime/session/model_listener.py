"""What a session makes of what its model says.

Invariants
- What comes from the model is dealt with by plain functions, in the order in which it came. Only tools and guardrails are tasks.
- The model waits where it has to: for a reader of the events who is slow, for tools where they hold up the conversation. Never behind a connection that has ended.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from quiesce._safe.printed import logger
from quiesce.agents import RunContextWrapper
from quiesce.realtime.openai import RecentSet, forget_oldest
from quiesce.realtime.words import (
    RealtimeAgentEndEvent,
    RealtimeAgentStartEvent,
    RealtimeAudio,
    RealtimeAudioEnd,
    RealtimeAudioInterrupted,
    RealtimeError,
    RealtimeEventInfo,
    RealtimeHistoryAdded,
    RealtimeHistoryUpdated,
    RealtimeInputAudioTimeoutTriggered,
    RealtimeLimits,
    RealtimeModelListener,
    RealtimeRawModelEvent,
    UserMessageItem,
)

from .history import History
from .received_audio import ReceivedAudio
from .tool_calls import NOT_BEGUN

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.realtime.words import AssumedPlayback, RealtimeRunConfig, RealtimeSessionEvent
    from quiesce.realtime.words import model_events as told

    from .active_agent import ActiveAgent
    from .event_buffer import EventBuffer
    from .output_guards import OutputGuards
    from .reconnecting import Reconnecting
    from .tool_calls import Call, ToolCalls

# What a model tells in the task of whoever tells it something, and who may be the one that is to read it: that waits for nobody.
_AT_ONCE = frozenset(("audio_interrupted", "item_updated"))


class ModelListener(RealtimeModelListener):
    """The part of a session that listens to its model: the history, the events, and whose response it is."""

    buffer: EventBuffer
    calls: ToolCalls
    cast: ActiveAgent
    guards: OutputGuards

    def __init__(self, context: Any, run_config: RealtimeRunConfig) -> None:
        self.context = RunContextWrapper(context)
        self.info = RealtimeEventInfo(self.context)
        self.limits = run_config.get("limits") or RealtimeLimits()
        self.history = History()
        self.playback: AssumedPlayback | None = None  # unless the user keeps an account
        self.is_cut_off = False  # the connection has ended, of which not all may have been told
        self.connected = False
        self.is_deaf = False  # what comes is of a connection that is given up
        self.audible = ReceivedAudio()
        self.blocked = RecentSet()  # items that a guardrail has said no to
        self.reconnecting: Reconnecting | None = None
        self._casts: dict[str | None, ActiveAgent] = {}  # of the responses that are on, as they began
        self._cut = RecentSet()  # interrupted, of which a piece may be on its way to us
        self._waits_for_tools = not run_config.get("async_tool_calls", True)

    @property
    @abstractmethod
    def closing(self) -> bool:
        """Whether a stop was asked for: nothing new begins."""

    @abstractmethod
    def is_telling(self) -> bool:
        """Whether this task tells the model something: it may be the one that is to read what we are told meanwhile."""

    @abstractmethod
    def lost(self, error: Exception | None, *, in_order: bool = False) -> None:
        """The model is gone, because of that error; `in_order`: it has said that it would go."""

    def add(self, event: RealtimeSessionEvent) -> None:
        """Tell whoever reads."""
        self.buffer.add(event)

    def failed(self, error: BaseException) -> None:
        """Something of the background has failed: that is an event."""
        self.add(RealtimeError(error, self.info))

    async def on_event(self, event: told.RealtimeModelEvent) -> None:
        """Take it in; wait if there is more than anybody reads."""
        if self.closing or self.is_deaf or (event.type == "audio" and self._is_unwanted(event)):
            return
        self.add(RealtimeRawModelEvent(event, self.info))
        take_in = _TAKE_IN.get(event.type)
        call: Call | None = None
        if take_in is not None:
            try:
                call = take_in(self, event)
            except Exception as error:  # of a guardrail's name, say: whoever reads must not wait in vain for what comes behind
                logger.exception("%s could not be dealt with", event.type)
                self.failed(error)
        if call is not None and self._waits_for_tools:
            await call.parked.wait()
        if call is not None:
            await self.calls.wait_for_fewer()
        if event.type not in _AT_ONCE and self.buffer.is_full and self.connected and not self.is_telling():
            await self.buffer.wait_for_room()

    def on_connection_ended(self) -> None:
        """The end is told behind what had come: neither a tool nor whoever reads may hold that up."""
        self.is_cut_off = True
        self.calls.let_go()
        self.buffer.let_in()

    def tool_answered(self, call_id: str, output: str) -> None:
        """A call has its output."""
        if self.history.answered(call_id, output):
            self.history_changed()

    def history_changed(self) -> None:
        """Tell whoever reads all of it."""
        self.add(RealtimeHistoryUpdated(list(self.history.items), self.info))

    def _is_unwanted(self, event: told.RealtimeModelAudioEvent) -> bool:
        """Whether it was interrupted, or a guardrail has said no to it."""
        return (event.item_id, event.content_index) in self._cut or self.guards.has_tripped(event.response_id)

    def _audio(self, event: told.RealtimeModelAudioEvent) -> None:
        self.audible.came(event)
        self.add(RealtimeAudio(event, event.item_id, event.content_index, self.info))

    def _audio_done(self, event: told.RealtimeModelAudioDoneEvent) -> None:
        self.audible.ended((event.item_id, event.content_index))
        self.add(RealtimeAudioEnd(event.item_id, event.content_index, self.info))

    def interrupted(self, event: told.RealtimeModelAudioInterruptedEvent) -> None:
        """This content is not played, or not played on."""
        place = (event.item_id, event.content_index)
        self.audible.ended(place)
        self._cut.add(place)
        self.buffer.drop_audio(lambda audio: (audio.item_id, audio.content_index) == place)
        if self.playback is not None:
            self.playback.on_cut(*place)
        self.guards.hushed(event.item_id)
        self.add(RealtimeAudioInterrupted(event.item_id, event.content_index, self.info))

    def _called(self, event: told.RealtimeModelToolCallEvent) -> Call | None:
        if not self.is_cut_off:
            return self.calls.came(event)
        # Nobody would hear what it returns. If the model comes back, it hears that.
        if self.history.answered(event.call_id, NOT_BEGUN, "incomplete"):
            self.history_changed()
        return None

    def _said(
        self, event: told.RealtimeModelTranscriptDeltaEvent | told.RealtimeModelOutputTextDeltaEvent
    ) -> None:
        self.history.said(event.item_id, event.delta, is_written=event.type == "output_text_delta")
        self.guards.heard(event.response_id, event.item_id, event.delta)

    def _heard(self, event: told.RealtimeModelInputAudioTranscriptionCompletedEvent) -> None:
        if self.history.heard(event.item_id, event.transcript):
            self.history_changed()

    def _silence(self, event: told.RealtimeModelInputAudioTimeoutTriggeredEvent) -> None:
        self.add(RealtimeInputAudioTimeoutTriggered(self.info))

    def _item(self, event: told.RealtimeModelItemUpdatedEvent) -> None:
        if self.reconnecting is not None and isinstance(event.item, UserMessageItem):
            self.reconnecting.outbox.confirmed(event.item)
        if self.history.put(event.item):
            self.add(RealtimeHistoryAdded(event.item, self.info))
        else:
            self.history_changed()

    def _item_deleted(self, event: told.RealtimeModelItemDeletedEvent) -> None:
        if self.history.delete(event.item_id):
            self.history_changed()

    def _turn_started(self, event: told.RealtimeModelTurnStartedEvent) -> None:
        if self.reconnecting is not None:
            self.reconnecting.outbox.answer_began()
        self.guards.began(event.response_id)
        self._casts[event.response_id] = self.cast
        forget_oldest(self._casts, RecentSet.MOST)
        self.add(RealtimeAgentStartEvent(self.cast.agent, self.info))

    def turn_ended(self, event: told.RealtimeModelTurnEndedEvent) -> None:
        """A response has ended."""
        if self.reconnecting is not None:
            self.reconnecting.outbox.answer_ended()
        self.guards.ended(event.response_id)
        self._cut.clear()
        cast = self._casts.pop(event.response_id, self.cast)
        self.add(RealtimeAgentEndEvent(cast.agent, self.info))

    def responses_on(self) -> list[str | None]:
        """Those that have begun, and not ended."""
        return list(self._casts)

    def cast_of(self, response_id: str | None) -> ActiveAgent:
        """Whose response it is, and which tools it was offered: a handoff in the middle of it does not change that."""
        return self._casts.get(response_id, self.cast)

    def _usage(self, event: told.RealtimeModelUsageEvent) -> None:
        self.context.usage.add(event.usage)

    def _error(self, event: told.RealtimeModelErrorEvent) -> None:
        self.add(RealtimeError(event.error, self.info))

    def _exception(self, event: told.RealtimeModelExceptionEvent) -> None:
        self.lost(event.exception)

    def _end_of_stream(self, event: told.RealtimeModelEndOfStreamEvent) -> None:
        self.lost(event.error, in_order=True)


_TAKE_IN: dict[str, Callable[[ModelListener, Any], Any]] = {
    "audio": ModelListener._audio,
    "audio_done": ModelListener._audio_done,
    "audio_interrupted": ModelListener.interrupted,
    "function_call": ModelListener._called,
    "transcript_delta": ModelListener._said,
    "output_text_delta": ModelListener._said,
    "input_audio_transcription_completed": ModelListener._heard,
    "input_audio_timeout_triggered": ModelListener._silence,
    "item_updated": ModelListener._item,
    "item_deleted": ModelListener._item_deleted,
    "turn_started": ModelListener._turn_started,
    "turn_ended": ModelListener.turn_ended,
    "usage": ModelListener._usage,
    "error": ModelListener._error,
    "exception": ModelListener._exception,
    "end_of_stream": ModelListener._end_of_stream,
}
