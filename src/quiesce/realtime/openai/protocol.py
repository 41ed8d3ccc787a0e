"""What the OpenAI Realtime wire means. Nothing here waits, and nothing is a task: frames in, events and frames out.

Invariants
- `came` never raises. What is malformed is an error event that names it, and the next frame is dealt with as if nothing had been.
- One response at a time is asked for, and none that was wanted is lost, unless it is interrupted: see `responses`.
- What the model is told of its own speech is what was heard: see `speech`. Audio of a response that was interrupted is not told any more.
- What an earlier connection had told is told again to the server alone: the listeners know it, and the server's word for it is not told.
- A tool call is told once, and only if it is complete. One that is complete after its response was stopped is not told; the model is answered
  that it was not run.
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
    """What the wire means, and what is being said: responses that are on, audio that is being played. It serves one connection."""

    def __init__(self, tracker: RealtimePlaybackTracker) -> None:
        self._state = Exchange(tracker)
        self._is_traced = False

    def connected(self, settings: RealtimeSessionModelSettings, *, is_joined: bool = False) -> list[bytes]:
        """The first things to send. `is_joined`: to a call that is on, whose model and formats are not changed unless they are given."""
        session = wire_session(settings, is_first=True, is_joined=is_joined)
        self._is_traced = session.get("tracing") is not None
        frame = client.session_update(session)
        self._state.asked_for = session
        events: list[RealtimeModelEvent] = []
        self._state.learn(session, events)
        for event in events:
            if isinstance(event, RealtimeModelErrorEvent):  # of the user's own account: nobody listens yet
                raise event.error
        return [frame]

    def came(self, frame: bytes) -> Outcome:
        """A message of the server: what it means for the listeners (the message itself is the first), and what to send for it."""
        try:
            event = server.decode(frame)
        except server.UNREADABLE as error:
            return self._not_understood(frame, error), []
        events: list[RealtimeModelEvent] = [RealtimeModelRawServerEvent(frame)]
        return events, MEANING[type(event)](self._state, event, events)

    def _not_understood(self, frame: bytes, error: Exception) -> list[RealtimeModelEvent]:
        data, wrong = server.look_again(frame, error)
        if data is msgspec.UNSET:
            return [RealtimeModelErrorEvent(wrong)]
        raw = RealtimeModelRawServerEvent(frame)
        vars(raw)["data"] = data  # it is decoded already
        return [raw, RealtimeModelOtherEvent(data) if wrong is None else RealtimeModelErrorEvent(wrong)]

    def send(self, event: RealtimeModelSendEvent) -> Outcome:
        """Something to be told to the server: what to send for it, and what follows from it at once."""
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
                raise UserError(
                    f"a model is told something of RealtimeModelSendEvent, not {type(event).__name__}"
                )

    def _audio(self, event: RealtimeModelSendAudio) -> list[bytes]:
        frames = client.audio_append(event.audio)
        if event.commit:
            frames.append(client.AUDIO_COMMIT)
            if not self._state.has_turn_detection:  # else the server answers by itself
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
        # It takes the place of what was said of it, which is next to the call.
        return [
            client.item_delete(provisional),
            client.tool_output(call.call_id, output, after=call.id),
        ]

    def _history(self, event: RealtimeModelSendHistory) -> list[bytes]:
        state = self._state
        frames: list[bytes] = []
        for number, item in enumerate(event.items, 1):
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
                "playback_only leaves the response as it is: it does not go with the cancelling of one"
            )
        state, responses = self._state, self._state.responses
        if event.response_id is None and not event.playback_only:
            responses.stop_wanted()
        response_id = event.response_id if event.response_id is not None else responses.id
        is_on = responses.is_on(response_id)
        events: list[RealtimeModelEvent] = []
        frames: list[bytes] = []
        if not event.playback_only and is_on:
            if response_id is not None:
                responses.stopped.add(response_id)
            if event.force_response_cancel or event.cancel_response_only or not state.interrupts_by_itself:
                frames += responses.cancel(response_id)
        if not event.cancel_response_only:
            frames += state.speech.cut(responses, events, event.response_id)
            if response_id is not None and is_on:
                responses.silenced.add(response_id)
        return events, frames

    def _session_update(self, event: RealtimeModelSendSessionUpdate) -> Outcome:
        session = wire_session(event.session_settings)
        if self._state.has_prompt and "instructions" in session:
            session.setdefault("prompt", None)  # who says what to do and has no prompt is another agent
        if self._is_traced:
            session.pop("tracing", None)  # it cannot be changed any more
        self._is_traced = self._is_traced or session.get("tracing") is not None
        frame = client.session_update(session)
        events: list[RealtimeModelEvent] = []
        self._state.learn(session, events)
        return events, [frame]

    def _raw_message(self, event: RealtimeModelSendRawMessage) -> Outcome:
        message = client.raw_message(event.message)
        if message["type"] == "response.create":
            return [], self._state.responses.want_this(message)
        frame = client.encode(message)
        events: list[RealtimeModelEvent] = []
        if message["type"] == "session.update" and isinstance(message.get("session"), Mapping):
            self._state.learn(message["session"], events)
        return events, [frame]
