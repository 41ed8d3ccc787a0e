"""The owner task of somebody else's async generator.

An async generator runs in whichever task asks it for an item, and is closed in whichever task happens to drop it. One
that holds a task group or a timeout across a `yield` cannot survive that. So one owner task asks it for every item
and closes it; consumers only hand over requests and get items back.

Invariants
- The generator runs only while an item is asked for, unless `prefetch` allows it to run ahead. A hand-over costs two
  task switches and two futures; there is no queue and no timer.
- The owner is a child of a scope of its own, and is started for the first item. Closing is closing that scope: bounded,
  repeatable, from several tasks at once, through cancels, reported. Before the first item nothing is owned.
- A generator that stands at its `yield` is closed there (`GeneratorExit`) and not cancelled, so its clean-up can await.
  One that is at work is cancelled, as the consumer's cancel would have done, and then closed.
- What cancels the owner while the generator stands at its `yield`, though nobody has asked for a stop, comes from
  inside (a timeout around the yield, a crash in a task group around it) and is raised there, at the yield.
- Whoever waits for an item when the stream is stopped gets the end of the iteration, after the drain.
- An error is told exactly once: to the consumer if the generator raised it at work, else to whoever closes; to the log if
  there is neither.
- Processes that the generator has started end with it, with their trees: see `owner_processes`.
- The owner refers to none of the objects that consumers hold, so that releasing those is noticed.
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
    """What the owner task and those who ask it share."""

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
        self.step: Callable[[], Awaitable[T]] | None = None  # what the consumer asks for
        self.asking = False  # somebody waits for an item
        self.waiter: Waiter | None = None  # of the consumer
        self.nap: Waiter | None = None  # of the owner
        self.at_work = False  # the generator runs
        self.begun = False
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
        self.begun = True
        next_item = self.iterator.__anext__
        try:
            while True:
                try:
                    while not self.leaving and self.step is None and len(items) >= prefetch:
                        self.nap = make_waiter()
                        await self.nap
                except BaseException as cut:
                    step = self._cut_short(cut)
                else:
                    if self.leaving:
                        break
                    step, self.step = self.step or next_item, None
                self.at_work = True
                try:
                    item = await step()
                except StopAsyncIteration:
                    break
                finally:
                    self.at_work = False
                if self.leaving:  # it was cancelled, and yielded all the same
                    break
                items.append(item)
                if self.waiter is not None:
                    self.waiter.wake()
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
                if not isinstance(sys.exc_info()[1], GeneratorExit):  # then the loop is gone
                    await self._close_source()
            finally:
                if self.processes is not None:
                    self.processes.tell_to_go()
                if self.handle is not None:
                    self.handle._on_stop = None

    def wake(self) -> None:
        """The owner has ended: it wakes whoever waits for it, and that is us.

        On asyncio somebody else's cancel may have ended it before its first step. Then the source is still to be closed.
        """
        if not (self.begun or self.leaving) and self.handle is not None:
            self.error = ChildCancelled(self.name, self.handle.reason)
            self.handle = None
        self.over = True
        if self.waiter is not None:
            self.waiter.wake()

    def _cut_short(self, cut: BaseException) -> Callable[[], Awaitable[T]]:
        """The owner was cancelled while the generator stood at its yield: that is where it belongs.

        A timeout around the yield has passed, or a task group around it has a crash to tell of.
        """
        athrow = getattr(self.iterator, "athrow", None)
        if self.leaving or athrow is None or not is_cancel(cut):
            raise cut
        return partial(athrow, cut)

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
                    f"stream {self.name!r}, made at {describe(self.site)}: its generator yields while it is being closed"
                )
                await self._close_for_good()
            if failure is error:
                raise
            raise failure from None

    async def _close_for_good(self) -> None:
        """It yielded while it was being closed: let it come to its end here, not in the collector's hands."""
        assert self.iterator is not None
        try:
            await self.iterator.__anext__()
        except (Exception, GeneratorExit):
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

    def bind(self) -> ScopeCore:
        """The scope of this stream, made on first use."""
        core = self.core
        if core is None:
            if not self.backend.is_current():
                raise RuntimeError(
                    f"stream {self.name!r}, made at {describe(self.site)}, belongs to another event loop: use it there"
                )
            self.core = core = self.backend.make_core(
                name=self.name,
                site=self.site,
                grace=self.grace,
                parent=self.parent,
                late=self.parent.closed and not self.parent.takes_clean_up(),  # it can still be closed
            )
        return core

    def start(self) -> None:
        """Start the owner. With eager tasks there may be an item, or the end, when this returns."""
        if not self.leaving:  # before there is a scope for the stop to wait for
            self.parent.check_takes(f"start stream {self.name!r} in")
        core = self.bind()
        if self.iterator is None:
            self.iterator = aiter(self.source)
        self.handle = handle = self.backend.make_handle(core, self.name, self.site)
        handle._on_stop = self._on_stop
        handle._on_end(self.wake)
        core.children[handle] = None
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
        if not self.stopped and not self.over and self._is_forgotten():
            self.unattended = True
            _Complaint(
                f"stream {self.name!r}, made at {describe(self.site)}, was still open when scope "
                f"{self.parent.label!r} ended: it is being closed. Close it, or use `async with stream(...)`"
            )
        if self.waiter is not None:
            self.waiter.wake()
        return self.leave()

    def leave(self) -> bool:
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
        above = core._above()  # a consumer that was itself stopped lets go of it for that reason
        reason = (above.reason if above is not None else None) or Reason("user", why)
        core.stop(reason)
        if self.processes is not None:
            self.processes.tell_to_go()
        core.abandon(reason)
        if not self.at_work:
            self.leave()  # without waiting for the rung: there is nobody to cooperate with

    def next_item(self) -> Awaitable[T]:
        """The plain request."""
        assert self.iterator is not None
        return self.iterator.__anext__()

    async def close(
        self, deadline: float | None, grace: Grace | None, reason: Reason | str | None
    ) -> StopReport:
        """Stop, wait until the generator has cleaned up, and report."""
        core = self.bind()
        self.stopped = True
        self.unattended = False
        self.items.clear()
        if self.handle is None and not core.closed:
            self.leaving = True
            self.start()  # only to close the source
        try:
            return await close_core(core, deadline, grace, reason)
        except BaseException as mine:
            if is_cancel(mine):
                self.attach_failure(mine)
            raise

    # How it ended

    @property
    def is_at_its_end(self) -> bool:
        """Whether no item will be made any more."""
        return self.over or (self.core is not None and self.core.closed)

    def attach_failure(self, cancelled: BaseException) -> None:
        """Somebody's cancellation goes first; let it carry an error that nobody has seen yet."""
        failure = self.take_failure()
        if failure is not None:
            cancelled.__cause__ = failure

    def take_failure(self) -> BaseException | None:
        """An error that nobody has seen yet."""
        failure = self.closing_error if self.error is None else self.error
        self.error = self.closing_error = None
        return failure

    # Dropping

    def released(self, user: object, by_collector: bool) -> None:
        """The last reference that could have asked for an item is gone."""
        core = self.core
        if self.error is not None and not self.stopped:
            logger.error(
                "stream %r, made at %s, failed, and nobody has looked",
                self.name,
                describe(self.site),
                exc_info=self.error,
            )
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


class _Complaint:
    """A warning from the middle of a stop.

    Where warnings are errors, one raised there would break the stop in half; raised in a `__del__` it is told all the
    same, and goes no further.
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
    """What remains if the GeneratorExit of our own closing comes back in a group, as task groups do with it."""
    if isinstance(error, BaseExceptionGroup):
        group: BaseExceptionGroup[BaseException] = error
        rest = group.split(GeneratorExit)[1]
        return without_cancels(rest) if rest is not None else None
    return error
