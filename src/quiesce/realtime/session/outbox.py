"""What the model has yet to hear: while there is no connection, and of what was sent when it was lost.

Invariants
- No message of the user is lost, and none is sent twice. The server confirms each by an item of the conversation; one that it had not confirmed is sent again.
- What waits is bounded: one message too many is an error for whoever sends it. Audio does not wait: it is dropped, and counted.
- An answer is owed from the moment when it is asked for until it has come to its end; not if somebody has said stop.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quiesce.realtime.openai import RecentSet
from quiesce.realtime.words import (
    InputText,
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
)
from quiesce.wire import ConnectionEnded

if TYPE_CHECKING:
    from quiesce.realtime.words import RealtimeModelSendEvent, RealtimeUserInput, UserMessageItem


class Outbox:
    """Messages that wait, messages that are not confirmed, and whether an answer is owed."""

    def __init__(self, most: int) -> None:
        self.audio_dropped = 0  # bytes
        self._most = most
        self._waiting: deque[RealtimeModelSendEvent] = deque()
        self._unconfirmed: deque[RealtimeModelSendUserInput] = deque(maxlen=RecentSet.MOST)
        self._is_asked = self._is_answering = False
        self._commits = 0  # of audio, which are not confirmed
        self._is_being_told = False  # what there is, to a model that was connected anew

    @property
    def messages(self) -> int:
        """How many wait."""
        return sum(isinstance(event, RealtimeModelSendUserInput) for event in self._waiting)

    @property
    def is_answer_owed(self) -> bool:
        """Whether somebody waits for one, and nothing that waits to be sent asks for it."""
        return self._is_asked and not any(map(_asks, self._waiting))

    # While there is a connection

    def sending(self, event: RealtimeModelSendEvent) -> bool:
        """It is about to be sent. Returns whether an answer was asked for before that."""
        was_asked = self._is_asked
        if isinstance(event, RealtimeModelSendUserInput):
            self._unconfirmed.append(event)
        elif isinstance(event, RealtimeModelSendAudio) and event.commit:
            self._commits += 1  # audio that is lost needs no answer: it is asked for when the server has it
        if _asks(event):
            self._is_asked = True
        elif _is_stop(event):
            self._is_asked = self._is_answering = False
        return was_asked

    def not_sent(self, event: RealtimeModelSendEvent, was_asked: bool) -> None:
        """It was refused by the model, with an error for whoever sent it."""
        self._is_asked = self._is_asked and was_asked
        if isinstance(event, RealtimeModelSendUserInput) and event in self._unconfirmed:
            self._unconfirmed.remove(event)

    def confirmed(self, item: UserMessageItem) -> None:
        """The server has a message. It takes them in their order: what was sent before this one, it has refused."""
        shape = [part.text if isinstance(part, InputText) else part.type for part in item.content]
        if self._commits and "input_audio" in shape:
            self._commits -= 1
            self._is_asked = True
        for place, event in enumerate(self._unconfirmed):
            if _shape(event.user_input) == shape:
                for _ in range(place + 1):
                    self._unconfirmed.popleft()
                return

    def answer_began(self) -> None:
        """The model begins a response."""
        self._is_asked, self._is_answering = False, True

    def answer_ended(self) -> None:
        """The model has ended it."""
        self._is_answering = False

    # While there is none

    def keep(self, event: RealtimeModelSendEvent) -> None:
        """It cannot be sent now. What tools return is in the history, and who speaks in the settings: they wait only if those are on their way already."""
        is_message = isinstance(event, RealtimeModelSendUserInput)
        if isinstance(event, RealtimeModelSendAudio):
            self.audio_dropped += len(event.audio)
            return
        if is_message and self.messages >= self._most:
            raise ConnectionEnded(
                f"not sent: the connection to the model is lost, and {self._most} messages wait already until it is back"
            )
        if not is_message:
            self.sending(event)
        # A stop concerns the messages before it: they are sent, and then stopped. One response to be stopped is of the connection that is lost.
        is_of_it = isinstance(event, RealtimeModelSendInterrupt) and not _is_stop(event)
        if is_message or (_is_stop(event) and self.messages) or (self._is_being_told and not is_of_it):
            self._waiting.append(event)

    def lost(self) -> None:
        """The connection is: what was not confirmed is sent again, before what waits."""
        self._waiting = deque((*self._unconfirmed, *filter(_is_of_user, self._waiting)))
        self._unconfirmed.clear()
        self._is_asked, self._is_answering = self._is_asked or self._is_answering, False
        self._is_being_told = False
        self._commits = 0

    def begin(self) -> None:
        """The model is being told the settings and the history, as they are now."""
        self._is_being_told = True

    def take(self) -> RealtimeModelSendEvent | None:
        """What is to be sent next."""
        return self._waiting.popleft() if self._waiting else None


def _is_of_user(event: RealtimeModelSendEvent) -> bool:
    return isinstance(event, RealtimeModelSendUserInput | RealtimeModelSendInterrupt)


def _asks(event: RealtimeModelSendEvent) -> bool:
    """Whether it asks for an answer."""
    if isinstance(event, RealtimeModelSendToolOutput):
        return event.start_response
    return isinstance(event, RealtimeModelSendUserInput)


def _is_stop(event: RealtimeModelSendEvent) -> bool:
    """Whether it means all that was asked for."""
    return isinstance(event, RealtimeModelSendInterrupt) and event.response_id is None


def _shape(given: RealtimeUserInput) -> list[object]:
    """What tells one message from another: its texts, and where there are pictures."""
    if isinstance(given, str):
        return [given]
    return [part.get("text", part["type"]) for part in given["content"]]
