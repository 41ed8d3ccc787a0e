"""A realtime model that answers from a script, and remembers what it was told.

Invariants
- Listeners are told by one task of the model's own, one event after the other, each awaited: a listener that takes its time makes the script wait.
- `send_event` never waits for a listener, so that a listener may send. Nor does `emit` if it is called by one.
- One response at a time: what asks for another while one is on is answered after it. An interruption ends the one that is on; those that wait stay.
- The tasks belong to a scope below that of whoever connects, and have ended when `close()` returns, whatever it raises.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio
import msgspec

from quiesce import Scope
from quiesce.realtime.testing.speech import Turn, as_script
from quiesce.realtime.words import (
    InputAudio,
    InputImage,
    InputText,
    RealtimeModel,
    RealtimeModelEvent,
    RealtimeModelInputAudioTranscriptionCompletedEvent,
    RealtimeModelListener,
    RealtimeModelRawServerEvent,
    RealtimeModelSendAudio,
    RealtimeModelSendEvent,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
    RealtimeToolCallItem,
    UserMessageItem,
)
from quiesce.testing import ScriptExhausted
from quiesce.wire import ConnectionEnded

from .line import ScriptedLine

if TYPE_CHECKING:
    from quiesce.realtime.words import RealtimeModelConfig, RealtimeUserInput


class ScriptedRealtimeModel(RealtimeModel):
    """A model that gives the turns of a script: one for each user input, committed audio, and tool output that asks for a response.

    A turn is a str (which is said, with a tone for each word), a `Speech`, a `call()` of `quiesce.testing`, a list of those, an exception (the model has
    failed), or a function of what was sent, async or not, that returns one of these. What was not asked for when the model is closed is there for the next connection.

    ```python
    model = ScriptedRealtimeModel([call("weather", city="Paris"), "It rains."])
    async with await RealtimeRunner(agent, model=model).run() as session:
        await session.send_message("How is it in Paris?")
    ```

    `await model.lose()` loses the connection.

    - `sent`: all that it was told. `connects`, `closes`: how often; `options`: those of the last time.
    - `transcripts`: what the user has said, one for each audio that is committed.
    - `connect_delay`, `send_delay`, `close_delay`: seconds that these take; `connect_error`, `send_error`, `close_error`: what they raise then. All may be
      changed at any time. An error at close is raised when all has ended.
    """

    def __init__(
        self,
        turns: Turn | Iterable[Turn] = (),
        *,
        transcripts: Iterable[str] = (),
        connect_delay: float = 0.0,
        send_delay: float = 0.0,
        close_delay: float = 0.0,
        connect_error: Exception | None = None,
        send_error: Exception | None = None,
        close_error: Exception | None = None,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self.sent: list[RealtimeModelSendEvent] = []
        self.connects = 0
        self.closes = 0
        self.options: RealtimeModelConfig | None = None
        self.connect_delay, self.send_delay, self.close_delay = connect_delay, send_delay, close_delay
        self.connect_error, self.send_error, self.close_error = connect_error, send_error, close_error
        self._script = deque(as_script(turns))
        self._transcripts = deque(transcripts)
        self._given = 0  # turns of the script
        self._ids: dict[str, itertools.count[int]] = {}
        self._listeners: list[RealtimeModelListener] = []
        self._line: ScriptedLine | None = None

    @property
    def remaining(self) -> int:
        """How many turns nobody has asked for yet."""
        return len(self._script)

    @property
    def connected(self) -> bool:
        """Whether it is connected, and not being closed."""
        return self._line is not None and not self._line.over and not self._line.lost

    def add_listener(self, listener: RealtimeModelListener) -> None:
        """Tell this one too."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        """Tell it nothing more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def connect(self, options: RealtimeModelConfig) -> None:
        """Be ready to answer."""
        if self._line is not None and self._line.scope.state != "settled":
            raise RuntimeError(f"realtime model {self.name!r} is connected already: close() it first")
        self.connects += 1
        self.options = options
        if self.connect_delay:
            await anyio.sleep(self.connect_delay)
        if self.connect_error is not None:
            raise self.connect_error
        scope = await Scope.open(f"realtime model {self.name!r}", on_error="report")
        self._line = ScriptedLine(self.name, scope, self._listeners, self._next_turn, self._new_id, options)
        self._line.start()

    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        """Note what it is told, and answer it if the script has an answer."""
        line = self._connection()
        if self.send_delay:
            await anyio.sleep(self.send_delay)
        if self.send_error is not None:
            raise self.send_error
        if self._connection() is not line:
            raise ConnectionEnded(f"realtime model {self.name!r} was connected anew meanwhile")
        self.sent.append(event)
        if isinstance(event, RealtimeModelSendUserInput):
            line.update(UserMessageItem(self._new_id("item"), _content_of(event.user_input)))
            line.asked.put(event)
        elif isinstance(event, RealtimeModelSendAudio) and event.commit:
            item_id = self._new_id("item")
            transcript = self._transcripts.popleft() if self._transcripts else None
            line.update(UserMessageItem(item_id, [InputAudio(transcript=transcript)]))
            if transcript is not None:
                line.tell(RealtimeModelInputAudioTranscriptionCompletedEvent(item_id, transcript))
            line.asked.put(event)
        elif isinstance(event, RealtimeModelSendToolOutput):
            made = event.tool_call
            line.update(
                RealtimeToolCallItem(
                    made.id or "", made.call_id, made.name, made.arguments, "completed", event.output
                )
            )
            if event.start_response:
                line.asked.put(event)
        elif isinstance(event, RealtimeModelSendInterrupt):
            line.interrupt(event)
        elif isinstance(event, RealtimeModelSendRawMessage):
            if event.message.get("type") == "response.create":
                line.asked.put(event)
            elif event.message.get("type") == "response.cancel":
                line.interrupt(RealtimeModelSendInterrupt(cancel_response_only=True))

    async def emit(self, event: RealtimeModelEvent) -> None:
        """Tell the listeners this, after what they are being told. Returns when they have heard it, and raises what they raise."""
        line = self._connection()
        told = line.tell(event, is_awaited=True)
        if line.is_telling():
            return
        await told.heard.wait()
        if told.error is not None:
            raise told.error

    async def user_speaks(self) -> None:
        """The user begins to speak: the server notices (`input_audio_buffer.speech_started`), and what is being said is interrupted."""
        line = self._connection()
        frame = {
            "type": "input_audio_buffer.speech_started",
            "event_id": self._new_id("event"),
            "item_id": self._new_id("item"),
            "audio_start_ms": 0,
        }
        raw = RealtimeModelRawServerEvent(msgspec.json.encode(frame))
        told = line.tell(raw)
        line.interrupt(RealtimeModelSendInterrupt())
        if not line.is_telling():
            await told.heard.wait()

    async def lose(self, error: Exception | None = None) -> None:
        """The connection is lost, now: in the middle of what is being said, which stays as it is. `error`: how, a `ConnectionEnded` unless given.

        Returns when the listeners have heard of it. Nothing can be sent any more; whoever wants to go on connects again.
        """
        line = self._connection()
        if error is None:
            error = ConnectionEnded(f"the connection of realtime model {self.name!r} was lost")
        told = line.lose(error)
        if not line.is_telling():
            await told.heard.wait()

    async def close(self) -> None:
        """End: nothing is said any more, and no task is left."""
        self.closes += 1
        line = self._line
        if line is None:
            return
        line.over = True
        try:
            if self.close_delay:
                await anyio.sleep(self.close_delay)
        finally:
            try:
                await line.scope.close()
            finally:
                line.release()
                if self._line is line:
                    self._line = None
        if self.close_error is not None:
            raise self.close_error

    def _connection(self) -> ScriptedLine:
        if self._line is None or self._line.over or self._line.lost:
            raise ConnectionEnded(f"realtime model {self.name!r} is not connected: connect() it first")
        return self._line

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{next(self._ids.setdefault(kind, itertools.count(1)))}"

    def _next_turn(self) -> Turn:
        self._given += 1
        if self._script:
            return self._script.popleft()
        return ScriptExhausted(
            f"realtime model {self.name!r} was asked for {self._given} responses, and its script has {self._given - 1} "
            "turns: add one, or look why it was asked again"
        )


def _content_of(given: RealtimeUserInput) -> list[InputText | InputAudio | InputImage]:
    if isinstance(given, str):
        return [InputText(given)]
    return [
        InputText(part["text"])
        if part["type"] == "input_text"
        else InputImage(part["image_url"], part.get("detail"))
        for part in given["content"]
    ]
