"""What is known of a connection: its responses, its items, what was said, and how the server takes turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quiesce.realtime.words import RealtimeModelErrorEvent

from .bounded_memory import forget_oldest
from .conversation_items import Items
from .responses import Responses
from .speech import Speech

if TYPE_CHECKING:
    from quiesce.realtime.words import RealtimeModelEvent, RealtimePlaybackTracker


CALLS = 1024
"""How many tool calls are remembered as told."""


class Exchange:
    """The state of one connection."""

    def __init__(self, tracker: RealtimePlaybackTracker) -> None:
        self.restored: set[str] = set()  # items of an earlier connection: who listens knows them
        self.responses = Responses()
        self.items = Items()
        self.speech = Speech(tracker, self.restored)
        self._told_calls: dict[str, None] = {}
        self.provisional: dict[str, str] = {}  # by call_id: the output that says that it is unknown
        self.asked_for: Mapping[str, Any] = {}  # the session that was asked for first
        self.has_turn_detection = True  # the server notices when the user has spoken, and answers
        self.interrupts_by_itself = True  # and when the user begins to speak: it ends the response that is on
        self.has_prompt = False

    def is_told(self, call_id: str) -> bool:
        """Whether this tool call was told before; it is now."""
        if call_id in self._told_calls:
            return True
        self._told_calls[call_id] = None
        forget_oldest(self._told_calls, CALLS)
        return False

    def learn(self, session: Mapping[str, Any], events: list[RealtimeModelEvent]) -> None:
        """What the session is like: as it was asked for, or as the server says. Before the wire was stable, it was flat."""
        if "prompt" in session:
            self.has_prompt = session["prompt"] is not None
        audio = _within(session, "audio")
        for given in (session, _within(audio, "input")):
            if "turn_detection" in given:
                detection = given["turn_detection"]
                self.has_turn_detection = detection is not None
                # The server's own default is to do so.
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
