"""A run whose events go to a consumer, one by one.

The run and its consumer are two tasks in lockstep: after an event, the run goes on when the consumer asks for
the next one. So nothing happens that the consumer could not have prevented by stopping to iterate, and a
consumer that reads slowly slows the model's stream down too. The events come through `quiesce.stream`, and
stopping them promises what that promises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from quiesce import Handle, Reason, StopReport, Stream, current_scope, current_token, stream
from quiesce.kernel.inner import (
    Waiter,
    WaitQueue,
    current_backend,
    fail_closing,
    forget_failure,
    is_closing,
    when_ended,
)

from .agent_run import AgentRun
from .events import AgentUpdatedStreamEvent, StreamEvent
from .result import RunOutcome
from .settings import span_of

if TYPE_CHECKING:
    from quiesce import Grace
    from quiesce.agents.agent import Agent

_CANCELLED = Reason("user", "cancel()")


class Handover:
    """Events on their way from the run to its consumer.

    The run waits after each event until the consumer asks for the next one.
    """

    __slots__ = ("_closed", "_events", "_giver", "_reader")

    def __init__(self) -> None:
        # Several, if tools run at once: each gives its own events.
        self._events: deque[tuple[StreamEvent, Waiter | None]] = deque()
        self._closed = False
        self._reader = WaitQueue()
        self._giver: Waiter | None = None  # waits while the consumer has its event

    async def give(self, event: StreamEvent) -> None:
        """Hand an event over, and wait until the consumer is done with it."""
        if current_token().cancelled:
            # A run that is being stopped does not wait for its consumer, who may have stopped to iterate.
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
            # Cancelled while it waited. If the consumer has not taken the event, it must not get it any more.
            if entry in self._events:
                self._events.remove(entry)
            raise

    def ends_with(self, run: Handle) -> None:
        """There are no more events once this child has ended."""
        when_ended(run, self._close)

    def _close(self) -> None:
        self._closed = True
        self._reader.wake_all()

    async def take(self) -> StreamEvent | None:
        """The next event; None after the last one."""
        # Asking for the next event says that the consumer is done with the last one.
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

    At the end of the `async with`, after `aclose()`, and when you are cancelled while you wait for an event,
    the run is drained and its transcript is complete by the time you have control back. If you exit a bare
    `async for` early, the run is stopped before your next line: no model and no tool is called any more, and
    `await result.close()` waits until it is drained. `cancel()` stops it from any thread, now or after this
    turn.
    """

    __slots__ = ("_handover", "_stream")

    def __init__(self, run: AgentRun, handover: Handover) -> None:
        super().__init__(run)
        self._handover = handover
        self._stream: Stream[StreamEvent] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it has ended: with a final output, or because it was stopped, has failed or waits for approvals."""
        return self._engine.is_complete or (self._stream is not None and self._stream.report is not None)

    @property
    def current_agent(self) -> Agent[Any]:
        """The agent whose turn it is: `last_agent`, under the name that it has while the run goes on."""
        return self.last_agent

    @property
    def current_turn(self) -> int:
        """How often the model was asked."""
        return self._engine.turn

    def stream_events(self) -> Stream[StreamEvent]:
        """The events, from the first on. One consumer; a second call goes on where the first one was."""
        if self._stream is None:
            self._stream = stream(
                self._events(),
                name=f"events of {self._engine.agent.name}",
                grace=self._engine.settings.config.grace,
            )
        return self._stream

    async def _events(self) -> AsyncGenerator[StreamEvent, None]:
        engine, handover = self._engine, self._handover
        if engine.stops_after_turn:  # cancelled before it began, so it never begins
            self._run.cancel(_CANCELLED)
        else:
            engine.announce_first_turn()
            yield AgentUpdatedStreamEvent(engine.agent)
        task = current_scope().spawn(self._run_to_the_end, name=f"run of {engine.agent.name}")
        handover.ends_with(task)
        while (event := await handover.take()) is not None:
            yield event
        if (
            task.state == "cancelled"
        ):  # by code that does not own it: the consumer must not take that for the end
            task.result()

    async def _run_to_the_end(self) -> None:
        try:
            with span_of(self._engine.settings.config):
                await self._run.run()
        except BaseException as error:
            failed, events = self._run.late_failure, self.stream_events()
            if failed is None or not is_closing(events):
                raise
            # The consumer waits for no event any more: `close()` raises this.
            fail_closing(events, failed)
            if failed is error:
                raise
            # Not the cancel, which was sent by the closing stream and is of no interest to anyone.
            raise failed from failed.__cause__

    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """Stop it, from any thread, without waiting: now, or when this turn and its tools are done.

        The events then end. Before the first event is asked for, both mean that the run never begins: there
        are no events. At the first event, which names the agent, "this turn" is the one that is about to
        begin.
        """
        if mode not in ("immediate", "after_turn"):
            raise ValueError(f'mode must be "immediate" or "after_turn", not {mode!r}')
        self._engine.stop_after_turn()
        if mode == "immediate":
            self._run.cancel(_CANCELLED)

    async def close(self, *, deadline: float | None = None, grace: Grace | None = None) -> StopReport:
        """Stop it, wait until everything has ended, and report; from any task, as often as you like."""
        events = self.stream_events()
        report = await events.close(deadline=deadline, grace=grace)
        # The report has the error of closing, so the end of an `async with` does not raise it again.
        forget_failure(events)
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
