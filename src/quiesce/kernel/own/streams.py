"""`stream`: anybody's async generator, iterated and closed by an owner task (see `generator_owner`).

A fresh iterator is handed out to every `async for`, so that after a bare `break` nobody holds it and its `__del__` runs
before the consumer's next line. There the stop is asked for; it cannot be awaited there, and goes on behind.

`__del__` may also run late: by the collector, in another thread, or when the loop is gone. The collector is told from a
plain release by a weak reference: it clears those before it calls `__del__`, a plain release does so after.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quiesce.kernel.base import (
    SETTLED,
    Grace,
    Reason,
    describe,
    is_cancel,
    raise_unchanged,
    site_of,
    without_cancels,
)
from quiesce.kernel.scope import Scope, current_backend, current_core, log_report, reason_of_cancel

from .generator_owner import GeneratorOwner

if TYPE_CHECKING:
    from quiesce.kernel.base import CancelToken, StopReport

T = TypeVar("T")


def stream(
    agen: AsyncIterable[T],
    *,
    prefetch: int = 0,
    scope: Scope | None = None,
    name: str | None = None,
    grace: Grace | None = None,
) -> Stream[T]:
    """Iterate anybody's async generator, or any other async iterable, so that it always ends.

    ```python
    async with stream(model.answer(prompt)) as tokens:      # drained at the end of the block, however it ends
        async for token in tokens:
            print(token)

    async for token in stream(model.answer(prompt)):        # or bare
        if token == "stop":
            break                                           # stopped before the next line, drained behind
    ```

    It is iterated and closed in one task of its own, in a copy of the context of whoever asks for the first
    item, so it may hold task groups and timeouts across its yields. It runs only while an item is asked for;
    `prefetch` lets it be that many items ahead.

    What a stop promises: at the end of an `async with`, after `aclose()` or `close()` from any task, and
    when you are cancelled while you wait for an item, everything is drained when control is back. Leaving
    a bare `async for` early (`break`, `return`, an exception) stops it before your next line runs: its token is
    cancelled, processes are signalled, nothing new starts; draining goes on behind, and `await s.close()` waits
    for it. An iterator that is released late by the garbage collector, or that you still hold when the enclosing
    scope ends, is settled by that scope, with a ResourceWarning.

    `scope` is its owner, the current scope unless another is given; `grace` bounds its stop.
    """
    check_async_iterable(agen)
    if isinstance(prefetch, bool) or not isinstance(prefetch, int):
        raise TypeError(f"prefetch must be a number of items, not {type(prefetch).__name__}")
    if prefetch < 0:
        raise ValueError(f"prefetch must be 0 or more items, not {prefetch}")
    parent = scope._opened() if scope is not None else current_core(current_backend())
    label = name or str(getattr(agen, "__qualname__", None) or type(agen).__qualname__)
    site = site_of(sys._getframe(1))
    return Stream(GeneratorOwner(agen, prefetch, parent, label, grace, site))


async def ask(pump: GeneratorOwner[T], holder: object, step: Callable[[], Awaitable[T]] | None = None) -> T:
    """One item. `holder`, the iterator, must not be released while it is being asked for."""
    if pump.items or not pump.is_at_its_end:
        if pump.asking:
            raise RuntimeError(
                f"stream {pump.name!r}, made at {describe(pump.site)}: another task is waiting for its next "
                "item; one task at a time can ask"
            )
        pump.asking = True
        is_first = pump.handle is None
        try:
            if pump.prefetch == 0:
                pump.step = step or pump.next_item
            if pump.handle is None:
                pump.start()
            if not pump.items and not pump.over:  # an eager owner may have ended in its first step
                if pump.nap is not None:
                    pump.nap.wake()
                pump.waiter = waiter = pump.backend.make_waiter()
                try:
                    await waiter
                except BaseException as mine:
                    await _cut_off(pump, mine)
                    raise
        finally:
            pump.asking = False
            pump.waiter = None
        if is_first and pump.processes is not None:
            pump.processes.guard()
        if pump.items:
            item = pump.items.popleft()
            if pump.prefetch and pump.nap is not None:
                pump.nap.wake()
            return item
    return raise_unchanged(await _end_of(pump))


async def _cut_off(pump: GeneratorOwner[T], mine: BaseException) -> None:
    """The consumer was cancelled while it waited: drain, and let it have its cancel."""
    if isinstance(mine, GeneratorExit):  # its coroutine is thrown away: nothing can be awaited
        pump.backend.run_from_anywhere(partial(pump.abandon, "the consumer is gone"))
    if not is_cancel(mine):
        return
    core = pump.bind()
    pump.stopped = True
    core.stop(reason_of_cancel(core, mine))
    if not pump.at_work:
        if pump.processes is not None:
            pump.processes.look()
        pump.leave()
    await pump.backend.wait_through(core.is_over, core.waiters)
    pump.attach_failure(mine)


async def _end_of(pump: GeneratorOwner[T]) -> BaseException:
    """Nothing more comes: an error that nobody has seen yet, or the end of the iteration."""
    core, backend = pump.bind(), pump.backend
    if not core.closed:
        if pump.handle is None:  # the owner never began
            pump.leave()
            pump.start()  # only to close the source
        if core.children or core.nested:
            core.stop(Reason("parent", "the stream came to its end"))
        else:
            core.settle()
    await backend.reraise(await backend.wait_through(core.is_over, core.waiters))
    error, pump.error = pump.error, None
    if error is None and not pump.stopped and core.reason is not None:
        error = core.reason.error  # of a task that the generator had spawned
    pump.stopped = True
    if error is not None and is_cancel(error):
        told = RuntimeError(
            f"stream {pump.name!r}, made at {describe(pump.site)}, was cancelled from inside; "
            "nobody has cancelled you"
        )
        told.__cause__ = error
        return told
    return StopAsyncIteration() if error is None else error


def _method(pump: GeneratorOwner[T], name: str) -> Callable[[Any], Awaitable[T]]:
    """`asend` or `athrow` of the generator, or a clear refusal."""
    if pump.prefetch:
        raise TypeError(
            f"stream {pump.name!r} is {pump.prefetch} items ahead of its consumer: {name} needs prefetch=0"
        )
    if pump.iterator is None:
        pump.iterator = aiter(pump.source)
    found: Callable[[Any], Awaitable[T]] | None = getattr(pump.iterator, name, None)
    if found is None:
        raise TypeError(
            f"stream {pump.name!r}: a {type(pump.iterator).__name__} has no {name}; only async generators do"
        )
    return found


class _Releasable:
    """Something whose release stops the stream, and that knows whether the collector released it."""

    def __init__(self) -> None:
        # With a callback: only those are cleared before `__del__` in every version of Python.
        self._alive = weakref.ref(self, _ignore)

    def _was_collected(self) -> bool:
        return self._alive() is None


class StreamIterator(_Releasable, Generic[T]):
    """One iteration of a `Stream`; releasing it stops the stream, unless an `async with` is around it."""

    def __init__(self, pump: GeneratorOwner[T]) -> None:
        super().__init__()
        self._pump = pump

    def __aiter__(self) -> StreamIterator[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        return ask(self._pump, self)

    async def aclose(self) -> StopReport:
        """Close the stream and wait for it."""
        return await self._pump.close(None, None, None)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._pump.released(self, self._was_collected())


class Stream(_Releasable, Generic[T]):
    """An async generator in an owner task: what `stream` returns.

    Iterate it with `async for`; close it, from any task, with `async with`, `aclose()` or `close()`. Each
    `async for` has an iterator of its own: leave it early and the stream is stopped, unless it is inside an
    `async with` on the stream, where the next `async for` goes on.
    """

    def __init__(self, pump: GeneratorOwner[T]) -> None:
        super().__init__()
        self._pump = pump
        self._iterated = False

    def __aiter__(self) -> StreamIterator[T]:
        self._iterated = True
        return StreamIterator(self._pump)

    @property
    def token(self) -> CancelToken:
        """Cancelled, with the reason, as soon as the stream is being stopped."""
        return self._pump.bind().token

    @property
    def report(self) -> StopReport | None:
        """What the last `close()` or the end of the block reported; None before."""
        return self._pump.core.last_report if self._pump.core is not None else None

    def asend(self, value: Any) -> Awaitable[T]:
        """Send a value into the generator, and get its next item; as an async generator's own."""
        return ask(self._pump, self, partial(_method(self._pump, "asend"), value))

    def athrow(self, error: BaseException | type[BaseException]) -> Awaitable[T]:
        """Raise an error inside the generator, and get its next item; as an async generator's own."""
        return ask(self._pump, self, partial(_method(self._pump, "athrow"), error))

    async def aclose(self) -> StopReport:
        """The same as `close()`, under the name that async generators have for it."""
        return await self.close()

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop the generator, wait until it has cleaned up, and report.

        Whoever waits for an item gets the end of the iteration. Bounded by `deadline` seconds, or its `Grace`;
        what is still there then is named in the report. Errors of the clean-up are in the report, not
        raised. If you are cancelled meanwhile, the clean-up goes on and your cancellation is raised after it.
        """
        return await self._pump.close(deadline, grace, reason)

    async def __aenter__(self) -> Stream[T]:
        self._pump.bind()
        self._pump.in_block = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pump = self._pump
        report = await pump.close(None, None, Reason("parent", "its block ended"))
        if pump.core is not None and pump.core.state is not SETTLED:
            log_report(report)
        if error is not None and without_cancels(error) is None:
            pump.attach_failure(error)
            return
        failure = pump.take_failure()
        if failure is not None:
            raise_unchanged(failure, error)

    def __del__(self) -> None:
        if not self._iterated and not sys.is_finalizing():
            self._pump.released(self, self._was_collected())

    def __repr__(self) -> str:
        core = self._pump.core
        return f"<Stream {self._pump.name!r} {core.state if core is not None else 'new'}>"


def _ignore(reference: object) -> None:
    pass


def check_async_iterable(agen: object) -> None:
    """An error that explains, where `agen` cannot be iterated with `async for`."""
    if hasattr(type(agen), "__aiter__"):
        return
    what = type(agen).__name__
    if inspect.iscoroutine(agen):
        agen.close()  # nobody will await it now; without this Python warns about that too
        hint = "await it first, if it returns one: stream(await answer())"
    elif inspect.isroutine(agen) or isinstance(agen, type):
        what = f"{what} {getattr(agen, '__qualname__', agen)!r}"
        hint = "call it, and pass what it returns"
    elif hasattr(type(agen), "__aenter__"):
        hint = "it is a context manager: enter it, and pass what that gives"
    elif hasattr(type(agen), "__iter__"):
        hint = "it is a sync iterable: a plain `for` does for it"
    else:
        hint = "it has no __aiter__"
    raise TypeError(f"stream takes an async generator or another async iterable, not {what}: {hint}")
