"""Runs of an agent that have ended when they are over, in each of the SDK's forms.

**`run` and `run_sync`** are one call (`Call`): a task of its own, in a containment.

**`run_stream`, `run_stream_events` and `iter`** give an async context manager. An owner task enters and exits
that, in a containment, so that any task may exit it, and a cancel of the user's task reaches the SDK's
clean-up once. What is read from it runs in tasks of a scope in that containment, for the same reason:

- When the context manager is exited, by whichever task, these tasks end first, so that none reads what is being closed.
- The SDK has cancels of its own (`cancel()`, a token, `timeout=`), and sends them to the task that drives the
  run, which here is one of ours. It is then that task which the SDK raises `RunCancelled` in; it is raised in
  the user's task from there.
- A cancel of the user's task carries what the run had done so far (`RunCancelled.from_cancellation`).

The SDK makes the objects that it gives to its users. They get a class from here, a subclass without data of
its own kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakSet

import anyio
from pydantic_ai import AgentRun, AgentRunResult, RunCancelled
from pydantic_ai.agent import AgentRunEvents
from pydantic_ai.result import StreamedRunResult

from quiesce import ChildCancelled, Grace, Reason, Scope, ScopeClosed, StopReport, Stream, guarded, stream
from quiesce.dropin.connected import Opened
from quiesce.dropin.contained import Call

T = TypeVar("T")
D = TypeVar("D")

# The SDK's `run` and `run_stream` call `iter` of the same agent: that one needs no containment of its own.
drives_itself: ContextVar[bool] = ContextVar("drives itself", default=False)


class ContainedAgentRunResult(AgentRunResult[T]):
    """What `run` and `run_sync` return: an `AgentRunResult` that also has the `report` of the run's end."""

    report: StopReport

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__qualname__, AgentRunResult.__qualname__, 1)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(cast("dict[str, Any]", super().__getstate__()))
        state.pop("report", None)  # of this process
        return state


class RunCall(Call[Any]):
    """A call of the SDK's `run`."""

    __slots__ = ("_cancelled", "_theirs")

    def __init__(self, theirs: Callable[..., Awaitable[Any]], name: str) -> None:
        super().__init__(self._run, name=name)
        self._theirs = theirs
        self._cancelled: BaseException | None = None

    async def _run(self, *args: Any, **kwargs: Any) -> Any:
        drives_itself.set(True)
        try:
            return await self._theirs(*args, **kwargs)
        except asyncio.CancelledError as error:
            self._cancelled = error
            raise

    async def result(self, *args: Any, **kwargs: Any) -> Any:
        """The result, with its report."""
        try:
            result: Any = await super().result(*args, **kwargs)
        except asyncio.CancelledError as error:
            hand_on(self._cancelled, error)
            raise
        finally:
            self._cancelled = None
        result.__class__ = ContainedAgentRunResult
        result.report = self.report
        return result


def hand_on(theirs: BaseException | None, ours: BaseException) -> None:
    """Have `RunCancelled.from_cancellation(ours)` find what the SDK has noted on its own cancellation."""
    done = RunCancelled.from_cancellation(theirs) if theirs is not None else None
    if done is not None and RunCancelled.from_cancellation(ours) is None:
        while ours.__context__ is not None:
            ours = ours.__context__
        ours.__context__ = done
        ours.__suppress_context__ = True


class TheirRun(AbstractAsyncContextManager[Any]):
    """A context manager of the SDK, in its owner task; what it makes of a cancel is kept."""

    def __init__(self, cm: AbstractAsyncContextManager[Any], has_driver: bool) -> None:
        self._cm = cm
        self._has_driver = has_driver
        self.cancelled: BaseException | None = None

    async def __aenter__(self) -> Any:
        drives_itself.set(self._has_driver)
        return await self._keep(self._cm.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        suppresses: bool | None = await self._keep(self._cm.__aexit__(kind, error, traceback))
        return suppresses

    async def _keep(self, step: Awaitable[Any]) -> Any:
        try:
            return await step
        except asyncio.CancelledError as error:
            self.cancelled = error
            raise

    def hand_on(self, error: BaseException | None) -> None:
        """Have the cancellation of the user say what the run had done so far."""
        theirs, self.cancelled = self.cancelled, None
        if isinstance(error, asyncio.CancelledError):
            hand_on(theirs, error)


class ContainedRun(Opened[T], AbstractAsyncContextManager[T]):
    """What `run_stream`, `run_stream_events` and `iter` return: any task may exit it, or `close()` it."""

    def __init__(
        self,
        cm: AbstractAsyncContextManager[Any],
        name: str,
        kind: type[_InRun],
        *,
        has_driver: bool = False,
    ) -> None:
        self._theirs = TheirRun(cm, has_driver)
        super().__init__(self._theirs, name=name)
        self._kind = kind
        self._name = name
        self._readers: Scope | None = None
        self._streams: WeakSet[Stream[Any]] = WeakSet()
        self._closing: list[asyncio.Task[StopReport]] = []

    async def __aenter__(self) -> T:
        if self._containment is not None:
            raise RuntimeError(f"{self._name} was entered before; it is used once: call it again")
        try:
            value: Any = await self.open()
        except asyncio.CancelledError as error:
            self._theirs.hand_on(error)
            raise
        held = self._held
        assert held is not None
        self._readers = await self.call(Scope.open, "readers", on_error="report")
        held.token.on_cancel(self._stop_readers)
        value.__class__ = self._kind
        value._run = self
        return cast(T, value)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            suppresses = await self.leave(error)
        except asyncio.CancelledError as late:
            self._theirs.hand_on(late)
            raise
        self._theirs.hand_on(error)
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling():
            # Nobody has cancelled this task: the SDK has cancelled the run, and raises what says so.
            self.raise_failure()
        return suppresses

    def _stop_readers(self) -> None:
        """Before anything else of the run is closed: nobody shall read what is being closed."""
        assert self._held is not None
        assert self._readers is not None
        assert self._containment is not None
        reason = self._held.token.reason
        self._readers.cancel(reason)
        self._closing = [
            self._containment.run(asyncio.ensure_future, items.close(reason=reason))
            for items in self._streams
        ]

    def stream(self, items: AsyncIterator[Any]) -> Stream[Any]:
        """What is to be read of the run, in a task of its own."""
        assert self._containment is not None
        made = self._containment.run(stream, items)
        self._streams.add(made)
        return made

    def raise_failure(self) -> None:
        """Raise what has ended the run from inside, if anything has."""
        failure = self._held.take_failure() if self._held is not None else None
        if failure is not None:
            raise failure

    async def read(self, fn: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Await `fn(*args)` in a task of the run, which is cancelled once."""
        try:
            return await guarded(partial(fn, *args, **kwargs), scope=self._readers)
        except (ChildCancelled, ScopeClosed):
            await self.check()
            # The SDK has cancelled it: what that means is known when the run is exited.
            raise asyncio.CancelledError from None

    async def check(self) -> None:
        """Raise what has ended the run, if that was not its user: the SDK's error, or that it was closed."""
        held = self._held
        assert held is not None
        if held.failed:
            await held.close()
        if held.closed:
            _ = held.value  # which says how it ended


class _InRun:
    """What a `ContainedRun` gives to its user."""

    # Comes after the SDK's class, and has no data: otherwise it could not be the class of an object of the SDK.
    __slots__ = ()

    _run: ContainedRun[Any]

    @property
    def report(self) -> StopReport | None:
        """What the end of the run has stopped, and what is left; None as long as it runs."""
        return self._run.report

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop the run, wait until everything that it started has ended, and report.

        From any task, any number of times. Who reads from it meanwhile sees the end. If you are cancelled, the
        stop goes on, and your cancellation is raised after it; the report is then in `report`.
        """
        return await self._run.close(deadline=deadline, grace=grace, reason=reason)


class Reading(AsyncIterator[T]):
    """What is streamed from a run: an async generator of the SDK, in a task of the run."""

    def __init__(self, run: ContainedRun[Any], items: AsyncIterator[T]) -> None:
        self._run = run
        self._items = run.stream(items)
        self._iterator = aiter(self._items)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self._iterator.__anext__()
        except StopAsyncIteration:
            held = self._run._held
            if held is not None and held.failed:
                await held.close()
            raise

    async def aclose(self) -> None:
        """Stop reading; the run goes on."""
        await self._items.aclose()


class ContainedStreamedRunResult(StreamedRunResult[D, T], _InRun):
    """What `run_stream` gives: a `StreamedRunResult` that can be closed."""

    if not TYPE_CHECKING:  # they keep the SDK's signatures

        def stream_output(self, **options: Any) -> Any:
            return Reading(self._run, super().stream_output(**options))

        def stream_text(self, **options: Any) -> Any:
            return Reading(self._run, super().stream_text(**options))

        def stream_response(self, **options: Any) -> Any:
            return Reading(self._run, super().stream_response(**options))

        async def get_output(self) -> T:
            return cast(T, await self._run.read(super().get_output))

        async def cancel(self) -> None:
            await self._run.read(super().cancel)


class ContainedAgentRun(AgentRun[D, T], _InRun):
    """What `iter` gives: an `AgentRun` that can be closed."""

    if not TYPE_CHECKING:

        async def __anext__(self) -> Any:
            return await self._step(super().__anext__)

        async def next(self, node: Any) -> Any:
            return await self._step(super().next, node)

    async def _step(self, fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        async def step() -> Any:
            _steps_of.set(self)
            return await fn(*args)

        # The SDK's `__anext__` calls `next`: that is one step.
        return await (fn(*args) if _steps_of.get() is self else self._run.read(step))


_steps_of: ContextVar[object] = ContextVar("steps of", default=None)


class ContainedAgentRunEvents(AgentRunEvents[T], _InRun):
    """What `run_stream_events` gives: an `AgentRunEvents` that can be closed."""

    if not TYPE_CHECKING:

        async def __anext__(self) -> Any:
            try:
                return await self._run.call(super().__anext__)
            except anyio.ClosedResourceError:
                if self._run.is_open:
                    raise
                raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """As `close()`, under the name that the SDK gives it."""
        if self._run.is_inside():  # the SDK, in the owner task
            await super().aclose()
        else:
            await self.close()
