"""One turn of a scripted model while it is performed.

The turn runs in a task of its own, which an interrupt cancels. The task that started it announces its end. So
the end of an interrupted turn is announced after the turn's function (if it is one) has cleaned up, and no
piece of it follows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.models import ToolCall, Usage
from quiesce.realtime.testing.speech import Speech, Turn, is_function, parts_of
from quiesce.realtime.words import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    RealtimeModelAudioDoneEvent,
    RealtimeModelAudioEvent,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelEvent,
    RealtimeModelExceptionEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelOutputTextDeltaEvent,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
    RealtimeModelUsageEvent,
    RealtimeToolCallItem,
)

if TYPE_CHECKING:
    from quiesce import Handle
    from quiesce.realtime.words import RealtimeModelSendEvent

Tell = Callable[[RealtimeModelEvent], Awaitable[None]]


class _Interrupted(Exception):
    """Raised instead of delivering another piece of an interrupted turn."""


class PerformedTurn:
    """A response: from `turn_started` to `turn_ended`."""

    def __init__(
        self,
        turn: Turn,
        request: RealtimeModelSendEvent,
        response_id: str,
        new_id: Callable[[str], str],
        tell: Tell,
    ) -> None:
        self.response_id = response_id
        self.handle: Handle | None = None  # of the task that performs it
        self._turn = turn
        self._request = request
        self._new_id = new_id
        self._tell_listeners = tell
        self.stopped = self._failed = self._in_silence = False
        self._message: AssistantMessageItem | None = None  # the one that is incomplete
        self._has_audio = False  # whether audio of it was sent
        self._output_tokens = 0

    @property
    def audio(self) -> tuple[str, int] | None:
        """The item and the content whose audio is being sent."""
        return (self._message.item_id, 0) if self._message is not None and self._has_audio else None

    def stop(self, *, in_silence: bool = False) -> None:
        """Interrupt the turn; `in_silence`: without an event about its audio."""
        if not self.stopped:
            self.stopped, self._in_silence = True, in_silence
            if self.handle is not None:
                self.handle.cancel("interrupted")

    def cut_off(self, tell: Callable[[RealtimeModelEvent], object]) -> None:
        """Stop because the connection is lost; the listeners get the text so far."""
        if self._message is not None:
            tell(RealtimeModelItemUpdatedEvent(copy.deepcopy(self._message)))
        self.stop(in_silence=True)

    async def perform(self) -> None:
        """Perform the whole turn."""
        try:
            await self._tell(RealtimeModelTurnStartedEvent(self.response_id))
            turn = self._turn
            while is_function(turn):
                returned: Any = turn(self._request)  # type: ignore[operator]
                turn = await returned if inspect.isawaitable(returned) else returned
            for part in parts_of(turn):
                await (self._say(part) if isinstance(part, Speech) else self._call(part))
        except Exception as error:
            # An error after an interrupt is one of the clean-up, or `_Interrupted`: the turn is announced as
            # cancelled.
            if not self.stopped:
                self._failed = True
                await self._tell_listeners(RealtimeModelExceptionEvent(error, "the script of the model"))

    async def announce_end(self) -> None:
        """Announce the outcome, after the task has ended."""
        if self._failed:
            return
        if self.stopped:
            message, audio = self._message, self.audio
            if audio is not None and not self._in_silence:
                await self._tell_listeners(RealtimeModelAudioInterruptedEvent(*audio))
            if message is not None:
                message.status = "incomplete"
                await self._tell_listeners(RealtimeModelItemUpdatedEvent(message))
        usage = Usage(requests=1, input_tokens=1, output_tokens=self._output_tokens)
        await self._tell_listeners(RealtimeModelUsageEvent(usage))
        status = "cancelled" if self.stopped else "completed"
        await self._tell_listeners(RealtimeModelTurnEndedEvent(self.response_id, status))

    async def _tell(self, event: RealtimeModelEvent) -> None:
        self._check()
        await self._tell_listeners(event)

    def _check(self) -> None:
        # The cancel may not have arrived yet, or a function of the script may have swallowed it.
        if self.stopped:
            raise _Interrupted

    async def _say(self, speech: Speech) -> None:
        item_id = self._new_id("item")
        written = speech.audio == b""
        content = AssistantText("") if written else AssistantAudio(transcript="")
        self._message = message = AssistantMessageItem(item_id, [content], "in_progress")
        for n, (text, audio) in enumerate(speech.pieces()):
            if n and speech.pace:
                await anyio.sleep(speech.pace)
            if text and isinstance(content, AssistantText):
                await self._tell(RealtimeModelOutputTextDeltaEvent(item_id, text, self.response_id))
                content.text = (content.text or "") + text
            elif text and isinstance(content, AssistantAudio):
                await self._tell(RealtimeModelTranscriptDeltaEvent(item_id, text, self.response_id))
                content.transcript = (content.transcript or "") + text
            if audio:
                self._has_audio = True
                await self._tell(RealtimeModelAudioEvent(audio, self.response_id, item_id, 0))
            self._output_tokens += 1
        if self._has_audio:
            await self._tell(RealtimeModelAudioDoneEvent(item_id, 0))
        self._check()
        # It is complete. `_tell_listeners`, and not `_tell`: an interrupt from here on comes too late for it.
        self._message, self._has_audio = None, False
        message.status = "completed"
        await self._tell_listeners(RealtimeModelItemUpdatedEvent(message))

    async def _call(self, call: ToolCall) -> None:
        item_id, call_id = self._new_id("item"), call.call_id or self._new_id("call")
        item = RealtimeToolCallItem(item_id, call_id, call.name, call.arguments)
        self._output_tokens += 1
        await self._tell(RealtimeModelItemUpdatedEvent(item))
        await self._tell(
            RealtimeModelToolCallEvent(
                call.name, call_id, call.arguments, item_id, response_id=self.response_id
            )
        )
