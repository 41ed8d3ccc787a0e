"""One connection of a scripted model: its queues, and the tasks that work on them.

One task answers, one response after the other. Another passes events to the listeners, one after the other. A
sender of an event may wait until the listeners have taken it, and the answering task always does: that is the
backpressure. Each of the two has a watcher: if one of them is cancelled from outside, even before its first
step, the listeners get an event that the model has failed, so that nothing waits forever for an answer.
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


class Delivery:
    """An event on its way to the listeners."""

    __slots__ = ("done", "error", "event", "is_awaited")

    def __init__(self, event: RealtimeModelEvent, is_awaited: bool) -> None:
        self.event = event
        self.done = anyio.Event()
        self.is_awaited = is_awaited  # by a task that raises the listeners' errors
        self.error: Exception | None = None


class Queue(Generic[T]):
    """A queue for one task."""

    def __init__(self) -> None:
        self.waiting: deque[T] = deque()
        self._added: anyio.Event | None = None

    def put(self, entry: T) -> None:
        """Add an entry at the end."""
        self.waiting.append(entry)
        if self._added is not None:
            self._added.set()

    async def get(self) -> T:
        """Take the first entry, as soon as there is one."""
        while not self.waiting:
            self._added = added = anyio.Event()
            await added.wait()
        return self.waiting.popleft()


class ScriptedLine:
    """One connection of a scripted model."""

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
        self.closed = False  # no event is delivered any more
        self.lost = False  # nothing can be sent any more
        self.requests: Queue[RealtimeModelSendEvent] = Queue()
        self._name = name
        self._listeners = listeners
        self._next_turn = next_turn
        self._new_id = new_id
        self._options = options
        self._deliveries: Queue[Delivery] = Queue()
        self._current: Delivery | None = None
        self._deliverer: object = None  # the task
        self._turn: PerformedTurn | None = None

    def start(self) -> None:
        """Start all tasks."""
        for work, name in ((self._deliver, "deliver"), (self._answer, "answer")):
            self.scope.spawn(self._watch, self.scope.spawn(work, name=name), name=f"watch {name}")

    def tell(self, event: RealtimeModelEvent, *, is_awaited: bool = False) -> Delivery:
        """Begin to deliver an event, without waiting."""
        delivery = Delivery(event, is_awaited)
        self._deliveries.put(delivery)
        return delivery

    def update(self, item: RealtimeItem) -> None:
        """Begin to deliver a new or changed item."""
        self.tell(RealtimeModelItemUpdatedEvent(item))

    def is_called_by_listener(self) -> bool:
        """Return whether a listener is the caller: it must not wait for later events."""
        return current_backend().current_task() is self._deliverer

    async def _deliver(self) -> None:
        """Pass the events to the listeners; no other task does."""
        self._deliverer = current_backend().current_task()
        try:
            while True:
                self._current = delivery = await self._deliveries.get()
                await self._pass_on(delivery)
        finally:
            self.closed = True
            self._deliverer = None
            self.release()

    async def _pass_on(self, delivery: Delivery) -> None:
        try:
            for listener in tuple(self._listeners):
                await listener.on_event(delivery.event)
        except Exception as error:
            delivery.error = error
            if not delivery.is_awaited:
                logger.exception("a listener of realtime model %r failed", self._name)
        delivery.done.set()

    async def _watch(self, handle: Handle) -> None:
        """Report the end of a task, if the connection was not closed before."""
        await handle.wait()
        if self.scope.state != "open":
            return
        failure = Delivery(self._failure_of(handle.name), False)
        if handle.name == "answer" and not self.closed:
            self._deliveries.put(failure)
        else:  # the task that delivers has ended, so this one does it
            self.closed = True
            self.release()
            await self._pass_on(failure)

    async def _answer(self) -> None:
        """Answer the requests, one after the other."""
        while True:
            request = await self.requests.get()
            turn = PerformedTurn(
                self._next_turn(), request, self._new_id("resp"), self._new_id, self._tell_and_wait
            )
            turn.handle = self.scope.spawn(turn.perform, name=f"turn {turn.response_id}")
            self._turn = turn
            await turn.handle.wait()
            self._turn = None
            if self.lost:
                continue  # no more requests follow
            if turn.handle.state == "cancelled" and not turn.stopped:
                await self._tell_and_wait(self._failure_of(turn.handle.name))
            else:
                await turn.announce_end()

    def _failure_of(self, task: str) -> RealtimeModelExceptionEvent:
        error = ConnectionEnded(
            f"the task {task!r} of realtime model {self._name!r} was cancelled from outside"
        )
        return RealtimeModelExceptionEvent(error, "the tasks of the model")

    async def _tell_and_wait(self, event: RealtimeModelEvent) -> None:
        await self.tell(event).done.wait()

    def interrupt(self, event: RealtimeModelSendInterrupt) -> None:
        """Stop the response, its audio, or both."""
        turn, wanted = self._turn, event.response_id
        if turn is not None and wanted in (None, turn.response_id):
            if not event.playback_only:
                turn.stop(in_silence=event.cancel_response_only)
            elif turn.audio is not None:
                self.tell(RealtimeModelAudioInterruptedEvent(*turn.audio))
        elif wanted is None and not event.cancel_response_only:
            self._stop_playing()

    def _stop_playing(self) -> None:
        """Interrupt audio that was sent completely, but perhaps not played."""
        tracker = self._options.get("playback_tracker")
        playing: Any = tracker.get_state() if tracker is not None else {}
        if tracker is not None and playing["current_item_id"] is not None:
            tracker.on_interrupted()
            self.tell(
                RealtimeModelAudioInterruptedEvent(
                    playing["current_item_id"], playing["current_item_content_index"]
                )
            )

    def lose(self, error: Exception) -> Delivery:
        """Lose the connection, even in the middle of a word; events from before are delivered first."""
        self.lost = True
        self.requests.waiting.clear()
        turn, self._turn = self._turn, None
        for listener in tuple(self._listeners):
            listener.on_connection_ended()
        if turn is not None:
            turn.cut_off(self.tell)
        # The same order as a real connection has: status, error, end of the stream.
        self.tell(RealtimeModelConnectionStatusEvent("disconnected"))
        self.tell(RealtimeModelExceptionEvent(error))
        return self.tell(RealtimeModelEndOfStreamEvent())

    def release(self) -> None:
        """Fail all deliveries that are not done, so that nothing waits for them."""
        waiting = [self._current, *self._deliveries.waiting]
        self._deliveries.waiting.clear()
        for delivery in waiting:
            if delivery is not None and not delivery.done.is_set():
                delivery.error = ConnectionEnded(f"realtime model {self._name!r} was closed")
                delivery.done.set()
