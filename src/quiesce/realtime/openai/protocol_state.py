"""The state of a connection: its responses, its items, its speech, and how the server takes turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quiesce.realtime.words import RealtimeModelErrorEvent, forget_oldest

from .conversation_items import Items
from .responses import Responses
from .speech import Speech

if TYPE_CHECKING:
    from quiesce.realtime.words import RealtimeModelEvent, RealtimePlaybackTracker


CALLS = 1024
"""How many tool calls are remembered as passed on."""


class Exchange:
    """The state of one connection."""

    def __init__(self, tracker: RealtimePlaybackTracker) -> None:
        self.restored: set[str] = set()  # items of an earlier connection, which the listeners know
        self.responses = Responses()
        self.items = Items()
        self.speech = Speech(tracker, self.restored)
        self._known_calls: dict[str, None] = {}
        self.provisional: dict[str, str] = {}  # by call_id: the item id of an output that says "unknown"
        self.initial_session: Mapping[str, Any] = {}  # the settings that were sent first
        self.has_turn_detection = True  # the server answers when the user has spoken
        self.interrupts_by_itself = True  # the server ends a response when the user begins to speak
        self.has_prompt = False

    def is_new_call(self, call_id: str) -> bool:
        """Return whether this tool call was not passed on before, and remember it."""
        if call_id in self._known_calls:
            return False
        self._known_calls[call_id] = None
        forget_oldest(self._known_calls, CALLS)
        return True

    def learn(self, session: Mapping[str, Any], events: list[RealtimeModelEvent]) -> None:
        """Take the settings of the session, as they were sent or as the server reports them.

        The beta version of the protocol has them flat, without `audio`.
        """
        if "prompt" in session:
            self.has_prompt = session["prompt"] is not None
        audio = _within(session, "audio")
        for given in (session, _within(audio, "input")):
            if "turn_detection" in given:
                detection = given["turn_detection"]
                self.has_turn_detection = detection is not None
                # Without `interrupt_response`, the default of the server is true.
                self.interrupts_by_itself = (
                    isinstance(detection, Mapping) and detection.get("interrupt_response") is not False
                )
        form = _within(audio, "output").get("format") or session.get("output_audio_format")
        if form is not None and _is_named(form):
            try:
                self.speech.set_audio_format(form)
            except Exception as error:
                events.append(RealtimeModelErrorEvent(error))


def _within(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = given.get(name)
    return found if isinstance(found, Mapping) else {}


def _is_named(form: Any) -> bool:
    return not isinstance(form, Mapping) or form.get("type") is not None
