"""The OpenAI Realtime protocol as pure functions: frames in, events and frames out. Nothing here waits.

Invariants
- `receive` never raises. A malformed frame becomes an error event that describes it, and the next frame is
  handled as usual.
- Only one response at a time is requested, and none that was wanted is lost unless it is interrupted: see
  `responses`.
- The model learns how much of its speech was heard: see `speech`. Audio of an interrupted response is not
  passed on.
- The conversation of an earlier connection is sent to the server only. The listeners know it, so the server's
  events about it are not passed on.
- A tool call is passed on once, and only if it is complete. If it is complete after its response was stopped,
  it is not passed on, and the model gets the output that it was not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from quiesce.agents import UserError
from quiesce.realtime.words import (
    RealtimeModelErrorEvent,
    RealtimeModelEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelOtherEvent,
    RealtimeModelRawServerEvent,
    RealtimeModelSendAudio,
    RealtimeModelSendEvent,
    RealtimeModelSendHistory,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
    RealtimeToolCallItem,
)

from . import client_events as client
from . import server_events as server
from .protocol_events import MEANING
from .protocol_state import Exchange
from .restored_items import wire_items
from .session_update import DEFAULT_MODEL, wire_session

if TYPE_CHECKING:
    from quiesce.realtime.words import (
        RealtimeModelToolCallEvent,
        RealtimePlaybackTracker,
        RealtimeSessionModelSettings,
    )

__all__ = ["DEFAULT_MODEL", "Outcome", "Protocol"]

Outcome: TypeAlias = tuple[list[RealtimeModelEvent], list[bytes]]
"""Events for the listeners, and frames to send."""


class Protocol:
    """The state and the rules of one connection."""

    def __init__(self, tracker: RealtimePlaybackTracker) -> None:
        self._state = Exchange(tracker)
        self._is_traced = False

    def connected(self, settings: RealtimeSessionModelSettings, *, is_joined: bool = False) -> list[bytes]:
        """Return the first frames to send.

        `is_joined`: the call exists already, and its model and formats change only if they are given.
        """
        session = wire_session(settings, is_first=True, is_joined=is_joined)
        self._is_traced = session.get("tracing") is not None
        frame = client.session_update(session)
        self._state.initial_session = session
        events: list[RealtimeModelEvent] = []
        self._state.learn(session, events)
        for event in events:
            # The tracker may be the user's own code. There are no listeners yet, so its error is raised.
            if isinstance(event, RealtimeModelErrorEvent):
                raise event.error
        return [frame]

    def receive(self, frame: bytes) -> Outcome:
        """Take a frame of the server; return the events for the listeners, and the frames to send."""
        try:
            event = server.decode(frame)
        except server.UNREADABLE as error:
            return self._unreadable(frame, error), []
        events: list[RealtimeModelEvent] = [RealtimeModelRawServerEvent(frame)]
        return events, MEANING[type(event)](self._state, event, events)

    def _unreadable(self, frame: bytes, error: Exception) -> list[RealtimeModelEvent]:
        data, fault = server.look_again(frame, error)
        if data is msgspec.UNSET:
            return [RealtimeModelErrorEvent(fault)]
        raw = RealtimeModelRawServerEvent(frame)
        vars(raw)["data"] = data  # fills its cached property, so that it is not decoded again
        return [raw, RealtimeModelOtherEvent(data) if fault is None else RealtimeModelErrorEvent(fault)]

    def send(self, event: RealtimeModelSendEvent) -> Outcome:
        """Take something to send; return the events that follow from it at once, and the frames."""
        responses = self._state.responses
        match event:
            case RealtimeModelSendAudio():
                return [], self._audio(event)
            case RealtimeModelSendUserInput():
                return [], [client.user_message(event.user_input), *responses.want()]
            case RealtimeModelSendToolOutput():
                return self._tool_output(event)
            case RealtimeModelSendInterrupt():
                return self._interrupt(event)
            case RealtimeModelSendSessionUpdate():
                return self._session_update(event)
            case RealtimeModelSendHistory():
                return [], self._history(event)
            case RealtimeModelSendRawMessage():
                return self._raw_message(event)
            case _:
                raise UserError(f"send_event takes one of RealtimeModelSendEvent, not {type(event).__name__}")

    def _audio(self, event: RealtimeModelSendAudio) -> list[bytes]:
        frames = client.audio_append(event.audio)
        if event.commit:
            frames.append(client.AUDIO_COMMIT)
            if not self._state.has_turn_detection:  # otherwise the server answers by itself
                frames += self._state.responses.want()
        return frames

    def _tool_output(self, event: RealtimeModelSendToolOutput) -> Outcome:
        call = event.tool_call
        if not isinstance(event.output, str):
            raise UserError(
                f"the output of {call.name!r} must be a str here, not {type(event.output).__name__}"
            )
        frames = self._output_frames(call, event.output)
        item = self._state.items.answered(
            call.call_id,
            event.output,
            call=RealtimeToolCallItem(
                call.id or call.call_id,
                call.call_id,
                call.name,
                call.arguments,
                previous_item_id=call.previous_item_id,
            ),
        )
        if event.start_response:
            frames += self._state.responses.want()
        return [RealtimeModelItemUpdatedEvent(item)] if item is not None else [], frames

    def _output_frames(self, call: RealtimeModelToolCallEvent, output: str) -> list[bytes]:
        provisional = self._state.provisional.pop(call.call_id, None)
        if provisional is None:
            return [client.tool_output(call.call_id, output)]
        # Replace the output that said "unknown", at the same place, next to the call.
        return [
            client.item_delete(provisional),
            client.tool_output(call.call_id, output, after=call.id),
        ]

    def _history(self, event: RealtimeModelSendHistory) -> list[bytes]:
        state = self._state
        frames: list[bytes] = []
        for number, item in enumerate(event.items, 1):
            # An id of our own, so that the output can be deleted when the real one is there.
            output_id = f"restored_{number}"
            sent = wire_items(item, output_id)
            frames += [client.item_create(each) for each in sent]
            state.restored.update(each["id"] for each in sent if "id" in each)
            if isinstance(item, RealtimeToolCallItem) and item.status == "in_progress" and sent:
                state.provisional[sent[1]["call_id"]] = output_id
        return frames

    def _interrupt(self, event: RealtimeModelSendInterrupt) -> Outcome:
        if event.playback_only and (event.cancel_response_only or event.force_response_cancel):
            raise UserError(
                "playback_only leaves the response running: it cannot be combined with cancelling the response"
            )
        state, responses = self._state, self._state.responses
        if event.response_id is None and not event.playback_only:
            # An interrupt without an id means everything, also answers that have not begun.
            responses.stop_wanted()
        response_id = event.response_id if event.response_id is not None else responses.id
        is_active = responses.is_active(response_id)
        events: list[RealtimeModelEvent] = []
        frames: list[bytes] = []
        if not event.playback_only and is_active:
            if response_id is not None:
                responses.stopped.add(response_id)
            if event.force_response_cancel or event.cancel_response_only or not state.interrupts_by_itself:
                frames += responses.cancel(response_id)
        if not event.cancel_response_only:
            frames += state.speech.cut(responses, events, event.response_id)
            if response_id is not None and is_active:
                responses.silenced.add(response_id)
        return events, frames

    def _session_update(self, event: RealtimeModelSendSessionUpdate) -> Outcome:
        session = wire_session(event.session_settings)
        if self._state.has_prompt and "instructions" in session:
            # New instructions without a prompt come from another agent; the prompt of the old one must go.
            session.setdefault("prompt", None)
        if self._is_traced:
            session.pop("tracing", None)  # the server does not allow to change it
        self._is_traced = self._is_traced or session.get("tracing") is not None
        frame = client.session_update(session)
        events: list[RealtimeModelEvent] = []
        self._state.learn(session, events)
        return events, [frame]

    def _raw_message(self, event: RealtimeModelSendRawMessage) -> Outcome:
        message = client.raw_message(event.message)
        # Not sent as it is: it has to take its turn with the other requests.
        if message["type"] == "response.create":
            return [], self._state.responses.want_this(message)
        frame = client.encode(message)
        events: list[RealtimeModelEvent] = []
        if message["type"] == "session.update" and isinstance(message.get("session"), Mapping):
            self._state.learn(message["session"], events)
        return events, [frame]
