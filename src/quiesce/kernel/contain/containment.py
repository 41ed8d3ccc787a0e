"""Containment: at the end of a block, the tasks that other people's code started inside it.

Two scopes, one in the other. The inner one is in the context of the body, so that what is opened in the block
hangs below it, and tasks of others can be told by it. The outer one belongs to the owner. From the
beginning it has one child, the block itself (`_Block`): whoever stops the owner stops the body by it, and waits
until the block has been left. At the end of the block the tasks that are found become its children too, and
from there on the ladder, the waiting and the report are those of every scope.

- Each task is cancelled once, by us or by another task that hands its own cancel on (see `await_graph`), and
  once more when its time is over.
- When those that were found are gone, there may be new ones: it is over when a look finds none. Only then
  what was opened in the block is stopped: they may have been using it.
- Tasks of the kernel's own belong to their scopes, and those in a containment further in to that one, as
  long as its block lasts. Those that a predicate keeps are not touched; a containment further out will
  find them, and also whatever could not be ended here.
- A cancel of the body's task that code inside has swallowed is still counted by the task
  (`Task.cancelling`): it is raised again at the end.
- Processes and threads that were started inside come after the tasks: see `threads_and_processes`.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast
from weakref import WeakSet

from quiesce._safe.printed import logger
from quiesce.kernel.base import EXPIRED, Grace, Reason, Rung, Site, site_of, stuck_at
from quiesce.kernel.calls import owner_of
from quiesce.kernel.loops import AsyncioBlockTask, AsyncioHandle
from quiesce.kernel.scope import RUNNING, Child, Node, ScopeCore, current_backend, is_trouble, log_report

from .adopted_task import AdoptedTask, TaskStarts, adopter_of, is_kernels_own, node_of
from .ancestry import descends, is_nobodys, open_blocks
from .await_graph import AwaitGraph, Task
from .block_processes import CHOICES, Choice
from .threads_and_processes import ThreadsAndProcesses

if TYPE_CHECKING:
    from quiesce.kernel.base import StopReport
    from quiesce.kernel.scope import Scope


def contain(
    *,
    keep: Callable[[asyncio.Task[Any]], bool] | None = None,
    processes: Literal["known", "all", "none"] = "known",
    grace: Grace | None = None,
    scope: Scope | None = None,
    name: str | None = None,
) -> Containment:
    """A block that no task outlives, whoever started it, nor a process; for asyncio.

    ```python
    async with contain() as box:
        await some_library.do_things()      # leaves its background tasks behind
    print(box.report)                       # they have been cancelled and have cleaned up
    ```

    At the end of the block, every task that was started inside it, at any depth, is cancelled once and has its
    `grace` (the owner's, unless given) to clean up; what is left after that is in `box.report`, and stays owned
    by `scope` (the current scope, unless given). `keep(task)` says True for tasks to leave alone. If code inside
    has swallowed a cancellation of the task at hand, it is raised at the end of the block.

    A process that was started inside it, and is still there when the tasks are gone, is ended with its whole tree. A
    thread that works for the block is waited for until the time for clean-up is over, and then named. `processes` says
    which ones are ended: `"known"`, those that are known to be the block's (others that may be are named in the
    report); `"all"`, also those of which nobody can say who started them; `"none"`, none: they are not looked for.

    A task belongs to the block if its context descends from it. That misses tasks made with a context from
    elsewhere, `create_task(..., context=Context())`; on Python 3.11 also those made by `asyncio.Task(...)`
    instead of `create_task`, and those made after somebody has replaced the loop's task factory.
    """
    return Containment(keep, processes, grace, scope, name)


class Containment:
    """What `async with contain() as box` gives: its `report`, when the block has been left."""

    __slots__ = (
        "_births",
        "_block",
        "_inner",
        "_kept",
        "_options",
        "_outside",
        "_processes",
        "_scope",
        "_used",
        "report",
    )

    def __init__(
        self,
        keep: Callable[[Task], bool] | None,
        processes: Choice,
        grace: Grace | None,
        scope: Scope | None,
        name: str | None,
    ) -> None:
        if keep is not None and not callable(keep):
            raise TypeError(f"keep must be a function of a task, not {keep!r}")
        if processes not in CHOICES:
            raise ValueError(f"processes must be one of {', '.join(map(repr, CHOICES))}, not {processes!r}")
        self._options = (keep, grace, scope, name or "containment")
        self._processes: Choice = processes
        self._used = False
        self._kept: WeakSet[Task] = WeakSet()
        self.report: StopReport | None = None

    async def __aenter__(self) -> Self:
        backend = current_backend()
        _, grace, scope, name = self._options
        if backend.name != "asyncio":
            raise RuntimeError(
                "contain() is for asyncio, where anybody can start a task that nobody owns. On trio that cannot "
                "happen: every task lives in a nursery, which waits for it. Use a nursery, or a Scope"
            )
        if self._used:
            raise RuntimeError(f"containment {name!r} was used before: make a new one with contain()")
        owner, site = owner_of(backend, scope), site_of(sys._getframe(1))
        self._used = True
        self._scope = core = backend.make_core(
            name=name, site=site, on_error="report", grace=grace or owner.grace, parent=owner
        )
        self._inner = inner = backend.make_core(
            name=name, site=site, on_error="report", grace=core.grace, parent=core
        )
        inner.host = backend.make_host(inner)
        if inner.host.generator is not None:
            inner.settle()
            core.settle()
            raise RuntimeError(
                "contain() cannot stand inside an async generator: it runs in its consumer's context, and the "
                "consumer's tasks would be taken for its own. Put contain() around the loop that consumes it"
            )
        self._outside = ThreadsAndProcesses(core, self._processes, self._has_started, cast(Any, backend).loop)
        self._block = _Block(core, inner, site, self._outside)
        open_blocks.add(inner)
        self._births = TaskStarts.begin(cast(Any, backend).loop)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        inner = self._inner
        host = cast(AsyncioBlockTask, inner.host)
        if not host.may_leave():  # the loop is gone, and the collector closes what it left
            return False
        try:
            late = await self._drain(error)
            cancelled = await host.leave(error if late is None or isinstance(error, CancelledError) else late)
            self._finish()
        finally:
            host.restore_context()
            inner.host = None
            open_blocks.discard(inner)
            if self._births is not None:
                self._births.end(cast(Any, inner.backend).loop)
        if cancelled is None and error is None and host.is_current():
            cancelled = await _swallowed_cancel(host)
        if cancelled is not None and cancelled is not error:
            raise cancelled
        # A cancel that is not to be raised was our own, sent because the owner stopped the block.
        return cancelled is None and isinstance(error, CancelledError)

    # The end of the block

    async def _drain(self, error: BaseException | None) -> BaseException | None:
        """Stop all that is inside, however often we are cancelled; returns the first of those cancels."""
        core, inner, host = self._scope, self._inner, self._inner.host
        assert host is not None
        reason = Reason("parent", f"the block of {core.label!r} ended")
        if error is not None:
            reason = host.reason_of(error)
        self._block.leaving = True
        core.closers[self._block] = 1  # it waits for the others, and nobody for it
        self._adopt()
        if self._adopted() or inner.children or inner.nested:
            # Before anybody is cancelled: afterwards it does not show any more whose something was.
            self._outside.look()
        self._see_who_is_cancelled()
        if core.state is EXPIRED:
            core.resume(core.grace)
        core.stop(reason)
        inner.stop(core.reason or reason, body=False)
        outside = self._outside
        cancelled: BaseException | None = None
        seen: tuple[object, ...] = ()

        def is_news() -> bool:
            return core.is_over() or (*standing(), outside.is_all_that_is_left()) != seen

        def standing() -> tuple[object, ...]:
            return core.ended, core.rung, len(core.nested), outside.waited_for()

        while not core.is_over():
            all_else_is_gone = outside.is_all_that_is_left()
            if not self._adopted() and not self._adopt():
                if not all_else_is_gone:
                    # Nobody uses it any more: what was opened in the block may go.
                    host.leaving = True
                    inner.progress()
                elif not outside.drain():
                    break
            self._see_who_is_cancelled()
            seen = (*standing(), all_else_is_gone)  # if that has changed just now, it is news
            late = await core.backend.wait_through(is_news, core.waiters)
            cancelled = late if cancelled is None else cancelled
        if core.is_over():  # out of time: name also those that nobody has seen so far
            self._adopt(at_last=True)
            outside.look(at_last=True)
            self._see_who_is_cancelled()
        return cancelled

    def _adopted(self) -> dict[Task, AdoptedTask]:
        """Who is there, and does not wait for us to leave."""
        children = self._scope.children
        return {
            child._task: child
            for child in children
            if isinstance(child, AdoptedTask) and not child.waits_for_us
        }

    def _adopt(self, *, at_last: bool = False) -> list[AdoptedTask]:
        """Look for tasks that are ours; `at_last` also in containments inside that have not ended."""
        core, host_task = self._scope, cast(AsyncioBlockTask, self._inner.host).task
        found: list[AdoptedTask] = []
        for task in asyncio.all_tasks():
            if task is host_task or task is asyncio.current_task() or task in self._kept:
                continue
            if is_kernels_own(task) or adopter_of(task) is core or not self._contains(node_of(task), at_last):
                continue
            if self._keeps(task):
                self._kept.add(task)
            else:
                found.append(AdoptedTask(core, task, cast(AsyncioBlockTask, self._inner.host).around))
        if core.closed:
            core.stopped = [*core.stopped, *found]
        return found

    def _contains(self, node: Node | None, at_last: bool) -> bool:
        """Whether a context with this node descends from the block, by way of the scopes that own it."""
        return descends(node, self._inner, is_nobodys if at_last else open_blocks.__contains__)

    def _has_started(self, at_last: bool, node: Node | None) -> bool:
        """Whether a process or a thread with this node is ours. Whoever is kept may need what it has started."""
        return self._contains(node, at_last) and all(task.done() for task in self._kept)

    def _keeps(self, task: Task) -> bool:
        keep = self._options[0]
        try:
            return keep is not None and bool(keep(task))
        except Exception:
            logger.exception("keep of containment %r failed for %r: it is not kept", self._scope.label, task)
            return False

    def _see_who_is_cancelled(self) -> None:
        """Cancel those that have not been, except for whom another one hands its cancel on to."""
        core, us, adopted = self._scope, asyncio.current_task(), self._adopted()
        assert us is not None
        if all(child.asked for child in adopted.values()):
            return
        # The block's own children are being cancelled too, and may hand that on.
        own = [
            child._task for child in self._inner.children if isinstance(child, AsyncioHandle) and child._task
        ]
        waits = AwaitGraph([*adopted, *own, us])
        for task in waits.leading_to(us) & adopted.keys():
            child = adopted.pop(task)
            child.waits_for_us = True
            core.closers[child] = 1
        told, cleaning_up = waits.told_by_others([*adopted, *own]), waits.cleaning_up([*adopted, *own])
        for task, child in adopted.items():
            child.told = task in told
            child.cleaning_up = task in cleaning_up
            if core.closed and core.rung >= Rung.CANCEL:
                child._climb(Rung.CANCEL)

    def _finish(self) -> None:
        """Take the block out; what is there besides is left."""
        core, inner = self._scope, self._inner
        excused = core.who_waits_for(core.closers)
        core.children.pop(self._block, None)
        core.closers.clear()
        core.stopped = [child for child in (*core.stopped, *inner.stopped) if child is not self._block]
        if inner.failures:
            core.failures = deque([*(core.failures or ()), *inner.failures])
            core.failed += inner.failed
        core.progress()
        self._outside.say_what_is_unseen()
        self.report = core.report(excused)
        self.report.left = [*self.report.left, *self._outside.perhaps_left()]
        if is_trouble(self.report):
            log_report(self.report)


class _Block(Child):
    """The block, as a child of the owner's scope: it ends by being left."""

    __slots__ = ("inner", "leaving", "outside")

    _kind = "containment"

    def __init__(self, core: ScopeCore, inner: ScopeCore, site: Site, outside: ThreadsAndProcesses) -> None:
        super().__init__(core, core.label, site)
        self.outside = outside
        self.state = RUNNING
        self.inner = inner
        self.leaving = False
        core.children[self] = None

    def _climb(self, rung: Rung) -> None:
        """Stop the body. Where it does not leave in time, the processes that it may be waiting for go."""
        self.outside.climb(rung)
        host = self.inner.host
        if host is not None and not self.leaving and self._core.reason is not None:
            host.interrupt(self._core.reason)

    def _stuck_at(self) -> str:
        """Where the body is."""
        host = cast(AsyncioBlockTask | None, self.inner.host)
        return stuck_at(host.task.get_coro()) if host is not None else "its end"


async def _swallowed_cancel(host: AsyncioBlockTask) -> BaseException | None:
    """The cancel of the task that was sent since the block began and has not come through."""
    if host.task.cancelling() <= host.cancels_before:
        return None
    try:
        # It may just not have been delivered yet. And a cancelled anyio scope, which knows its cancel only by
        # the exception that it sent, sends another one on every turn of the loop.
        await asyncio.sleep(0)
    except CancelledError as exc:
        return exc
    return CancelledError("cancelled inside contain(), where it was swallowed")
