"""One connection of a scripted model: what is asked, what is told, and the tasks that do it.

One task answers, one response after the other; the other talks to the listeners, one event after the other. Whoever tells something may wait until it was
heard, and the answering task always does: that is the backpressure. For each another stands by: if somebody else cancels one of them, even before its first step, the listeners are
told that the model has failed, so that nobody waits for an answer for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from quiesce._safe.printed import logger
from quiesce.kernel.inner import current_backend
from quiesce.realtime.words import (
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelConnectionStatusEvent,
    RealtimeModelEndOfStreamEvent,
    RealtimeModelEvent,
    RealtimeModelExceptionEvent,
    RealtimeModelItemUpdatedEvent,
)
from quiesce.wire import ConnectionEnded

from .turn import PerformedTurn

if TYPE_CHECKING:
    from quiesce import Handle, Scope
    from quiesce.realtime.testing.speech import Turn
    from quiesce.realtime.words import (
        RealtimeItem,
        RealtimeModelConfig,
        RealtimeModelListener,
        RealtimeModelSendEvent,
        RealtimeModelSendInterrupt,
    )

T = TypeVar("T")


class Told:
    """An event on its way to the listeners."""

    __slots__ = ("error", "event", "heard", "is_awaited")

    def __init__(self, event: RealtimeModelEvent, is_awaited: bool) -> None:
        self.event = event
        self.heard = anyio.Event()
        self.is_awaited = is_awaited  # by somebody who gets the listeners' errors
        self.error: Exception | None = None


class Queue(Generic[T]):
    """What waits for one task."""

    def __init__(self) -> None:
        self.waiting: deque[T] = deque()
        self._came: anyio.Event | None = None

    def put(self, entry: T) -> None:
        """At the end."""
        self.waiting.append(entry)
        if self._came is not None:
            self._came.set()

    async def get(self) -> T:
        """The first, as soon as there is one."""
        while not self.waiting:
            self._came = came = anyio.Event()
            await came.wait()
        return self.waiting.popleft()


class ScriptedLine:
    """One connection of a scripted model: what is asked, what is told, and the tasks that do it."""

    def __init__(
        self,
        name: str,
        scope: Scope,
        listeners: Sequence[RealtimeModelListener],
        next_turn: Callable[[], Turn],
        new_id: Callable[[str], str],
        options: RealtimeModelConfig,
    ) -> None:
        self.scope = scope
        self.over = False  # nothing is delivered any more
        self.lost = False  # nothing is sent any more
        self.asked: Queue[RealtimeModelSendEvent] = Queue()
        self._name = name
        self._listeners = listeners
        self._next_turn = next_turn
        self._new_id = new_id
        self._options = options
        self._to_tell: Queue[Told] = Queue()
        self._telling: Told | None = None
        self._deliverer: object = None  # the task
        self._on: PerformedTurn | None = None

    def start(self) -> None:
        """All tasks."""
        for work, name in ((self._deliver, "deliver"), (self._answer, "answer")):
            self.scope.spawn(self._stand_by, self.scope.spawn(work, name=name), name=f"stand by to {name}")

    def tell(self, event: RealtimeModelEvent, *, is_awaited: bool = False) -> Told:
        """Tell the listeners, without waiting."""
        told = Told(event, is_awaited)
        self._to_tell.put(told)
        return told

    def update(self, item: RealtimeItem) -> None:
        """Tell the listeners of an item."""
        self.tell(RealtimeModelItemUpdatedEvent(item))

    def is_telling(self) -> bool:
        """Whether a listener asks, who cannot wait for what comes after what it is being told."""
        return current_backend().current_task() is self._deliverer

    async def _deliver(self) -> None:
        """The one task that talks to the listeners."""
        self._deliverer = current_backend().current_task()
        try:
            while True:
                self._telling = told = await self._to_tell.get()
                await self._tell_all(told)
        finally:
            self.over = True
            self._deliverer = None
            self.release()

    async def _tell_all(self, told: Told) -> None:
        try:
            for listener in tuple(self._listeners):
                await listener.on_event(told.event)
        except Exception as error:
            told.error = error
            if not told.is_awaited:
                logger.exception("a listener of realtime model %r failed", self._name)
        told.heard.set()

    async def _stand_by(self, handle: Handle) -> None:
        """Say that a task is gone, if it is and was not asked to go."""
        await handle.wait()
        if self.scope.state != "open":
            return
        lost = Told(self._lost(handle.name), False)
        if handle.name == "answer" and not self.over:
            self._to_tell.put(lost)
        else:  # nobody else can tell
            self.over = True
            self.release()
            await self._tell_all(lost)

    async def _answer(self) -> None:
        """One response after the other."""
        while True:
            asked = await self.asked.get()
            turn = PerformedTurn(
                self._next_turn(), asked, self._new_id("resp"), self._new_id, self._tell_and_wait
            )
            turn.handle = self.scope.spawn(turn.perform, name=f"turn {turn.response_id}")
            self._on = turn
            await turn.handle.wait()
            self._on = None
            if self.lost:
                continue  # nothing will be asked any more
            if turn.handle.state == "cancelled" and not turn.stopped:
                await self._tell_and_wait(self._lost(turn.handle.name))
            else:
                await turn.announce_end()

    def _lost(self, task: str) -> RealtimeModelExceptionEvent:
        error = ConnectionEnded(
            f"somebody else has cancelled the task {task!r} of realtime model {self._name!r}"
        )
        return RealtimeModelExceptionEvent(error, "the tasks of the model")

    async def _tell_and_wait(self, event: RealtimeModelEvent) -> None:
        await self.tell(event).heard.wait()

    def interrupt(self, event: RealtimeModelSendInterrupt) -> None:
        """Stop what is being said, as far as asked for."""
        turn, wanted = self._on, event.response_id
        if turn is not None and wanted in (None, turn.response_id):
            if not event.playback_only:
                turn.stop(in_silence=event.cancel_response_only)
            elif turn.audio is not None:
                self.tell(RealtimeModelAudioInterruptedEvent(*turn.audio))
        elif wanted is None and not event.cancel_response_only:
            self._stop_playing()

    def _stop_playing(self) -> None:
        """All was said, but perhaps not all was played."""
        tracker = self._options.get("playback_tracker")
        playing: Any = tracker.get_state() if tracker is not None else {}
        if tracker is not None and playing["current_item_id"] is not None:
            tracker.on_interrupted()
            self.tell(
                RealtimeModelAudioInterruptedEvent(
                    playing["current_item_id"], playing["current_item_content_index"]
                )
            )

    def lose(self, error: Exception) -> Told:
        """Nothing more is said or heard, in the middle of a word if need be; what was told before is told first."""
        self.lost = True
        self.asked.waiting.clear()
        turn, self._on = self._on, None
        for listener in tuple(self._listeners):
            listener.on_connection_ended()
        if turn is not None:
            turn.cut_off(self.tell)
        self.tell(RealtimeModelConnectionStatusEvent("disconnected"))
        self.tell(RealtimeModelExceptionEvent(error))
        return self.tell(RealtimeModelEndOfStreamEvent())

    def release(self) -> None:
        """Nobody will hear the rest: let those go who wait for it."""
        waiting = [self._telling, *self._to_tell.waiting]
        self._to_tell.waiting.clear()
        for told in waiting:
            if told is not None and not told.heard.is_set():
                told.error = ConnectionEnded(f"realtime model {self._name!r} was closed")
                told.heard.set()
