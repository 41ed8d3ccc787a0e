"""What the model has not received yet: messages that wait for a connection, or were lost with one.

Invariants
- No message of the user is lost, and none is sent twice. The server confirms each one by an item of the
  conversation; a message that it had not confirmed is sent again.
- The waiting messages are bounded: one too many is an error for its sender. Audio does not wait: it is
  dropped, and counted.
- An answer is due from the request for it until it has ended, unless the user interrupts it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quiesce.realtime.words import (
    InputText,
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
    RecentSet,
)
from quiesce.wire import ConnectionEnded

if TYPE_CHECKING:
    from quiesce.realtime.words import RealtimeModelSendEvent, RealtimeUserInput, UserMessageItem


class Outbox:
    """The waiting messages, the messages that are not confirmed, and whether an answer is due."""

    def __init__(self, most: int) -> None:
        self.audio_dropped = 0  # bytes
        self._most = most
        self._waiting: deque[RealtimeModelSendEvent] = deque()
        self._unconfirmed: deque[RealtimeModelSendUserInput] = deque(maxlen=RecentSet.MOST)
        self._is_requested = self._is_answering = False
        self._commits = 0  # of audio, which the server has not confirmed
        self._is_restoring = False  # the settings and the history are being sent to a new connection

    @property
    def messages(self) -> int:
        """How many messages wait."""
        return sum(isinstance(event, RealtimeModelSendUserInput) for event in self._waiting)

    @property
    def is_answer_due(self) -> bool:
        """Whether an answer is due that no waiting message asks for."""
        return self._is_requested and not any(map(_requests_answer, self._waiting))

    # While there is a connection

    def note_sending(self, event: RealtimeModelSendEvent) -> bool:
        """Take note of something that is about to be sent. Return whether an answer was due before."""
        was_requested = self._is_requested
        if isinstance(event, RealtimeModelSendUserInput):
            self._unconfirmed.append(event)
        elif isinstance(event, RealtimeModelSendAudio) and event.commit:
            # The answer is due when the server confirms the audio. If the audio is lost, there is nothing to
            # answer.
            self._commits += 1
        if _requests_answer(event):
            self._is_requested = True
        elif _interrupts_all(event):
            self._is_requested = self._is_answering = False
        return was_requested

    def note_refused(self, event: RealtimeModelSendEvent, was_requested: bool) -> None:
        """Take note of something that the model refused, with an error for its sender."""
        self._is_requested = self._is_requested and was_requested
        if isinstance(event, RealtimeModelSendUserInput) and event in self._unconfirmed:
            self._unconfirmed.remove(event)

    def confirm(self, item: UserMessageItem) -> None:
        """Take note of a message that the server has.

        It takes messages in their order, so it has refused unconfirmed ones before this.
        """
        shape = [part.text if isinstance(part, InputText) else part.type for part in item.content]
        if self._commits and "input_audio" in shape:
            self._commits -= 1
            self._is_requested = True
        # Compared by content, because the server assigns the ids: the item has none that we know.
        for place, event in enumerate(self._unconfirmed):
            if _shape(event.user_input) == shape:
                for _ in range(place + 1):
                    self._unconfirmed.popleft()
                return

    def response_began(self) -> None:
        """Take note that the model begins a response."""
        self._is_requested, self._is_answering = False, True

    def response_ended(self) -> None:
        """Take note that the model has ended its response."""
        self._is_answering = False

    # While there is no connection

    def keep(self, event: RealtimeModelSendEvent) -> None:
        """Keep something that cannot be sent now.

        Outputs of tools are in the history, and the agent is in the settings: these wait only if history and
        settings are already being sent.
        """
        is_message = isinstance(event, RealtimeModelSendUserInput)
        if isinstance(event, RealtimeModelSendAudio):
            self.audio_dropped += len(event.audio)
            return
        if is_message and self.messages >= self._most:
            raise ConnectionEnded(
                f"not sent: the connection to the model is lost, and {self._most} messages already wait for it"
            )
        if not is_message:
            self.note_sending(event)
        # An interrupt of all concerns the waiting messages before it: they are sent, and then interrupted. An
        # interrupt of one response concerns the lost connection, and is dropped.
        is_of_response = isinstance(event, RealtimeModelSendInterrupt) and not _interrupts_all(event)
        if (
            is_message
            or (_interrupts_all(event) and self.messages)
            or (self._is_restoring and not is_of_response)
        ):
            self._waiting.append(event)

    def connection_lost(self) -> None:
        """Let the messages that were not confirmed wait again, before the others."""
        self._waiting = deque((*self._unconfirmed, *filter(_is_of_user, self._waiting)))
        self._unconfirmed.clear()
        self._is_requested, self._is_answering = self._is_requested or self._is_answering, False
        self._is_restoring = False
        self._commits = 0

    def begin_restoring(self) -> None:
        """Take note that the settings and the history are being sent, as they are now."""
        self._is_restoring = True

    def take(self) -> RealtimeModelSendEvent | None:
        """Return what is to be sent next, and forget it."""
        return self._waiting.popleft() if self._waiting else None


def _is_of_user(event: RealtimeModelSendEvent) -> bool:
    return isinstance(event, RealtimeModelSendUserInput | RealtimeModelSendInterrupt)


def _requests_answer(event: RealtimeModelSendEvent) -> bool:
    if isinstance(event, RealtimeModelSendToolOutput):
        return event.start_response
    return isinstance(event, RealtimeModelSendUserInput)


def _interrupts_all(event: RealtimeModelSendEvent) -> bool:
    return isinstance(event, RealtimeModelSendInterrupt) and event.response_id is None


def _shape(given: RealtimeUserInput) -> list[object]:
    """Return what distinguishes one message from another: its texts, and where it has images."""
    if isinstance(given, str):
        return [given]
    return [part.get("text", part["type"]) for part in given["content"]]
