"""What each event of the server means: one function for each, which adds to the events for the listeners, and returns frames to send.

`events` begins with the raw event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from quiesce.models import Usage
from quiesce.realtime.words import (
    AssistantMessageItem,
    RealtimeModelAudioDoneEvent,
    RealtimeModelAudioEvent,
    RealtimeModelErrorEvent,
    RealtimeModelInputAudioTimeoutTriggeredEvent,
    RealtimeModelInputAudioTranscriptionCompletedEvent,
    RealtimeModelItemDeletedEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelOtherEvent,
    RealtimeModelOutputTextDeltaEvent,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
    RealtimeModelUsageEvent,
    RealtimeServerError,
)

from . import server_events as server
from .client_events import tool_output

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.realtime.words import RealtimeModelEvent

    from .conversation_items import Status
    from .protocol_state import Exchange

    Events: TypeAlias = list[RealtimeModelEvent]

NOT_RUN = "The call was not run: the response that asked for it was interrupted."


def other(events: Events) -> None:
    """There is no word for it."""
    raw: Any = events[0]
    try:
        events.append(RealtimeModelOtherEvent(raw.data))
    except server.UNREADABLE as error:  # in a place where nobody has looked before
        _, wrong = server.look_again(raw.frame, error)
        events[:] = [RealtimeModelErrorEvent(wrong)]


def _audio_delta(state: Exchange, event: server.AudioDelta, events: Events) -> list[bytes]:
    responses, response_id = state.responses, event.response_id
    if response_id in responses.silenced or state.speech.is_cut(event):
        late = state.speech.came_too_late(event, responses.is_outside(response_id))
        return responses.stop(response_id) + late
    state.speech.came(event, responses.is_outside(response_id))
    events.append(RealtimeModelAudioEvent(event.delta, response_id, event.item_id, event.content_index))
    return []


def _audio_done(state: Exchange, event: server.AudioDone, events: Events) -> list[bytes]:
    state.speech.ended(event.item_id, event.content_index)
    events.append(RealtimeModelAudioDoneEvent(event.item_id, event.content_index))
    return []


def _transcript_delta(state: Exchange, event: server.TranscriptDelta, events: Events) -> list[bytes]:
    state.speech.said(event)
    events.append(RealtimeModelTranscriptDeltaEvent(event.item_id, event.delta, event.response_id))
    return state.responses.stop(event.response_id)


def _text_delta(state: Exchange, event: server.TextDelta, events: Events) -> list[bytes]:
    events.append(RealtimeModelOutputTextDeltaEvent(event.item_id, event.delta, event.response_id))
    return state.responses.stop(event.response_id)


def _response_created(state: Exchange, event: server.ResponseCreated, events: Events) -> list[bytes]:
    events.append(RealtimeModelTurnStartedEvent(event.response.id))
    return state.responses.created(event.response)


def _response_done(state: Exchange, event: server.ResponseDone, events: Events) -> list[bytes]:
    response = event.response
    events.append(_usage(response.usage))
    events.append(RealtimeModelTurnEndedEvent(response.id, response.status))
    if response.status == "failed":
        details = response.status_details
        error = (details.error if details is not None else None) or server.ServerError()
        events.append(
            RealtimeModelErrorEvent(
                RealtimeServerError(
                    error.type or "response_failed",
                    error.message
                    or f"the response {response.id or ''} has failed, and the server does not say why",
                    error.code,
                )
            )
        )
    return state.responses.done(response)


def _usage(tokens: server.Tokens | None) -> RealtimeModelUsageEvent:
    if tokens is None:  # it was stopped before that was known
        return RealtimeModelUsageEvent(Usage(requests=1, unreported=1))
    cached = (tokens.input_token_details or {}).get("cached_tokens")
    return RealtimeModelUsageEvent(
        Usage(
            requests=1,
            input_tokens=tokens.input_tokens or 0,
            output_tokens=tokens.output_tokens or 0,
            cached_input_tokens=cached if isinstance(cached, int) else 0,
        ),
        tokens.input_token_details,
        tokens.output_token_details,
    )


def _output_item_added(state: Exchange, event: server.OutputItemAdded, events: Events) -> list[bytes]:
    _tell_item(state, event.item, "in_progress", events)
    return []


def _output_item_done(state: Exchange, event: server.OutputItemDone, events: Events) -> list[bytes]:
    item = event.item
    if item.type != "function_call" or item.status != "completed":
        _tell_item(state, item, "completed", events)
        return []
    if not item.call_id or not item.name:
        lacks = "call_id: nobody could answer it" if not item.call_id else "name"
        wrong = (
            f"the server's event 'response.output_item.done' has a function call ({item.id}) without {lacks}"
        )
        events.append(
            RealtimeModelErrorEvent(server.MalformedServerEvent(wrong, "response.output_item.done"))
        )
        return []
    if state.is_told(item.call_id):
        return []
    told = state.items.told(item, "in_progress")
    if event.response_id in state.responses.stopped:
        told = state.items.answered(item.call_id, NOT_RUN, "incomplete")
    assert told is not None
    events.append(RealtimeModelItemUpdatedEvent(told))
    if event.response_id in state.responses.stopped:
        return [tool_output(item.call_id, NOT_RUN)]
    events.append(
        RealtimeModelToolCallEvent(
            item.name,
            item.call_id,
            item.arguments or "",
            item.id,
            state.items.before(item.id),
            event.response_id,
        )
    )
    return []


def _item_added(state: Exchange, event: server.ItemAdded, events: Events) -> list[bytes]:
    state.items.follows(event.item.id, event.previous_item_id)
    if event.item.id in state.restored and not isinstance(event, server.ItemRetrieved):
        return []
    status: Status = (
        "completed" if isinstance(event, server.ItemDone | server.ItemRetrieved) else "in_progress"
    )
    _tell_item(state, event.item, status, events)
    return []


def _tell_item(state: Exchange, item: server.Item, status: Status, events: Events) -> None:
    told = state.items.told(item, status)
    if told is not None:
        events.append(RealtimeModelItemUpdatedEvent(state.speech.as_heard(told)))
    else:
        other(events)


def _item_deleted(state: Exchange, event: server.ItemDeleted, events: Events) -> list[bytes]:
    state.items.delete(event.item_id)
    state.speech.forget(event.item_id)
    events.append(RealtimeModelItemDeletedEvent(event.item_id))
    return []


def _item_truncated(state: Exchange, event: server.ItemTruncated, events: Events) -> list[bytes]:
    other(events)
    heard = state.speech.truncated(event)
    if heard:
        before = state.items.before(event.item_id)
        events.append(
            RealtimeModelItemUpdatedEvent(AssistantMessageItem(event.item_id, heard, "incomplete", before))
        )
    return []


def _transcription_completed(
    state: Exchange, event: server.TranscriptionCompleted, events: Events
) -> list[bytes]:
    events.append(RealtimeModelInputAudioTranscriptionCompletedEvent(event.item_id, event.transcript))
    return []


def _transcription_failed(state: Exchange, event: server.TranscriptionFailed, events: Events) -> list[bytes]:
    error = event.error
    why = error.message or "the server does not say why"
    events.append(
        RealtimeModelErrorEvent(
            RealtimeServerError(
                error.type or "transcription_failed",
                f"what the user said in {event.item_id} could not be transcribed: {why}",
                error.code,
                error.event_id,
                error.param,
            )
        )
    )
    return []


def _speech_started(state: Exchange, event: server.SpeechStarted, events: Events) -> list[bytes]:
    responses = state.responses
    other(events)
    responses.begins_by_itself()
    frames = state.speech.cut(responses, events)
    if responses.id is not None:
        responses.silenced.add(responses.id)
    return frames if state.interrupts_by_itself else responses.cancel() + frames


def _timeout_triggered(state: Exchange, event: server.TimeoutTriggered, events: Events) -> list[bytes]:
    state.responses.begins_by_itself()
    events.append(
        RealtimeModelInputAudioTimeoutTriggeredEvent(event.item_id, event.audio_start_ms, event.audio_end_ms)
    )
    return []


def _session_created(state: Exchange, event: server.SessionCreated, events: Events) -> list[bytes]:
    other(events)
    state.learn(event.session, events)
    state.learn(state.asked_for, events)  # that was sent already, and will be so
    return []


def _session_updated(state: Exchange, event: server.SessionUpdated, events: Events) -> list[bytes]:
    other(events)
    state.learn(event.session, events)
    return []


def _error(state: Exchange, event: server.Error, events: Events) -> list[bytes]:
    error = event.error
    if state.responses.is_late_cancel(error):
        other(events)
        return state.responses.refused(error)
    events.append(
        RealtimeModelErrorEvent(
            RealtimeServerError(
                error.type or "error", error.message or "", error.code, error.event_id, error.param
            )
        )
    )
    return state.responses.refused(error)


MEANING: dict[type[Any], Callable[[Exchange, Any, Events], list[bytes]]] = {
    server.AudioDelta: _audio_delta,
    server.BetaAudioDelta: _audio_delta,
    server.AudioDone: _audio_done,
    server.BetaAudioDone: _audio_done,
    server.TranscriptDelta: _transcript_delta,
    server.BetaTranscriptDelta: _transcript_delta,
    server.TextDelta: _text_delta,
    server.BetaTextDelta: _text_delta,
    server.ResponseCreated: _response_created,
    server.ResponseDone: _response_done,
    server.OutputItemAdded: _output_item_added,
    server.OutputItemDone: _output_item_done,
    server.ItemAdded: _item_added,
    server.ItemCreated: _item_added,
    server.ItemDone: _item_added,
    server.ItemRetrieved: _item_added,
    server.ItemDeleted: _item_deleted,
    server.ItemTruncated: _item_truncated,
    server.TranscriptionCompleted: _transcription_completed,
    server.TranscriptionFailed: _transcription_failed,
    server.SpeechStarted: _speech_started,
    server.TimeoutTriggered: _timeout_triggered,
    server.SessionCreated: _session_created,
    server.SessionUpdated: _session_updated,
    server.Error: _error,
}
