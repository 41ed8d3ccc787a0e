"""The results of runs: the SDK's own objects, which can also say and do what concerns their stop.

The SDK makes its results itself, and its run loop keeps writing to the streamed one. So these are not copies:
the SDK's object gets the class from here, a subclass without data of its own kind.

A streamed run has a containment (`OpenContainment`), in which the SDK starts its loop, and with it everything
else. It is stopped by every way out: the end of the events, `break`, an error or a cancel in the loop over
them, `close()`, `cancel()`.

- **`break`** drops the iterator, which notices that: before the consumer's next line the tasks of the run are
  cancelled. They clean up behind; `close()` waits for them, as does the scope around.
- **A result that is dropped unread** goes on, as it does with the SDK, since the run loop holds it.
- **A tripwire** of an input guardrail ends the model's answer at once. The SDK only looks at it when the next
  event comes. It is noticed where the SDK publishes it: when `input_guardrail_results` is set.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Literal, Self, cast

from agents import InputGuardrailResult, RunResult, RunResultStreaming, StreamEvent

from quiesce import Grace, Reason, StopReport
from quiesce.kernel.inner import OpenContainment
from quiesce.dropin.contained import close_after


class ContainedRunResult(RunResult):
    """What `Runner.run` returns: a `RunResult` that also has the `report` of the run's end."""

    report: StopReport


class ContainedRunResultStreaming(RunResultStreaming):
    """What `Runner.run_streamed` returns: a `RunResultStreaming` that can be closed.

    ```python
    result = Runner.run_streamed(agent, "Write a poem.")
    async for event in result.stream_events():
        break                                       # the run is being stopped
    report = await result.close()                   # now it has ended

    async with Runner.run_streamed(agent, "Write a poem.") as result:
        ...                                         # closed at the end of the block
    ```
    """

    _containment: OpenContainment

    @property
    def report(self) -> StopReport | None:
        """What the stop of the run has done, and what is left; None as long as it runs."""
        return self._containment.report

    def stream_events(self) -> EventStream:
        """The events, as the SDK gives them; leaving the loop over them stops the run."""
        return EventStream(self, super().stream_events())

    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """As the SDK's: stop now, or after this turn. What it does not wait for is stopped in the background."""
        super().cancel(mode)
        if mode == "immediate":
            self._containment.cancel(Reason("user", "cancelled"))

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop the run, wait until everything that it started has ended, and report.

        From any task, any number of times. Bounded by `deadline` seconds, or its `Grace`. If you are cancelled
        meanwhile, the stop goes on, and your cancellation is raised after it; the report is then in `report`.
        A tool that closes its own run is not waited for: it is cancelled at its next `await`, as all others.
        """
        return await self._containment.close(deadline=deadline, grace=grace, reason=reason)

    def _stop_work(self) -> list[asyncio.Task[Any]]:
        """Cancel the run loop, which cancels everything else, unless that was done before."""
        loop = self.run_loop_task
        if loop is None or loop.done():
            return []
        if not loop.cancelling():
            super().cancel()
        return [loop]

    def _left(self, events: Any) -> None:
        """The loop over `events` was left without their end: stop the run, without waiting."""
        containment = self._containment
        if containment.closed:
            return

        def stop() -> None:
            RunResultStreaming.cancel(self)
            # They are closed by a task that the containment waits for, and not by one that asyncio would make.
            containment.run(asyncio.ensure_future, events.aclose())
            containment.cancel(Reason("user", "the iteration was left"))

        containment.run_in_loop(stop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        super().__del__()
        containment = self.__dict__.get("_containment")
        if containment is not None:
            containment.cancel(Reason("parent", "the result was dropped"))

    @property  # type: ignore[override, unused-ignore]  # a field of the SDK's dataclass: see above
    def input_guardrail_results(self) -> list[InputGuardrailResult]:
        """The results of the input guardrails that have run so far."""
        return cast("list[InputGuardrailResult]", self.__dict__["input_guardrail_results"])

    @input_guardrail_results.setter
    def input_guardrail_results(self, results: list[InputGuardrailResult]) -> None:
        self.__dict__["input_guardrail_results"] = results
        loop = self.run_loop_task
        if loop is not None and any(result.output.tripwire_triggered for result in results):
            # A turn later: then the SDK has taken note of it too, and raises it.
            asyncio.get_running_loop().call_soon(loop.cancel)


def stop_work_of(result: ContainedRunResultStreaming) -> Callable[[], list[asyncio.Task[Any]]]:
    """How the run of `result` is stopped; without a reference to it, so that it is noticed when it is dropped."""
    reference = weakref.ref(result)

    def stop() -> list[asyncio.Task[Any]]:
        result = reference()
        return result._stop_work() if result is not None else []

    return stop


class EventStream(AsyncIterator[StreamEvent]):
    """The events of a streamed run, one after the other."""

    def __init__(self, result: ContainedRunResultStreaming, events: AsyncIterator[StreamEvent]) -> None:
        self._result = result
        self._events: Any = events  # an async generator, which its annotation does not say
        self._is_open = False  # it was asked for an event, and has not ended

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        self._is_open = True
        try:
            return cast(StreamEvent, await self._events.__anext__())
        except GeneratorExit:  # the consumer is being closed, and cannot wait: see `__del__`
            raise
        except BaseException as error:
            self._is_open = False
            await close_after(error, self._result.close)  # wait until all else of the run has ended, too
            raise

    async def aclose(self) -> None:
        """Stop the run, and wait until everything that it started has ended."""
        self._is_open = False
        try:
            await self._result.close(reason=Reason("user", "the events were closed"))
        finally:
            await self._events.aclose()

    def __del__(self) -> None:
        if self._is_open:
            self._result._left(self._events)
