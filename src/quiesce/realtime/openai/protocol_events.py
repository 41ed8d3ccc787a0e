"""What each event of the server means.

There is one function per event. It adds to `events`, which go to the listeners and begin with the raw event,
and returns the frames to send.
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

    from quiesce.realtime.words import ItemStatus, RealtimeModelEvent

    from .protocol_state import Exchange

    Events: TypeAlias = list[RealtimeModelEvent]

NOT_RUN = "The call was not run: the response that asked for it was interrupted."


def forward_unmapped(events: Events) -> None:
    """Pass on an event that has no typed counterpart."""
    raw: Any = events[0]
    try:
        events.append(RealtimeModelOtherEvent(raw.data))
    except server.UNREADABLE as error:
        # The typed decoder skips unknown fields. Only decoding them all shows that one is malformed.
        _, fault = server.look_again(raw.frame, error)
        events[:] = [RealtimeModelErrorEvent(fault)]


def _audio_delta(state: Exchange, event: server.AudioDelta, events: Events) -> list[bytes]:
    responses, response_id = state.responses, event.response_id
    if response_id in responses.silenced or state.speech.is_cut(event):
        late = state.speech.add_unplayed(event, responses.is_outside(response_id))
        return responses.stop(response_id) + late
    state.speech.add_audio(event, responses.is_outside(response_id))
    events.append(RealtimeModelAudioEvent(event.delta, response_id, event.item_id, event.content_index))
    return []


def _audio_done(state: Exchange, event: server.AudioDone, events: Events) -> list[bytes]:
    state.speech.complete(event.item_id, event.content_index)
    events.append(RealtimeModelAudioDoneEvent(event.item_id, event.content_index))
    return []


def _transcript_delta(state: Exchange, event: server.TranscriptDelta, events: Events) -> list[bytes]:
    state.speech.add_words(event)
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
                    or f"the response {response.id or ''} has failed, and the server gives no reason",
                    error.code,
                )
            )
        )
    return state.responses.done(response)


def _usage(tokens: server.Tokens | None) -> RealtimeModelUsageEvent:
    if tokens is None:  # it was stopped before the server could count
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
    _add_item(state, event.item, "in_progress", events)
    return []


def _output_item_done(state: Exchange, event: server.OutputItemDone, events: Events) -> list[bytes]:
    item = event.item
    # A call that was interrupted has arguments that are cut off; only a complete one may be run.
    if item.type != "function_call" or item.status != "completed":
        _add_item(state, item, "completed", events)
        return []
    if not item.call_id or not item.name:
        lacks = "call_id, so it cannot be answered" if not item.call_id else "name"
        fault = (
            f"the server's event 'response.output_item.done' has a function call ({item.id}) without {lacks}"
        )
        events.append(
            RealtimeModelErrorEvent(server.MalformedServerEvent(fault, "response.output_item.done"))
        )
        return []
    if not state.is_new_call(item.call_id):
        return []
    call = state.items.as_history(item, "in_progress")
    if event.response_id in state.responses.stopped:
        call = state.items.answered(item.call_id, NOT_RUN, "incomplete")
    assert call is not None
    events.append(RealtimeModelItemUpdatedEvent(call))
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
    # The listeners know restored items, and better: the server has only the text of their speech.
    if event.item.id in state.restored and not isinstance(event, server.ItemRetrieved):
        return []
    status: ItemStatus = (
        "completed" if isinstance(event, server.ItemDone | server.ItemRetrieved) else "in_progress"
    )
    _add_item(state, event.item, status, events)
    return []


def _add_item(state: Exchange, item: server.Item, status: ItemStatus, events: Events) -> None:
    known = state.items.as_history(item, status)
    if known is not None:
        events.append(RealtimeModelItemUpdatedEvent(state.speech.as_heard(known)))
    else:
        forward_unmapped(events)


def _item_deleted(state: Exchange, event: server.ItemDeleted, events: Events) -> list[bytes]:
    state.items.delete(event.item_id)
    state.speech.forget(event.item_id)
    events.append(RealtimeModelItemDeletedEvent(event.item_id))
    return []


def _item_truncated(state: Exchange, event: server.ItemTruncated, events: Events) -> list[bytes]:
    forward_unmapped(events)
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
    why = error.message or "the server gives no reason"
    message = f"what the user said in {event.item_id} could not be transcribed: {why}"
    events.append(_error_event(error, "transcription_failed", message))
    return []


def _speech_started(state: Exchange, event: server.SpeechStarted, events: Events) -> list[bytes]:
    responses = state.responses
    forward_unmapped(events)
    responses.begins_by_itself()
    # The user speaks, so playback stops at once, whether or not the server ends the response by itself.
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
    forward_unmapped(events)
    state.learn(event.session, events)
    # Our own settings are on their way: the server will have them before anything that we send later.
    state.learn(state.initial_session, events)
    return []


def _session_updated(state: Exchange, event: server.SessionUpdated, events: Events) -> list[bytes]:
    forward_unmapped(events)
    state.learn(event.session, events)
    return []


def _error(state: Exchange, event: server.Error, events: Events) -> list[bytes]:
    error = event.error
    if state.responses.is_late_cancel(error):
        forward_unmapped(events)
        return state.responses.refused(error)
    events.append(_error_event(error, "error", error.message or ""))
    return state.responses.refused(error)


def _error_event(error: server.ServerError, kind: str, message: str) -> RealtimeModelErrorEvent:
    return RealtimeModelErrorEvent(
        RealtimeServerError(error.type or kind, message, error.code, error.event_id, error.param)
    )


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
