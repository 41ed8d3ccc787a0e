"""A containment without a block: for work that a plain function starts, and that any task may stop.

A function that is not async and starts tasks (a streamed run of an SDK) cannot be called in an `async with`,
which has to be entered first. So the scopes are made at once, in `__init__`: what `run` starts belongs to
them. The block itself is entered a moment later, by an owner task, in its first step, and exited by it.

- The owner waits in the block until the containment is stopped: by `close`, by `cancel`, or by the scope that
  owns it.
- The work comes first, if it can stop itself: `stop_work` stops it in its own way, and returns the tasks that
  pass this on to others. Those have the time for clean-up before anything else is cancelled. Otherwise a task
  deep inside would be cancelled twice, by us and by the one that runs it.
- It is never cancelled before its first step: then nothing would stop what was started. If the event loop
  ends before that, the loop itself cancels all tasks.
- It lives in a scope of its own (`keeper`), nested in the owning one: as what `own` holds, the containment is
  closed when the block of that ends, after its children. It is not a child of the containment itself, which
  could not end before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from quiesce.kernel.base import OPEN, Grace, Reason, Rung, Site, WaitQueue
from quiesce.kernel.calls import owner_of
from quiesce.kernel.scope import Cancellable, ScopeCore, current_backend, current_node, when_ended

from .ancestry import descends, never_foreign
from .containment import contain

if TYPE_CHECKING:
    from quiesce.kernel.base import StopReport
    from quiesce.kernel.scope import Scope

P = ParamSpec("P")
T = TypeVar("T")


class OpenContainment(Cancellable):
    """What `run` starts, at any depth, ends with `close()`, from any task; see `contain` for the arguments."""

    __slots__ = ("_box", "_handle", "_has_entered", "_keeper", "_leave_queue", "_stop_work")

    def __init__(
        self,
        name: str,
        site: Site,
        *,
        keep: Callable[[asyncio.Task[Any]], bool] | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        backend = current_backend()
        owner = owner_of(backend, scope)
        self._has_entered = False
        self._stop_work: Callable[[], Collection[asyncio.Task[Any]]] | None = None
        self._leave_queue = WaitQueue()
        self._box = contain(keep=keep, grace=grace, scope=scope, name=name)
        self._box._begin(site)
        self._keeper = keeper = backend.make_core(name=name, site=site, grace=grace, parent=owner)
        self._handle = handle = backend.make_handle(keeper, name, site)
        handle._on_stop = self._on_stop
        keeper.add(handle)
        keeper.start(handle, self._hold, ())
        when_ended(handle, self._settle)

    def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn(*args)`, in a copy of the caller's context: what it starts belongs to the containment."""
        return self.context().run(fn, *args, **kwargs)

    def is_inside(self) -> bool:
        """Whether the caller belongs to the containment, and so cannot wait for its end."""
        return descends(current_node.get(), self._box._inner, never_foreign)

    @property
    def has_ended(self) -> bool:
        """Whether nothing will stop what is started in it from now on."""
        return self._handle.done

    def context(self) -> Context:
        """A copy of the caller's context: what is started in it belongs to the containment."""
        context = copy_context()
        context.run(current_node.set, self._box._inner)
        return context

    def run_in_loop(self, fn: Callable[[], object]) -> None:
        """Call `fn()` in the thread of the event loop: at once if this is it, and not if the loop has ended."""
        self._find_core().backend.run_from_anywhere(fn)

    def stop_with(self, stop_work: Callable[[], Collection[asyncio.Task[Any]]]) -> None:
        """Have a stop begin with `stop_work()`, and wait for the tasks that it returns."""
        self._stop_work = stop_work

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop it, wait until everything in it has ended, and report; from inside it, only stop it."""
        if self.is_inside():
            self.cancel(reason, grace=grace)
            return self._find_core().report()
        report = await super().close(deadline=deadline, grace=grace, reason=reason)
        return self.report or report

    @property
    def grace(self) -> Grace:
        """The deadlines of its stop."""
        return self._find_core().grace

    @property
    def report(self) -> StopReport | None:
        """What the end of the containment, or its last `close()`, has reported; None before."""
        return self._box.report if self._box.report is not None else super().report

    def _find_core(self) -> ScopeCore:
        return self._box._scope

    # The owner task

    async def _hold(self) -> None:
        async with self._box:
            self._has_entered = True
            try:
                await self._leave_queue.wait_until(lambda: self._find_core().closed)
            finally:
                stop_work, self._stop_work = self._stop_work, None
                if stop_work is not None:
                    await self._give_time(stop_work())

    async def _give_time(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Wait for `tasks`, until the time for clean-up is over."""
        core = self._find_core()
        backend = core.backend
        limit = (
            backend.now() + core.grace.cancel
        )  # for the end of the event loop, which begins no stop of ours

        def is_time_over() -> bool:
            return backend.now() >= limit if core.state is OPEN else core.rung > Rung.CANCEL

        for task in tasks:
            task.add_done_callback(lambda _: core.wake())
        timer = backend.call_at(limit, core.wake)
        try:
            await core.waiters.wait_until(lambda: all(task.done() for task in tasks) or is_time_over())
        finally:
            timer.cancel()

    def _on_stop(self, rung: Rung) -> bool:
        """Stop the containment instead of cancelling the owner: see `Handle._on_stop`."""
        core = self._find_core()
        core.stop(self._handle.reason or Reason("parent"), hurry=rung > Rung.CANCEL)
        self._leave_queue.wake_all()  # the block does not cancel an owner that its own scope is stopping
        return True

    def _settle(self) -> None:
        self._handle._on_stop = None
        self._keeper.stop(Reason("parent", "the containment ended"))
        if not self._has_entered and self._find_core().state is OPEN:
            self._box._abandon()
