"""Somebody else's async generator, iterated in an owner task.

An async generator runs in whichever task asks it for an item, and is closed in whichever task happens to drop it. One that
holds a task group or a timeout across a `yield` cannot survive that. So one owner task asks it for every item
and closes it; consumers only hand over requests and get items back.

Invariants
- The generator runs only while an item is asked for, unless `prefetch` allows it to run ahead. One hand-over costs two
  task switches and two futures; there is no queue and no timer.
- The owner is a child of a scope of its own, made when the first item is asked for. Closing is closing that scope:
  bounded, repeatable, from several tasks at once, through cancels, reported. Before the first item nothing is
  owned, and nothing has to be closed.
- A generator that waits at its `yield` is closed there (`GeneratorExit`) and not cancelled, so its clean-up can await. One
  that is at work is cancelled, as the consumer's cancel would have done, and then closed.
- Whoever waits for an item when the stream is stopped gets the end of the iteration, after the drain.
- The owner refers to none of the objects that consumers hold. `__aiter__` hands out a fresh iterator, so that after a bare
  `break` nobody holds it and its `__del__` runs before the consumer's next line. There the stop is asked
  for; it cannot be awaited there, and goes on behind.
- `__del__` may also run late: by the collector, which clears weak references before it calls `__del__` (a plain
  release does so after), in another thread, or when the loop is gone. That earns a ResourceWarning.
- Event loops close the generators that they know of when they end, from a task of theirs. Ours are hidden from
  that: they are closed by their owner, which the loop ends too.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from ._backend import Waiter, current_backend
from ._core import SETTLED, ScopeCore
from ._grace import DEFAULT_GRACE, Grace, Rung
from ._own import close_core, is_cancel, raise_unchanged, reason_of_cancel
from ._reason import Reason
from ._scope import Scope, current_core
from ._site import Site, describe, site_of

if TYPE_CHECKING:
    from ._child import Handle
    from ._report import StopReport
    from ._token import CancelToken

T = TypeVar("T")

logger = logging.getLogger("quiesce")


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
    return Stream(Pump(agen, prefetch, parent, label, grace or DEFAULT_GRACE, site))


class Pump(Generic[T]):
    """What the owner task and those who ask it share."""

    def __init__(
        self,
        source: AsyncIterable[T],
        prefetch: int,
        parent: ScopeCore,
        name: str,
        grace: Grace,
        site: Site,
    ) -> None:
        self.source = source
        self.prefetch = prefetch
        self.parent = parent
        self.backend = parent.backend
        self.name = name
        self.grace = grace
        self.site = site
        self.core: ScopeCore | None = None
        self.handle: Handle | None = None
        self.iterator: AsyncIterator[T] | None = None
        self.items: deque[T] = deque()
        self.step: Callable[[], Awaitable[T]] | None = None  # what the consumer asks for
        self.asking = False  # somebody waits for an item
        self.waiter: Waiter | None = None  # of the consumer
        self.nap: Waiter | None = None  # of the owner
        self.at_work = False  # the generator runs
        self.leaving = False
        self.over = False
        self.stopped = False  # by a user of the stream, not from above
        self.in_block = False
        self.unattended = False  # nobody will be told of an error in the clean-up
        self.error: BaseException | None = None  # of the generator, for the consumer
        self.closing_error: BaseException | None = None

    # In the owner task

    async def own(self) -> None:
        """Ask for items on demand, then close: the whole life of the owner."""
        items, prefetch, make_waiter = self.items, self.prefetch, self.backend.make_waiter
        assert self.iterator is not None
        next_item = self.iterator.__anext__
        begin: Callable[..., Awaitable[T]] | None = _unhooked
        try:
            while True:
                while not self.leaving and self.step is None and len(items) >= prefetch:
                    self.nap = make_waiter()
                    await self.nap
                if self.leaving:
                    break
                step, self.step = self.step or next_item, None
                self.at_work = True
                try:
                    if begin is None:
                        items.append(await step())
                    else:
                        first, begin = begin(step), None
                        items.append(await first)
                except StopAsyncIteration:
                    break
                finally:
                    self.at_work = False
                if self.waiter is not None:
                    self.waiter.wake()
        except BaseException as error:
            if self.leaving or self.handle is None or self.handle.asked:
                self._clean_up_failed(error)
            else:
                self.error = error
            raise
        finally:
            self.leaving = True
            try:
                if not isinstance(sys.exc_info()[1], GeneratorExit):  # then the loop is gone
                    await self._close_source()
            finally:
                self.over = True
                if self.waiter is not None:
                    self.waiter.wake()

    async def _close_source(self) -> None:
        try:
            await _aclose(self.iterator)
            if self.source is not self.iterator:
                await _aclose(self.source)
        except BaseException as error:
            self._clean_up_failed(error)
            if isinstance(error, RuntimeError) and "ignored GeneratorExit" in str(error):
                error.add_note(
                    f"stream {self.name!r}, made at {describe(self.site)}: its generator yields while it is being closed"
                )
                await self._close_for_good()
            raise

    async def _close_for_good(self) -> None:
        """It yielded while it was being closed: let it come to its end here, not in the collector's hands."""
        try:
            await _aclose(self.iterator)
        except RuntimeError:
            pass

    def _clean_up_failed(self, error: BaseException) -> None:
        if is_cancel(error) or isinstance(error, GeneratorExit):
            return
        self.closing_error = error
        if self.unattended:
            logger.error(
                "stream %r, made at %s, failed while it was being closed",
                self.name,
                describe(self.site),
                exc_info=error,
            )

    # Starting and stopping

    def bind(self, *, only_to_close: bool = False) -> ScopeCore:
        """The scope of this stream, made on first use."""
        core = self.core
        if core is None:
            if not self.backend.is_current():
                raise RuntimeError(
                    f"stream {self.name!r}, made at {describe(self.site)}, belongs to another event loop: use it there"
                )
            late = self.parent.closed
            if late and not only_to_close:
                raise self.parent.refusal(f"start stream {self.name!r} in")
            self.core = core = self.backend.make_core(
                name=self.name, site=self.site, grace=self.grace, parent=self.parent, late=late
            )
        return core

    def _start(self) -> None:
        core = self.bind()
        if core.closed:
            raise core.refusal(f"start stream {self.name!r} in")
        if self.iterator is None:
            self.iterator = aiter(self.source)
        self.handle = handle = self.backend.make_handle(core, self.name, self.site)
        handle.on_stop = self._on_stop
        core.children[handle] = None
        core.start(handle, self.own, ())

    def _on_stop(self, rung: Rung) -> bool:
        if rung is not Rung.CANCEL:
            return False
        if not self.stopped and not self.over and self._is_forgotten():
            self.unattended = True
            _Complaint(
                f"stream {self.name!r}, made at {describe(self.site)}, was still open when scope "
                f"{self.parent.label!r} ended: it is being closed. Close it, or use `async with stream(...)`"
            )
        if self.waiter is not None:
            self.waiter.wake()
        return self._leave()

    def _leave(self) -> bool:
        """Ask the owner to leave; False if the generator is at work and must be cancelled for that."""
        self.leaving = True
        self.items.clear()
        if self.nap is not None:
            self.nap.wake()
        return not self.at_work

    def _is_forgotten(self) -> bool:
        """Stopped from above, where nobody is left who could have closed it."""
        parent: ScopeCore | None = self.parent
        if self.in_block or parent is None or not parent.closed or parent.children:
            return False
        while parent is not None:
            if parent.host is not None and parent.host.requested:
                return False  # the body around it is on its way out
            parent = parent.parent
        return True

    def abandon(self, why: str) -> None:
        """Stop at once, though nobody will wait."""
        core = self.core
        if core is None or core.closed:
            return
        self.stopped = self.unattended = True
        core.abandon(Reason("user", why))
        if not self.at_work:
            self._leave()  # without waiting for the rung: there is nobody to cooperate with

    async def close(
        self, deadline: float | None, grace: Grace | None, reason: Reason | str | None
    ) -> StopReport:
        """Stop, wait until the generator has cleaned up, and report."""
        core = self.bind(only_to_close=True)
        self.stopped = True
        self.unattended = False
        self.items.clear()
        if self.handle is None and not core.closed:
            self.leaving = True
            self._start()  # only to close the source
        return await close_core(core, deadline, grace, reason)

    # Asking

    async def ask(self, holder: object, step: Callable[[], Awaitable[T]] | None = None) -> T:
        """One item. `holder`, the iterator, must not be released while it is being asked for."""
        core = self.core
        if self.asking:
            raise RuntimeError(
                f"stream {self.name!r}, made at {describe(self.site)}: another task is waiting for its next "
                "item; one task at a time can ask"
            )
        if core is not None and (core.closed or self.over) and not self.items:
            await self._end(core)
        self.asking = True
        try:
            if self.prefetch == 0:
                self.step = step or self.next_item
            if core is None or self.handle is None:
                self._start()
            if not self.items:
                if self.nap is not None:
                    self.nap.wake()
                self.waiter = waiter = self.backend.make_waiter()
                try:
                    await waiter
                except BaseException as mine:
                    await self._cancelled(mine)
                    raise
        finally:
            self.asking = False
            self.waiter = None
        if self.items:
            item = self.items.popleft()
            if self.prefetch and self.nap is not None:
                self.nap.wake()
            return item
        assert self.core is not None
        return await self._end(self.core)

    def next_item(self) -> Awaitable[T]:
        """The plain request."""
        assert self.iterator is not None
        return self.iterator.__anext__()

    async def _cancelled(self, mine: BaseException) -> None:
        """The consumer was cancelled while it waited: drain, and let it have its cancel."""
        assert self.core is not None
        if isinstance(mine, GeneratorExit):  # its coroutine is being thrown away; it cannot wait
            self.abandon("the consumer is gone")
            return
        core = self.core
        self.stopped = True
        core.stop(reason_of_cancel(core, mine))
        if not self.at_work:
            self._leave()
        await self.backend.wait_through(core.is_over, core.waiters)
        if self.closing_error is not None:
            mine.__cause__ = self.closing_error

    async def _end(self, core: ScopeCore) -> NoReturn:
        """Nothing more comes: an error that nobody has seen yet, or the end of the iteration."""
        if not core.closed:
            if core.children or core.nested:
                core.stop(Reason("parent", "the stream came to its end"))
            else:
                core.settle()
        await self.backend.reraise(await self.backend.wait_through(core.is_over, core.waiters))
        error = self.error
        if error is None and not self.stopped and core.reason is not None:
            error = core.reason.error  # of a task that the generator had spawned
        self.error = None
        self.stopped = True
        if error is not None and is_cancel(error):
            raise RuntimeError(
                f"stream {self.name!r}, made at {describe(self.site)}, was cancelled from inside; "
                "nobody has cancelled you"
            ) from error
        if error is not None:
            raise_unchanged(error)
        raise StopAsyncIteration

    def method(self, name: str) -> Callable[[Any], Awaitable[T]]:
        """`asend` or `athrow` of the generator, or a clear refusal."""
        if self.prefetch:
            raise TypeError(
                f"stream {self.name!r} is {self.prefetch} items ahead of its consumer: {name} needs prefetch=0"
            )
        if self.iterator is None:
            self.iterator = aiter(self.source)
        found: Callable[[Any], Awaitable[T]] | None = getattr(self.iterator, name, None)
        if found is None:
            raise TypeError(
                f"stream {self.name!r}: a {type(self.iterator).__name__} has no {name}; "
                "only async generators do"
            )
        return found

    # Dropping

    def released(self, user: object, by_collector: bool) -> None:
        """The last reference that could have asked for an item is gone."""
        core = self.core
        if core is None or core.closed or self.in_block:
            return
        late = "by the garbage collector" if by_collector else ""
        if not self.backend.is_current():
            late = "outside its event loop"
        self.backend.run_from_anywhere(partial(self.abandon, "the iteration was left"))
        if late and not self.over:
            warnings.warn(
                f"stream {self.name!r}, made at {describe(self.site)}, was released late, {late}: it is being "
                "closed. Close it, or use `async with stream(...)`",
                ResourceWarning,
                source=user,
                stacklevel=2,
            )


class _Releasable:
    """Something whose release stops the stream, and that knows whether the collector released it."""

    def __init__(self) -> None:
        # With a callback: only those are cleared before `__del__` in every version of Python.
        self._alive = weakref.ref(self, _ignore)

    def _was_collected(self) -> bool:
        return self._alive() is None


class StreamIterator(_Releasable, Generic[T]):
    """One iteration of a `Stream`; releasing it stops the stream, unless an `async with` is around it."""

    def __init__(self, pump: Pump[T]) -> None:
        super().__init__()
        self._pump = pump

    def __aiter__(self) -> StreamIterator[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        return self._pump.ask(self)

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

    def __init__(self, pump: Pump[T]) -> None:
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

    async def asend(self, value: Any) -> T:
        """Send a value into the generator, and get its next item; as an async generator's own."""
        return await self._pump.ask(self, partial(self._pump.method("asend"), value))

    async def athrow(self, error: BaseException | type[BaseException]) -> T:
        """Raise an error inside the generator, and get its next item; as an async generator's own."""
        return await self._pump.ask(self, partial(self._pump.method("athrow"), error))

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
            logger.warning("%s", report)
        if pump.closing_error is not None:
            failed, pump.closing_error = pump.closing_error, None
            raise_unchanged(failed, error)

    def __del__(self) -> None:
        if not self._iterated and not sys.is_finalizing():
            self._pump.released(self, self._was_collected())

    def __repr__(self) -> str:
        core = self._pump.core
        return f"<Stream {self._pump.name!r} {core.state if core is not None else 'new'}>"


class _Complaint:
    """A warning from the middle of a stop.

    Where warnings are errors, one raised there would break the stop in half; raised in a `__del__` it is told all the
    same, and goes no further.
    """

    def __init__(self, message: str) -> None:
        self._message = message

    def __del__(self) -> None:
        warnings.warn(self._message, ResourceWarning, stacklevel=2)


def _ignore(reference: object) -> None:
    pass


def _unhooked(step: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """The first request to a generator, which is when event loops would get to know it."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return step()
    finally:
        sys.set_asyncgen_hooks(*hooks)


async def _aclose(thing: object) -> None:
    aclose = getattr(thing, "aclose", None)
    if aclose is not None:
        await aclose()


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
