"""One turn of a scripted model while it is performed.

The turn runs in a task of its own, which is cancelled to interrupt it; whoever started it announces its end. So an interrupted turn is announced after its
function (if it is one) has cleaned up, and not one piece of it comes after that.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.models import ToolCall, Usage
from quiesce.realtime.testing.speech import Speech, Turn, is_written_when_asked, parts_of
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
    """Not one piece more."""


class PerformedTurn:
    """A response: from `turn_started` to `turn_ended`."""

    def __init__(
        self,
        turn: Turn,
        asked: RealtimeModelSendEvent,
        response_id: str,
        new_id: Callable[[str], str],
        tell: Tell,
    ) -> None:
        self.response_id = response_id
        self.handle: Handle | None = None  # of the task that performs it
        self._turn = turn
        self._asked = asked
        self._new_id = new_id
        self._tell_listeners = tell
        self.stopped = self._failed = self._in_silence = False
        self._saying: AssistantMessageItem | None = None  # the message that is not at its end
        self._is_heard = False  # whether there was audio of it
        self._output_tokens = 0

    @property
    def audio(self) -> tuple[str, int] | None:
        """The item and content that is being heard."""
        return (self._saying.item_id, 0) if self._saying is not None and self._is_heard else None

    def stop(self, *, in_silence: bool = False) -> None:
        """Say no more; `in_silence`: without a word about the audio."""
        if not self.stopped:
            self.stopped, self._in_silence = True, in_silence
            if self.handle is not None:
                self.handle.cancel("interrupted")

    def cut_off(self, tell: Callable[[RealtimeModelEvent], object]) -> None:
        """The connection is lost in the middle of it: what was said so far is known."""
        if self._saying is not None:
            tell(RealtimeModelItemUpdatedEvent(copy.deepcopy(self._saying)))
        self.stop(in_silence=True)

    async def perform(self) -> None:
        """Say all of it."""
        try:
            await self._tell(RealtimeModelTurnStartedEvent(self.response_id))
            turn = self._turn
            while is_written_when_asked(turn):
                written: Any = turn(self._asked)  # type: ignore[operator]
                turn = await written if inspect.isawaitable(written) else written
            for part in parts_of(turn):
                await (self._say(part) if isinstance(part, Speech) else self._call(part))
        except Exception as error:
            if not self.stopped:
                self._failed = True
                await self._tell_listeners(RealtimeModelExceptionEvent(error, "the script of the model"))

    async def announce_end(self) -> None:
        """Tell what became of it, after the task has ended."""
        if self._failed:
            return
        if self.stopped:
            saying, audio = self._saying, self.audio
            if audio is not None and not self._in_silence:
                await self._tell_listeners(RealtimeModelAudioInterruptedEvent(*audio))
            if saying is not None:
                saying.status = "incomplete"
                await self._tell_listeners(RealtimeModelItemUpdatedEvent(saying))
        usage = Usage(requests=1, input_tokens=1, output_tokens=self._output_tokens)
        await self._tell_listeners(RealtimeModelUsageEvent(usage))
        status = "cancelled" if self.stopped else "completed"
        await self._tell_listeners(RealtimeModelTurnEndedEvent(self.response_id, status))

    async def _tell(self, event: RealtimeModelEvent) -> None:
        self._check()
        await self._tell_listeners(event)

    def _check(self) -> None:
        """The cancel may be on its way still, or the script may have swallowed it."""
        if self.stopped:
            raise _Interrupted

    async def _say(self, speech: Speech) -> None:
        item_id = self._new_id("item")
        written = speech.audio == b""
        said = AssistantText("") if written else AssistantAudio(transcript="")
        self._saying = saying = AssistantMessageItem(item_id, [said], "in_progress")
        for n, (text, audio) in enumerate(speech.pieces()):
            if n and speech.pace:
                await anyio.sleep(speech.pace)
            if text and isinstance(said, AssistantText):
                await self._tell(RealtimeModelOutputTextDeltaEvent(item_id, text, self.response_id))
                said.text = (said.text or "") + text
            elif text and isinstance(said, AssistantAudio):
                await self._tell(RealtimeModelTranscriptDeltaEvent(item_id, text, self.response_id))
                said.transcript = (said.transcript or "") + text
            if audio:
                self._is_heard = True
                await self._tell(RealtimeModelAudioEvent(audio, self.response_id, item_id, 0))
            self._output_tokens += 1
        if self._is_heard:
            await self._tell(RealtimeModelAudioDoneEvent(item_id, 0))
        self._check()
        # From here on it is complete: told at once, so that no interruption comes between.
        self._saying, self._is_heard = None, False
        saying.status = "completed"
        await self._tell_listeners(RealtimeModelItemUpdatedEvent(saying))

    async def _call(self, asked: ToolCall) -> None:
        item_id, call_id = self._new_id("item"), asked.call_id or self._new_id("call")
        item = RealtimeToolCallItem(item_id, call_id, asked.name, asked.arguments)
        self._output_tokens += 1
        await self._tell(RealtimeModelItemUpdatedEvent(item))
        await self._tell(
            RealtimeModelToolCallEvent(
                asked.name, call_id, asked.arguments, item_id, response_id=self.response_id
            )
        )
