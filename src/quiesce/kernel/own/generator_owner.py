"""The owner task of an async generator.

An async generator runs in whichever task asks it for an item, and is closed in whichever task happens to drop
it. If it holds a task group or a timeout across a `yield`, that breaks it. So one owner task asks it for
every item and closes it; consumers only pass requests to the owner and get items back.

Invariants
- The generator runs only while an item is requested, unless `prefetch` allows it to run ahead. Each item
  costs two task switches and two futures; there is no queue and no timer.
- The owner is a child of a scope of its own, and is started for the first item. Closing the stream means
  closing that scope: bounded, repeatable, from several tasks at once, through cancels, reported. Before the
  first item nothing is owned.
- A generator that is suspended at a `yield` is closed there (`GeneratorExit`) and not cancelled, so that its
  clean-up can await. One that is running is cancelled, as the consumer's cancel would have done without an
  owner, and then closed.
- If the owner is cancelled while the generator is suspended at a `yield`, and no stop was requested, that
  cancel comes from inside (a timeout around the yield, a crash in a task group around it). It is raised at
  the yield.
- A consumer that waits for an item when the stream is stopped gets the end of the iteration, after the
  clean-up.
- An error is reported exactly once: to the consumer if the generator raised it while it was running, else to
  the closer; to the log if there is neither.
- Processes that the generator has started end with it, with their trees: see `owner_processes`.
- The owner refers to none of the objects that consumers hold, so that it is noticed when those are dropped.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from quiesce._safe.printed import logger
from quiesce.kernel.base import Grace, Reason, Rung, Site, describe, hide_frame, is_cancel, without_cancels
from quiesce.kernel.contain import OwnerProcesses
from quiesce.kernel.scope import ChildCancelled, close_core

if TYPE_CHECKING:
    from quiesce.kernel.base import StopReport, Waiter
    from quiesce.kernel.scope import Handle, ScopeCore

T = TypeVar("T")


class GeneratorOwner(Generic[T]):
    """The state that the owner task shares with the tasks that use the stream."""

    def __init__(
        self,
        source: AsyncIterable[T],
        prefetch: int,
        parent: ScopeCore,
        name: str,
        grace: Grace | None,
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
        self.processes: OwnerProcesses | None = None
        self.iterator: AsyncIterator[T] | None = None
        self.items: deque[T] = deque()
        # How the consumer asks for the next item: `__anext__`, `asend` or `athrow`.
        self.request: Callable[[], Awaitable[T]] | None = None
        self.is_being_asked = False  # a consumer waits for an item
        self.consumer_waiter: Waiter | None = None
        self.owner_waiter: Waiter | None = None
        self.is_running = False  # the generator is, and not suspended at a yield
        self.has_started = False  # the owner task has
        self.leaving = False
        self.has_ended = False
        self.stopped_by_user = False  # of the stream, and not by the scope that owns it
        self.is_in_block = False
        self.is_unattended = False  # no closer will see an error of the clean-up, so it is logged
        self.error: BaseException | None = None  # of the generator, for the consumer
        self.closing_error: BaseException | None = None  # of its clean-up, for the closer

    # In the owner task

    async def own(self) -> None:
        """Get items on request, then close the generator: the whole life of the owner."""
        items, prefetch, make_waiter = self.items, self.prefetch, self.backend.make_waiter
        assert self.iterator is not None
        self.has_started = True
        next_item = self.iterator.__anext__
        try:
            while True:
                try:
                    while not self.leaving and self.request is None and len(items) >= prefetch:
                        self.owner_waiter = make_waiter()
                        await self.owner_waiter
                except BaseException as cancelled:
                    step = self._throw_at_yield(cancelled)
                else:
                    if self.leaving:
                        break
                    step, self.request = self.request or next_item, None
                self.is_running = True
                try:
                    item = await step()
                except StopAsyncIteration:
                    break
                finally:
                    self.is_running = False
                if self.leaving:  # it was cancelled, and yielded anyway
                    break
                items.append(item)
                if self.consumer_waiter is not None:
                    self.consumer_waiter.wake()
        except BaseException as error:
            hide_frame(error, GeneratorOwner.own.__code__)
            if self.leaving or self.handle is None or self.handle._asked:
                self._clean_up_failed(error)
            else:
                self.error = error
            raise
        finally:
            self.leaving = True
            try:
                # A GeneratorExit here is the owner's own: the garbage collector closes it because the loop
                # has ended, and nothing can be awaited any more.
                if not isinstance(sys.exc_info()[1], GeneratorExit):
                    await self._close_source()
            finally:
                if self.processes is not None:
                    self.processes.tell_to_go()
                if self.handle is not None:
                    self.handle._on_stop = None

    def _owner_ended(self) -> None:
        """Called when the owner task has ended: wake the consumer."""
        # On asyncio another cancel may have ended the task before its first step, and `own` never ran. The
        # source has not been closed then; without a handle, closing starts another owner for it.
        if not (self.has_started or self.leaving) and self.handle is not None:
            self.error = ChildCancelled(self.name, self.handle.reason)
            self.handle = None
        self.has_ended = True
        if self.consumer_waiter is not None:
            self.consumer_waiter.wake()

    def _throw_at_yield(self, cancelled: BaseException) -> Callable[[], Awaitable[T]]:
        """A request that raises the owner's cancellation at the yield. Raises it here if that cannot be."""
        # A timeout around the yield has expired, or a child in a task group around it has crashed. Both wait
        # for their cancellation inside the generator, where a consumer without an owner would have it too.
        athrow = getattr(self.iterator, "athrow", None)
        if self.leaving or athrow is None or not is_cancel(cancelled):
            raise cancelled
        return partial(athrow, cancelled)

    async def _close_source(self) -> None:
        try:
            try:
                await _aclose(self.iterator)
            finally:
                if self.source is not self.iterator:
                    await _aclose(self.source)
        except BaseException as error:
            failure = _without_our_exit(error)
            if failure is None:
                return
            self._clean_up_failed(failure)
            if isinstance(error, RuntimeError) and "ignored GeneratorExit" in str(error):
                error.add_note(
                    f"stream {self.name!r}, made at {describe(self.site)}: "
                    "its generator yields while it is being closed"
                )
                await self._close_for_good()
            if failure is error:
                raise
            raise failure from None

    async def _close_for_good(self) -> None:
        """Resume a generator that yielded while it was closed, so that it does not end in the collector."""
        assert self.iterator is not None
        try:
            await self.iterator.__anext__()
        except (Exception, GeneratorExit):
            pass

    def _clean_up_failed(self, error: BaseException) -> None:
        if is_cancel(error) or isinstance(error, GeneratorExit):
            return
        self.closing_error = error
        if self.is_unattended:
            logger.error(
                "stream %r, made at %s, failed while it was being closed",
                self.name,
                describe(self.site),
                exc_info=error,
            )

    # Starting and stopping

    def bind(self) -> ScopeCore:
        """The scope of this stream, made on first use."""
        core = self.core
        if core is None:
            if not self.backend.is_current():
                raise RuntimeError(
                    f"stream {self.name!r}, made at {describe(self.site)}, "
                    "belongs to another event loop: use it there"
                )
            self.core = core = self.backend.make_core(
                name=self.name,
                site=self.site,
                grace=self.grace,
                parent=self.parent,
                # Even in a parent that is stopping: a stream that was made before can still be closed.
                shielded=self.parent.closed and not self.parent.takes_clean_up(),
            )
        return core

    def start(self) -> None:
        """Start the owner. With eager tasks there may be an item, or the end, when this returns."""
        if not self.leaving:
            # Before `bind`: a scope that is refused here must not exist, or the parent's stop would wait for
            # it.
            self.parent.check_takes(f"start stream {self.name!r} in")
        core = self.bind()
        if self.iterator is None:
            self.iterator = aiter(self.source)
        self.handle = handle = self.backend.make_handle(core, self.name, self.site)
        handle._on_stop = self._on_stop
        handle._on_end(self._owner_ended)
        core.add(handle)
        if self.processes is None:
            self.processes = OwnerProcesses.begin(core)
        core.start(handle, self.own, ())

    def _on_stop(self, rung: Rung) -> bool:
        if rung is not Rung.CANCEL:
            if self.processes is not None:
                self.processes.tell_to_go()
            return False
        if self.processes is not None:
            self.processes.look()
        # Only a stop that comes from the owner's scope can find a stream that was forgotten: with a `close()`
        # or an early exit, its user has dealt with it.
        if not self.stopped_by_user and not self.has_ended and self._is_forgotten():
            self.is_unattended = True
            _WarningAtDel(
                f"stream {self.name!r}, made at {describe(self.site)}, was still open when scope "
                f"{self.parent.label!r} ended: it is being closed. Close it, or use `async with stream(...)`"
            )
        if self.consumer_waiter is not None:
            self.consumer_waiter.wake()
        return self.leave()

    def leave(self) -> bool:
        """Tell the owner to leave. False if the generator is running, and has to be cancelled for that."""
        self.leaving = True
        self.items.clear()
        if self.owner_waiter is not None:
            self.owner_waiter.wake()
        return not self.is_running

    def _is_forgotten(self) -> bool:
        """Whether its owner's stop ends it after everything that could have closed it has ended."""
        parent: ScopeCore | None = self.parent
        if self.is_in_block or parent is None or not parent.closed or parent.children:
            return False
        while parent is not None:
            if parent.host is not None and parent.host.requested:
                return False  # the body around it was cancelled, and may still be about to close it
            parent = parent.parent
        return True

    def abandon(self, why: str) -> None:
        """Stop at once, with no one to wait for it."""
        core = self.core
        if core is None or core.closed:
            return
        self.stopped_by_user = self.is_unattended = True
        # If the consumer drops the stream because it is being stopped itself, that is the reason.
        above = core._above()
        reason = (above.reason if above is not None else None) or Reason("user", why)
        core.stop(reason)
        if self.processes is not None:
            self.processes.tell_to_go()
        core.abandon(reason)
        if not self.is_running:
            self.leave()  # at once, even if the grace has time to cooperate: no consumer is left to do that

    def next_item(self) -> Awaitable[T]:
        """The request of a plain `async for`."""
        assert self.iterator is not None
        return self.iterator.__anext__()

    async def close(
        self, deadline: float | None, grace: Grace | None, reason: Reason | str | None
    ) -> StopReport:
        """Stop, wait until the generator has cleaned up, and report."""
        core = self.bind()
        self.stopped_by_user = True
        self.is_unattended = False
        self.items.clear()
        if self.handle is None and not core.closed:
            self.leaving = True
            self.start()  # only to close the source, in an owner task as always
        try:
            return await close_core(core, deadline, grace, reason)
        except BaseException as mine:
            if is_cancel(mine):
                self.attach_failure(mine)
            raise

    # How it ended

    @property
    def is_at_its_end(self) -> bool:
        """Whether there will be no more items."""
        return self.has_ended or (self.core is not None and self.core.closed)

    def attach_failure(self, cancelled: BaseException) -> None:
        """Make an unreported error the cause of the caller's cancellation, which takes precedence."""
        failure = self.take_failure()
        if failure is not None:
            cancelled.__cause__ = failure

    def take_failure(self) -> BaseException | None:
        """An error that was not reported yet. From now on it counts as reported."""
        failure = self.closing_error if self.error is None else self.error
        self.error = self.closing_error = None
        return failure

    # Dropping

    def released(self, user: object, by_collector: bool) -> None:
        """`user`, the last object that could have asked for an item, was dropped: stop the stream."""
        core = self.core
        if self.error is not None and not self.stopped_by_user:
            logger.error(
                "stream %r, made at %s, failed, and its error was never retrieved",
                self.name,
                describe(self.site),
                exc_info=self.error,
            )
        if core is None or core.closed or self.is_in_block:
            return
        late = "by the garbage collector" if by_collector else ""
        if not self.backend.is_current():
            late = "outside its event loop"
        self.backend.run_from_anywhere(partial(self.abandon, "the iteration was left"))
        if late and not self.has_ended:
            warnings.warn(
                f"stream {self.name!r}, made at {describe(self.site)}, was released late, {late}: it is being "
                "closed. Close it, or use `async with stream(...)`",
                ResourceWarning,
                source=user,
                stacklevel=2,
            )


class _WarningAtDel:
    """A `ResourceWarning` from the middle of a stop, issued in `__del__`.

    Where warnings are errors, the exception would end the stop halfway. From a `__del__` Python reports it as
    unraisable, and the stop goes on.
    """

    def __init__(self, message: str) -> None:
        self._message = message

    def __del__(self) -> None:
        warnings.warn(self._message, ResourceWarning, stacklevel=2)


async def _aclose(thing: object) -> None:
    aclose = getattr(thing, "aclose", None)
    if aclose is not None:
        await aclose()


def _without_our_exit(error: BaseException) -> BaseException | None:
    """`error` without the GeneratorExit of our own `aclose()`, which a task group returns inside a group."""
    if isinstance(error, BaseExceptionGroup):
        group: BaseExceptionGroup[BaseException] = error
        others = group.split(GeneratorExit)[1]
        return without_cancels(others) if others is not None else None
    return error
