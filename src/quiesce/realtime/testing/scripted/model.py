"""A realtime model that answers from a script, and remembers what was sent to it.

Invariants
- One task of the model passes events to the listeners, one after the other, and awaits each call: a slow
  listener makes the script wait.
- `send_event` never waits for a listener, so that a listener may send. Nor does `emit`, if a listener calls
  it.
- There is one response at a time: a request during a response is answered after it. An interrupt ends the
  current response; those that wait stay.
- The tasks belong to a scope below the one that connects, and have ended when `close()` returns, whatever it
  raises.
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
    ListenedModel,
    RealtimeModelEvent,
    RealtimeModelInputAudioTranscriptionCompletedEvent,
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


class ScriptedRealtimeModel(ListenedModel):
    """A model that answers with the turns of a script.

    It gives one turn for each user input, each committed audio, and each tool output that requests a
    response. A turn is a str (which is spoken, with a tone for each word), a `Speech`, a `call()` of
    `quiesce.testing`, a list of those, an exception (the model fails), or a function of what was sent, async
    or sync, that returns one of these. Turns that were not used when the model is closed are left for the
    next connection.

    ```python
    model = ScriptedRealtimeModel([call("weather", city="Paris"), "It rains."])
    async with await RealtimeRunner(agent, model=model).run() as session:
        await session.send_message("How is it in Paris?")
    ```

    `await model.lose()` loses the connection.

    - `sent`: everything that was sent to it. `connects`, `closes`: how often; `options`: of the last
      `connect`.
    - `transcripts`: of the user's speech, one for each committed audio.
    - `connect_delay`, `send_delay`, `close_delay`: seconds that these take. `connect_error`, `send_error`,
      `close_error`: what they raise after that. You may change all of them at any time. An error of `close()`
      is raised when everything has ended.
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
        super().__init__()
        self.name = name
        self.sent: list[RealtimeModelSendEvent] = []
        self.connects = 0
        self.closes = 0
        self.options: RealtimeModelConfig | None = None
        self.connect_delay, self.send_delay, self.close_delay = connect_delay, send_delay, close_delay
        self.connect_error, self.send_error, self.close_error = connect_error, send_error, close_error
        self._script = deque(as_script(turns))
        self._transcripts = deque(transcripts)
        self._requests = 0
        self._ids: dict[str, itertools.count[int]] = {}
        self._line: ScriptedLine | None = None

    @property
    def remaining(self) -> int:
        """How many turns were not used yet."""
        return len(self._script)

    @property
    def connected(self) -> bool:
        """Whether it is connected, and not closing."""
        return self._line is not None and not self._line.closed and not self._line.lost

    async def connect(self, options: RealtimeModelConfig) -> None:
        """Connect, and be ready to answer."""
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
        """Remember what was sent, and answer it from the script."""
        line = self._connection()
        if self.send_delay:
            await anyio.sleep(self.send_delay)
        if self.send_error is not None:
            raise self.send_error
        if self._connection() is not line:
            raise ConnectionEnded(f"realtime model {self.name!r} was connected again meanwhile")
        self.sent.append(event)
        if isinstance(event, RealtimeModelSendUserInput):
            line.update(UserMessageItem(self._new_id("item"), _content_of(event.user_input)))
            line.requests.put(event)
        elif isinstance(event, RealtimeModelSendAudio) and event.commit:
            item_id = self._new_id("item")
            transcript = self._transcripts.popleft() if self._transcripts else None
            line.update(UserMessageItem(item_id, [InputAudio(transcript=transcript)]))
            if transcript is not None:
                line.tell(RealtimeModelInputAudioTranscriptionCompletedEvent(item_id, transcript))
            line.requests.put(event)
        elif isinstance(event, RealtimeModelSendToolOutput):
            call = event.tool_call
            line.update(
                RealtimeToolCallItem(
                    call.id or "", call.call_id, call.name, call.arguments, "completed", event.output
                )
            )
            if event.start_response:
                line.requests.put(event)
        elif isinstance(event, RealtimeModelSendInterrupt):
            line.interrupt(event)
        elif isinstance(event, RealtimeModelSendRawMessage):
            if event.message.get("type") == "response.create":
                line.requests.put(event)
            elif event.message.get("type") == "response.cancel":
                line.interrupt(RealtimeModelSendInterrupt(cancel_response_only=True))

    async def emit(self, event: RealtimeModelEvent) -> None:
        """Pass an event to the listeners, after those before it; wait for them, and raise what they raise."""
        line = self._connection()
        delivery = line.tell(event, is_awaited=True)
        if line.is_called_by_listener():
            return
        await delivery.done.wait()
        if delivery.error is not None:
            raise delivery.error

    async def user_speaks(self) -> None:
        """Let the user begin to speak (`input_audio_buffer.speech_started`), which interrupts the model."""
        line = self._connection()
        frame = {
            "type": "input_audio_buffer.speech_started",
            "event_id": self._new_id("event"),
            "item_id": self._new_id("item"),
            "audio_start_ms": 0,
        }
        raw = RealtimeModelRawServerEvent(msgspec.json.encode(frame))
        delivery = line.tell(raw)
        line.interrupt(RealtimeModelSendInterrupt())
        if not line.is_called_by_listener():
            await delivery.done.wait()

    async def lose(self, error: Exception | None = None) -> None:
        """Lose the connection now, even in the middle of a word; `error` is a `ConnectionEnded` unless given.

        This returns when the listeners know it. To go on, `connect` again.
        """
        line = self._connection()
        if error is None:
            error = ConnectionEnded(f"the connection of realtime model {self.name!r} was lost")
        delivery = line.lose(error)
        if not line.is_called_by_listener():
            await delivery.done.wait()

    async def close(self) -> None:
        """Close the connection; no event follows, and no task is left."""
        self.closes += 1
        line = self._line
        if line is None:
            return
        line.closed = True
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
        if self._line is None or self._line.closed or self._line.lost:
            raise ConnectionEnded(f"realtime model {self.name!r} is not connected: connect() it first")
        return self._line

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{next(self._ids.setdefault(kind, itertools.count(1)))}"

    def _next_turn(self) -> Turn:
        self._requests += 1
        if self._script:
            return self._script.popleft()
        return ScriptExhausted(
            f"realtime model {self.name!r} got {self._requests} requests for a response, but its script has only "
            f"{self._requests - 1} turns: add one, or find out why there was another request"
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
