"""How a session handles the events of its model.

Invariants
- Events of the model are handled by plain functions, in the order of their arrival. Only tools and guardrails
  are tasks.
- The model waits where it has to: for a slow reader of the events, and for tools if `async_tool_calls` is
  off. It never waits once its connection has ended.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from quiesce._safe.printed import logger
from quiesce.realtime.words import (
    RealtimeAgentEndEvent,
    RealtimeAgentStartEvent,
    RealtimeAudio,
    RealtimeAudioEnd,
    RealtimeAudioInterrupted,
    RealtimeError,
    RealtimeHistoryAdded,
    RealtimeInputAudioTimeoutTriggered,
    RealtimeModelListener,
    RealtimeRawModelEvent,
    RecentSet,
    UserMessageItem,
    forget_oldest,
)

from .session_state import SessionState
from .tool_calls import NOT_BEGUN

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.realtime.words import AssumedPlayback, RealtimeRunConfig
    from quiesce.realtime.words import model_events as events

    from .output_guards import OutputGuards
    from .reconnecting import Reconnecting
    from .tool_calls import Call, ToolCalls

# A model emits these also in the task that sends something to it, which may be the only reader of the events.
# To wait for room in the buffer would be a deadlock then.
_NEVER_WAIT = frozenset(("audio_interrupted", "item_updated"))


class ModelListener(SessionState, RealtimeModelListener):
    """The part of a session that handles the events of its model."""

    calls: ToolCalls
    guards: OutputGuards

    def __init__(self, context: Any, run_config: RealtimeRunConfig) -> None:
        super().__init__(context, run_config)
        self.playback: AssumedPlayback | None = None  # None if the user has a tracker
        self.reconnecting: Reconnecting | None = None
        self._interrupted = RecentSet()  # contents of which more audio may still arrive
        self._waits_for_tools = not run_config.get("async_tool_calls", True)

    @abstractmethod
    def is_sending(self) -> bool:
        """Return whether this task is sending to the model: it may be the one that reads the events."""

    @abstractmethod
    def connection_lost(self, error: Exception | None, *, in_order: bool = False) -> None:
        """Reconnect, or end the session; `in_order`: the model announced the end."""

    async def on_event(self, event: events.RealtimeModelEvent) -> None:
        """Handle an event; wait if the readers are behind."""
        if self.closing or self.ignores_model or (event.type == "audio" and self._is_unwanted(event)):
            return
        self.add(RealtimeRawModelEvent(event, self.info))
        handle = _HANDLERS.get(event.type)
        call: Call | None = None
        if handle is not None:
            try:
                call = handle(self, event)
            except (
                Exception
            ) as error:  # from user code, such as the name of a guardrail; later events must go on
                logger.exception("an event %s could not be handled", event.type)
                self.failed(error)
        # To wait here makes the model wait: it awaits each of these calls before it reads on.
        if call is not None and self._waits_for_tools:
            await call.parked.wait()
        if call is not None:
            await self.calls.wait_for_fewer()
        if event.type not in _NEVER_WAIT and self.buffer.is_full and self.connected and not self.is_sending():
            await self.buffer.wait_for_room()

    def on_connection_ended(self) -> None:
        """Release everything that makes the model wait: the event of the end comes after those that wait."""
        self.connection_ended = True
        self.calls.release()
        self.buffer.lift_bound()

    def _is_unwanted(self, event: events.RealtimeModelAudioEvent) -> bool:
        """Return whether this content was interrupted, or has triggered a guardrail."""
        place = (event.item_id, event.content_index)
        return place in self._interrupted or self.guards.has_tripped(event.response_id)

    def _audio(self, event: events.RealtimeModelAudioEvent) -> None:
        self.received_audio.add(event)
        self.add(RealtimeAudio(event, event.item_id, event.content_index, self.info))

    def _audio_done(self, event: events.RealtimeModelAudioDoneEvent) -> None:
        self.received_audio.complete((event.item_id, event.content_index))
        self.add(RealtimeAudioEnd(event.item_id, event.content_index, self.info))

    def interrupted(self, event: events.RealtimeModelAudioInterruptedEvent) -> None:
        """Stop the playing of a content."""
        place = (event.item_id, event.content_index)
        self.received_audio.complete(place)
        self._interrupted.add(place)
        # Audio that no reader has taken yet must not be played either.
        self.buffer.drop_audio(lambda audio: (audio.item_id, audio.content_index) == place)
        if self.playback is not None:
            self.playback.on_cut(*place)
        self.guards.note_interrupt(event.item_id)
        self.add(RealtimeAudioInterrupted(event.item_id, event.content_index, self.info))

    def _tool_called(self, event: events.RealtimeModelToolCallEvent) -> Call | None:
        if not self.connection_ended:
            return self.calls.start(event)
        # The model could not get the output. If it comes back, it learns that the call was not run.
        if self.history.set_output(event.call_id, NOT_BEGUN, "incomplete"):
            self.history_changed()
        return None

    def _words(
        self, event: events.RealtimeModelTranscriptDeltaEvent | events.RealtimeModelOutputTextDeltaEvent
    ) -> None:
        self.history.add_words(event.item_id, event.delta, is_written=event.type == "output_text_delta")
        self.guards.add_text(event.response_id, event.item_id, event.delta)

    def _transcribed(self, event: events.RealtimeModelInputAudioTranscriptionCompletedEvent) -> None:
        if self.history.set_transcript(event.item_id, event.transcript):
            self.history_changed()

    def _input_timeout(self, event: events.RealtimeModelInputAudioTimeoutTriggeredEvent) -> None:
        self.add(RealtimeInputAudioTimeoutTriggered(self.info))

    def _item(self, event: events.RealtimeModelItemUpdatedEvent) -> None:
        if self.reconnecting is not None and isinstance(event.item, UserMessageItem):
            self.reconnecting.outbox.confirm(event.item)
        if self.history.put(event.item):
            self.add(RealtimeHistoryAdded(event.item, self.info))
        else:
            self.history_changed()

    def _item_deleted(self, event: events.RealtimeModelItemDeletedEvent) -> None:
        if self.history.delete(event.item_id):
            self.history_changed()

    def _turn_started(self, event: events.RealtimeModelTurnStartedEvent) -> None:
        if self.reconnecting is not None:
            self.reconnecting.outbox.response_began()
        self.guards.response_began(event.response_id)
        self._responses[event.response_id] = self.active_agent
        forget_oldest(self._responses, RecentSet.MOST)
        self.add(RealtimeAgentStartEvent(self.active_agent.agent, self.info))

    def turn_ended(self, event: events.RealtimeModelTurnEndedEvent) -> None:
        """Take note that a response has ended."""
        if self.reconnecting is not None:
            self.reconnecting.outbox.response_ended()
        self.guards.response_ended(event.response_id)
        # No more audio of the interrupted contents can arrive after the end of the response.
        self._interrupted.clear()
        active = self._responses.pop(event.response_id, self.active_agent)
        self.add(RealtimeAgentEndEvent(active.agent, self.info))

    def _usage(self, event: events.RealtimeModelUsageEvent) -> None:
        self.context.usage.add(event.usage)

    def _error(self, event: events.RealtimeModelErrorEvent) -> None:
        self.add(RealtimeError(event.error, self.info))

    def _exception(self, event: events.RealtimeModelExceptionEvent) -> None:
        self.connection_lost(event.exception)

    def _end_of_stream(self, event: events.RealtimeModelEndOfStreamEvent) -> None:
        self.connection_lost(event.error, in_order=True)


_HANDLERS: dict[str, Callable[[ModelListener, Any], Any]] = {
    "audio": ModelListener._audio,
    "audio_done": ModelListener._audio_done,
    "audio_interrupted": ModelListener.interrupted,
    "function_call": ModelListener._tool_called,
    "transcript_delta": ModelListener._words,
    "output_text_delta": ModelListener._words,
    "input_audio_transcription_completed": ModelListener._transcribed,
    "input_audio_timeout_triggered": ModelListener._input_timeout,
    "item_updated": ModelListener._item,
    "item_deleted": ModelListener._item_deleted,
    "turn_started": ModelListener._turn_started,
    "turn_ended": ModelListener.turn_ended,
    "usage": ModelListener._usage,
    "error": ModelListener._error,
    "exception": ModelListener._exception,
    "end_of_stream": ModelListener._end_of_stream,
}
