"""`stream`: an async generator of any library, in an owner task (see `generator_owner`).

Each `async for` gets a new iterator. After a bare `break` nothing refers to that iterator any more, so its
`__del__` runs before the consumer's next line. The stop begins there; it cannot be awaited in a `__del__`, so
the clean-up goes on in the background.

`__del__` may also run late: from the garbage collector, in another thread, or after the loop has ended. A
weak reference tells the garbage collector from a plain drop of the last reference: the collector clears weak
references before it calls `__del__`, a plain drop after that.
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
from quiesce.kernel.scope import Closable, Scope, current_backend, current_core, log_report, reason_of_cancel

from .generator_owner import GeneratorOwner

if TYPE_CHECKING:
    from quiesce.kernel.base import CancelToken, StopReport
    from quiesce.kernel.scope import ScopeCore

T = TypeVar("T")


def stream(
    agen: AsyncIterable[T],
    *,
    prefetch: int = 0,
    scope: Scope | None = None,
    name: str | None = None,
    grace: Grace | None = None,
) -> Stream[T]:
    """Iterate an async generator, or any other async iterable, so that it always ends.

    ```python
    async with stream(model.answer(prompt)) as tokens:      # cleaned up at the end of the block
        async for token in tokens:
            print(token)

    async for token in stream(model.answer(prompt)):        # or bare
        if token == "stop":
            break                                           # stopped before your next line runs
    ```

    It is iterated and closed in one task of its own, in a copy of the context in which the first item is
    requested, so it may hold task groups and timeouts across its yields. It runs only while an item is
    requested; `prefetch` lets it run that many items ahead.

    What a stop promises: at the end of an `async with`, after `aclose()` or `close()` from any task, and when
    you are cancelled while you wait for an item, the generator has cleaned up when control is back. Exiting a
    bare `async for` early (`break`, `return`, an exception) stops it before your next line runs: its token is
    cancelled, processes are signalled, nothing new starts. The clean-up goes on in the background, and
    `await s.close()` waits for it. An iterator that the garbage collector frees late, or that you still hold
    when the enclosing scope ends, is closed by that scope, with a ResourceWarning.

    `scope` is its owner: by default, the current scope. `grace` bounds its stop.
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


async def ask(owner: GeneratorOwner[T], holder: object, step: Callable[[], Awaitable[T]] | None = None) -> T:
    """Request one item. `holder`, the iterator, is passed only to be kept alive during the wait."""
    if owner.items or not owner.is_at_its_end:
        if owner.is_being_asked:
            raise RuntimeError(
                f"stream {owner.name!r}, made at {describe(owner.site)}: another task is waiting for its next "
                "item; one task at a time can ask"
            )
        owner.is_being_asked = True
        is_first = owner.handle is None
        try:
            if owner.prefetch == 0:
                owner.request = step or owner.next_item
            if owner.handle is None:
                owner.start()
            if not owner.items and not owner.has_ended:  # an eager owner may have got one, or ended, already
                if owner.owner_waiter is not None:
                    owner.owner_waiter.wake()
                owner.consumer_waiter = waiter = owner.backend.make_waiter()
                try:
                    await waiter
                except BaseException as mine:
                    await _stop_for_consumer(owner, mine)
                    raise
        finally:
            owner.is_being_asked = False
            owner.consumer_waiter = None
        if is_first and owner.processes is not None:
            owner.processes.guard()
        if owner.items:
            item = owner.items.popleft()
            if owner.prefetch and owner.owner_waiter is not None:
                owner.owner_waiter.wake()
            return item
    return raise_unchanged(await _end_of(owner))


async def _stop_for_consumer(owner: GeneratorOwner[T], error: BaseException) -> None:
    """Stop because the consumer was cancelled (`error`) while it waited; returns after the clean-up."""
    if isinstance(error, GeneratorExit):  # its coroutine is being closed: nothing can be awaited
        owner.backend.run_from_anywhere(partial(owner.abandon, "the consumer was dropped"))
    if not is_cancel(error):
        return
    core = owner.bind()
    owner.stopped_by_user = True
    core.stop(reason_of_cancel(core, error))
    if not owner.is_running:
        if owner.processes is not None:
            owner.processes.look()
        owner.leave()
    await owner.backend.wait_through(core.is_over, core.waiters)
    owner.attach_failure(error)


async def _end_of(owner: GeneratorOwner[T]) -> BaseException:
    """What to raise when there are no more items: an unreported error, or `StopAsyncIteration`."""
    core, backend = owner.bind(), owner.backend
    if not core.closed:
        if owner.handle is None:  # the owner never started
            owner.leave()
            owner.start()  # only to close the source
        if core.children or core.nested:
            core.stop(Reason("parent", "the stream ended"))
        else:
            core.settle()
    await backend.reraise(await backend.wait_through(core.is_over, core.waiters))
    error, owner.error = owner.error, None
    if error is None and not owner.stopped_by_user and core.reason is not None:
        error = core.reason.error  # of a task that the generator had spawned
    owner.stopped_by_user = True
    if error is not None and is_cancel(error):
        # Raised as it is, the consumer's task would look cancelled, and a task group would ignore its
        # failure.
        explained = RuntimeError(
            f"stream {owner.name!r}, made at {describe(owner.site)}, was cancelled from inside; "
            "you were not cancelled"
        )
        explained.__cause__ = error
        return explained
    return StopAsyncIteration() if error is None else error


def _method(owner: GeneratorOwner[T], name: str) -> Callable[[Any], Awaitable[T]]:
    """`asend` or `athrow` of the generator; a `TypeError` that says why if it cannot be used."""
    if owner.prefetch:
        raise TypeError(
            f"stream {owner.name!r} is {owner.prefetch} items ahead of its consumer: {name} needs prefetch=0"
        )
    if owner.iterator is None:
        owner.iterator = aiter(owner.source)
    found: Callable[[Any], Awaitable[T]] | None = getattr(owner.iterator, name, None)
    if found is None:
        raise TypeError(
            f"stream {owner.name!r}: a {type(owner.iterator).__name__} has no {name}; only async generators do"
        )
    return found


class _Releasable:
    """Stops the stream in its `__del__`, and knows there whether the garbage collector has called it."""

    def __init__(self) -> None:
        # With a callback, because only such references are cleared before `__del__` in every version of
        # Python.
        self._alive = weakref.ref(self, _ignore)

    def _was_collected(self) -> bool:
        return self._alive() is None


class StreamIterator(_Releasable, Generic[T]):
    """One iteration of a `Stream`. Dropping it stops the stream, unless it is inside an `async with`."""

    def __init__(self, owner: GeneratorOwner[T]) -> None:
        super().__init__()
        self._pump = owner

    def __aiter__(self) -> StreamIterator[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        return ask(self._pump, self)

    async def aclose(self) -> StopReport:
        """Close the stream and wait until it has cleaned up."""
        return await self._pump.close(None, None, None)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._pump.released(self, self._was_collected())


class Stream(Closable, _Releasable, Generic[T]):
    """An async generator in an owner task: what `stream` returns.

    Iterate it with `async for`; close it, from any task, with `async with`, `aclose()` or `close()`. Each
    `async for` has an iterator of its own: exiting it early stops the stream, unless it is inside an
    `async with` on the stream, where the next `async for` goes on.
    """

    def __init__(self, owner: GeneratorOwner[T]) -> None:
        super().__init__()
        self._pump = owner
        self._iterated = False

    def _find_core(self) -> ScopeCore | None:
        return self._pump.core

    def _open_core(self) -> ScopeCore:
        return self._pump.bind()

    def __aiter__(self) -> StreamIterator[T]:
        self._iterated = True
        return StreamIterator(self._pump)

    def __anext__(self) -> Awaitable[T]:
        """The next item, without an iterator of its own: `await anext(stream)`."""
        return ask(self._pump, self)

    @property
    def token(self) -> CancelToken:
        """A token that is cancelled, with the reason, as soon as the stream is being stopped."""
        return self._pump.bind().token

    def asend(self, value: Any) -> Awaitable[T]:
        """Send a value into the generator and get its next item, as `asend` of an async generator."""
        return ask(self._pump, self, partial(_method(self._pump, "asend"), value))

    def athrow(self, error: BaseException | type[BaseException]) -> Awaitable[T]:
        """Raise an error inside the generator and get its next item, as `athrow` of an async generator."""
        return ask(self._pump, self, partial(_method(self._pump, "athrow"), error))

    async def aclose(self) -> StopReport:
        """Close the stream: `close()` under the name that async generators use."""
        return await self.close()

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop the generator, wait until it has cleaned up, and report.

        For a consumer that waits for an item, the iteration ends. Bounded by `deadline` seconds, or its
        `Grace`; what is still running then is named in the report. Errors of the clean-up are in the report,
        not raised. If you are cancelled meanwhile, the clean-up goes on and your cancellation is raised after
        it.
        """
        return await self._pump.close(deadline, grace, reason)

    async def __aenter__(self) -> Stream[T]:
        self._pump.bind()
        self._pump.is_in_block = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        owner = self._pump
        report = await owner.close(None, None, Reason("parent", "its block ended"))
        if owner.core is not None and owner.core.state is not SETTLED:
            log_report(report)
        if error is not None and without_cancels(error) is None:
            owner.attach_failure(error)
            return
        failure = owner.take_failure()
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


def is_closing(stream: Stream[Any]) -> bool:
    """Whether `stream` is being closed, or was."""
    return stream._pump.leaving


def fail_closing(stream: Stream[Any], error: BaseException) -> None:
    """Have the close of `stream` raise `error`, which its clean-up has come to."""
    stream._pump._clean_up_failed(error)


def forget_failure(stream: Stream[Any]) -> None:
    """The error of the clean-up was reported: the end of its block does not raise it."""
    stream._pump.closing_error = None


def check_async_iterable(agen: object) -> None:
    """Raise a `TypeError` that says what to write, if `agen` cannot be iterated with `async for`."""
    if hasattr(type(agen), "__aiter__"):
        return
    what = type(agen).__name__
    if inspect.iscoroutine(agen):
        agen.close()  # or Python warns, besides this error, that it was never awaited
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
