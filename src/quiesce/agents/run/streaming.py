"""A run whose events go to a consumer, one by one.

The run and its consumer are two tasks in lockstep: a run that has given an event goes on when the next one is asked for. So nothing
happens that the consumer could not have prevented by leaving, and one that reads slowly slows the model's stream down too. What
a stop promises is what `quiesce.stream` promises, since that is what the events come through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from quiesce import Handle, Reason, StopReport, Stream, current_scope, current_token, stream
from quiesce.kernel.inner import CANCELLED, Waiter, WaitQueue, current_backend, when_ended

from .events import AgentUpdatedStreamEvent, StreamEvent
from .result import RunOutcome

if TYPE_CHECKING:
    from quiesce import Grace

    from .engine import Engine
    from .runner import Execution


_CANCELLED = Reason("user", "cancel()")


class Handover:
    """Events on their way from the run to its consumer: a run that has given one goes on when the next one is asked for."""

    __slots__ = ("_closed", "_events", "_giver", "_reader")

    def __init__(self) -> None:
        self._events: deque[tuple[StreamEvent, Waiter | None]] = deque()  # several tools may have one to give
        self._closed = False
        self._reader = WaitQueue()
        self._giver: Waiter | None = None  # of the event that the consumer has now

    async def give(self, event: StreamEvent) -> None:
        """Hand an event over, and wait until the consumer is done with it."""
        if current_token().cancelled:
            # Told to stop, and it has something to say all the same: it does not wait for somebody to ask for that.
            self._events.append((event, None))
            self._reader.wake_all()
            return
        waiter = current_backend().make_waiter()
        entry = event, waiter
        self._events.append(entry)
        self._reader.wake_all()
        try:
            await waiter
        except BaseException:
            if entry in self._events:
                self._events.remove(entry)
            raise

    def ends_with(self, run: Handle) -> None:
        """There will be no more when this child has ended, in whichever way."""
        when_ended(run, self._close)

    def _close(self) -> None:
        self._closed = True
        self._reader.wake_all()

    async def take(self) -> StreamEvent | None:
        """The next event; None after the last one."""
        giver, self._giver = self._giver, None
        if giver is not None:
            giver.wake()
        await self._reader.wait_until(lambda: self._events or self._closed)
        if not self._events:
            return None
        event, self._giver = self._events.popleft()
        return event


class RunResultStreaming(RunOutcome):
    """A streamed run: iterate `stream_events()`, and look at the result when that has ended.

    ```python
    async with Runner.run_streamed(agent, "Hello") as result:
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, TextDelta):
                print(event.data.text, end="")
    print(result.final_output)
    ```

    At the end of the `async with`, after `aclose()`, and when you are cancelled while you wait for an event, the run is drained and its
    transcript complete when control is back. A bare `async for` that is left early stops the run before your next line: no model and no
    tool is called any more; `await result.close()` waits for the drain. `cancel()` stops it from any thread, now or after this turn.
    """

    __slots__ = ("_execution", "_stream")

    def __init__(self, engine: Engine, execution: Execution) -> None:
        self._engine = engine
        self._execution = execution
        self._stream: Stream[StreamEvent] | None = None

    @property
    def _scope(self) -> Any:  # type: ignore[override]
        return self._execution.scope

    @property
    def is_complete(self) -> bool:
        """Whether there is a final output."""
        return self._engine.is_complete

    @property
    def current_turn(self) -> int:
        """How often the model was asked."""
        return self._engine.turn

    def stream_events(self) -> Stream[StreamEvent]:
        """The events, from the first on. One consumer; a second call goes on where the first one was."""
        if self._stream is None:
            self._stream = stream(
                self._events(), name=f"events of {self._engine.agent.name}", grace=self._engine.config.grace
            )
        return self._stream

    async def _events(self) -> AsyncGenerator[StreamEvent, None]:
        handover = Handover()
        self._engine.emit = handover.give
        if self._engine.stop_after_turn:  # before it began: it never does
            self._execution.asked = self._execution.asked or _CANCELLED
        else:
            self._engine.takes_a_turn = True
            yield AgentUpdatedStreamEvent(self._engine.agent)
        run = current_scope().spawn(self._run, name=f"run of {self._engine.agent.name}")
        handover.ends_with(run)
        while (event := await handover.take()) is not None:
            yield event
        if run.state == CANCELLED:  # by somebody who is not its owner: that is no end
            run.result()

    async def _run(self) -> None:
        try:
            await self._execution.run()
        except BaseException as error:
            failed, pump = self._execution.late_failure, self.stream_events()._pump
            if failed is None or not pump.leaving:
                raise
            pump._clean_up_failed(failed)  # nobody waits for an event any more: who closes them is told
            if failed is error:
                raise
            raise failed from failed.__cause__  # and not the cancel, which is ours, and nobody sees

    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """Stop it, from any thread, without waiting: now, or when this turn and its tools are done. The events then come to their end.

        Before the first event is asked for, either means that it never begins: there are no events. At the first event, which tells of
        the agent, the turn that is about to begin is this turn.
        """
        if mode not in ("immediate", "after_turn"):
            raise ValueError(f'mode must be "immediate" or "after_turn", not {mode!r}')
        self._engine.stop_after_turn = True
        if mode == "immediate":
            self._execution.asked = _CANCELLED
            if (scope := self._execution.scope) is not None:
                scope.cancel(_CANCELLED)

    async def close(self, *, deadline: float | None = None, grace: Grace | None = None) -> StopReport:
        """Stop it, wait until everything has ended, and report; from any task, as often as you like."""
        events = self.stream_events()
        report = await events.close(deadline=deadline, grace=grace)
        events._pump.closing_error = None  # the report has it: the end of an `async with` need not raise it
        return report

    async def aclose(self) -> StopReport:
        """The same, under the name that async generators have for it."""
        return await self.close()

    async def __aenter__(self) -> Self:
        await self.stream_events().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stream_events().__aexit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<RunResultStreaming of {self.last_agent.name!r}>"
