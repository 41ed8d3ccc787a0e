"""`contain`: when a block ends, stop the tasks that other code started inside it.

There are two scopes, one inside the other. The inner one is in the context of the body, so that what is
opened in the block hangs below it, and tasks of other code are recognised by it. The outer one belongs to the
owner. From the beginning it has one child, the block itself (`_Block`): through it a stop of the owner stops
the body, and waits until the block has been exited. At the end of the block the tasks that are found become
its children too. From there on the ladder, the waiting and the report are those of every scope.

- Each task is cancelled once, by us or by another task that forwards its own cancel (see `await_graph`), and
  once more when its time is over.
- When the tasks that were found have ended, there may be new ones: it is finished when a look finds none.
  Only then what was opened in the block is stopped, since those tasks may have been using it.
- Tasks of the kernel's own belong to their scopes. Those in an inner containment belong to that one as long
  as its block lasts. Tasks that the predicate keeps are not touched; an outer containment will find them, and
  also whatever could not be ended here.
- A cancel of the body's task that code inside has swallowed is still counted by the task (`Task.cancelling`):
  it is raised again at the end.
- Processes and threads that were started inside come after the tasks: see `threads_and_processes`.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError
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
from .ancestry import descends, never_foreign, open_blocks
from .await_graph import AwaitGraph, Task
from .block_processes import CHOICES, Choice
from .threads_and_processes import ThreadsAndProcesses

if TYPE_CHECKING:
    from quiesce.kernel.base import StopReport
    from quiesce.kernel.process import Proc
    from quiesce.kernel.scope import Scope


def contain(
    *,
    keep: Callable[[asyncio.Task[Any]], bool] | None = None,
    processes: Literal["known", "all", "none"] = "known",
    grace: Grace | None = None,
    scope: Scope | None = None,
    name: str | None = None,
) -> Containment:
    """A block that no task and no process outlives, no matter which code started it; for asyncio.

    ```python
    async with contain() as box:
        await some_library.do_things()      # leaves its background tasks behind
    print(box.report)                       # they have been cancelled and have cleaned up
    ```

    At the end of the block, every task that was started inside it, at any depth, is cancelled once and has
    its `grace` (default: the owner's) to clean up. What is left after that is in `box.report`, and stays
    owned by `scope` (default: the current scope). `keep(task)` returns True for tasks to leave alone. If code
    inside swallowed a cancellation of the current task, it is raised at the end of the block.

    A process that was started inside, and still runs when the tasks have ended, is stopped with its whole
    tree. A thread that works for the block is waited for until the time for clean-up is over, and then named.
    `processes` says which processes are stopped: `"known"`, those that are known to be the block's (others
    that may be are named in the report); `"all"`, also those whose starter cannot be determined; `"none"`,
    none: they are not looked for.

    A task belongs to the block if its context descends from it. That misses tasks made with a context from
    elsewhere, `create_task(..., context=Context())`; on Python 3.11 also those made by `asyncio.Task(...)`
    instead of `create_task`, and those made after other code has replaced the loop's task factory.
    """
    return Containment(keep, processes, grace, scope, name)


def leave_processes(box: Containment, leaves: Callable[[Proc], bool]) -> None:
    """Have `box`, before it is entered, leave those processes alone for which `leaves(proc)` is true.

    For what is started inside, but belongs to something that outlives the block: a terminal of a conversation.
    """
    box._leaves = leaves


class Containment:
    """What `async with contain() as box` gives: its `report`, when the block has been exited."""

    __slots__ = (
        "_block",
        "_inner",
        "_is_begun",
        "_is_used",
        "_kept_tasks",
        "_leaves",
        "_options",
        "_processes",
        "_scope",
        "_task_starts",
        "_threads_and_processes",
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
        self._leaves: Callable[[Proc], bool] | None = None
        self._is_used = False
        self._is_begun = False  # and not entered yet
        self._kept_tasks: WeakSet[Task] = WeakSet()
        self.report: StopReport | None = None

    async def __aenter__(self) -> Self:
        if not self._is_begun:
            self._begin(site_of(sys._getframe(1)))
        self._is_begun = False
        inner = self._inner
        host = inner.backend.make_host(inner)
        inner.enter_block(host)
        if host.generator is not None:
            self._abandon()
            raise RuntimeError(
                "contain() cannot be used inside an async generator: it runs in its consumer's context, and "
                "the consumer's tasks would be taken for its own. Put contain() around the loop that consumes it"
            )
        return self

    def _begin(self, site: Site) -> None:
        """Make the scopes: what is started below the inner one belongs to the block, even before it is entered."""
        backend = current_backend()
        _, grace, scope, name = self._options
        if backend.name != "asyncio":
            raise RuntimeError(
                "contain() is for asyncio, where any code can start a task that has no owner. On trio that "
                "cannot happen: every task lives in a nursery, which waits for it. Use a nursery, or a Scope"
            )
        if self._is_used:
            raise RuntimeError(f"containment {name!r} was used before: make a new one with contain()")
        owner = owner_of(backend, scope)
        self._is_used = self._is_begun = True
        self._scope = core = backend.make_core(
            name=name, site=site, on_error="report", grace=grace or owner.grace, parent=owner
        )
        self._inner = inner = backend.make_core(
            name=name, site=site, on_error="report", grace=core.grace, parent=core
        )
        loop = cast(Any, backend).loop
        self._threads_and_processes = ThreadsAndProcesses(
            core, self._processes, self._has_started, loop, self._leaves
        )
        self._block = _Block(core, inner, site, self._threads_and_processes)
        open_blocks.add(inner)
        self._task_starts = TaskStarts.begin(loop)

    def _abandon(self) -> None:
        """Undo `_begin`: no task is in the block, and none will be."""
        core, inner = self._scope, self._inner
        self._end_watching()
        inner.leave_block()
        inner.settle()
        core.discard(self._block)
        core.settle()

    def _end_watching(self) -> None:
        open_blocks.discard(self._inner)
        if self._task_starts is not None:
            self._task_starts.end(cast(Any, self._inner.backend).loop)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        inner = self._inner
        host = cast(AsyncioBlockTask, inner.host)
        if not host.may_leave():  # the loop was dropped, and the garbage collector closes the block
            return False
        try:
            late = await self._stop_contents(error)
            cancelled = await host.leave(error if late is None or isinstance(error, CancelledError) else late)
            self._finish()
        finally:
            host.restore_context()
            inner.leave_block()
            self._end_watching()
        if cancelled is None and error is None and host.is_current():
            cancelled = await _swallowed_cancel(host)
        if cancelled is not None and cancelled is not error:
            raise cancelled
        # The body's cancel was our own, sent because the owner stopped the block: it ends here.
        return cancelled is None and isinstance(error, CancelledError)

    # The end of the block

    async def _stop_contents(self, error: BaseException | None) -> BaseException | None:
        """Stop all that is inside, through any cancels of our own; returns the first of those."""
        core, inner, host = self._scope, self._inner, self._inner.host
        assert host is not None
        reason = Reason("parent", f"the block of {core.label!r} ended")
        if error is not None:
            reason = host.reason_of(error)
        self._block.leaving = True
        core.closers[self._block] = 1  # the block itself waits here: the stop must not wait for it
        self._adopt()
        if self._adopted() or inner.children or inner.nested:
            # Before any task is cancelled: once a task has ended, nothing shows which processes it started.
            self._threads_and_processes.look()
        self._cancel_adopted()
        if core.state is EXPIRED:
            core.resume(core.grace)
        core.stop(reason)
        inner.stop(core.reason or reason, body=False)
        others = self._threads_and_processes
        cancelled: BaseException | None = None
        acted_on: tuple[object, ...] = ()

        def has_changed() -> bool:
            return core.is_over() or (*situation(), others.are_all_that_is_left()) != acted_on

        def situation() -> tuple[object, ...]:
            return core.ended, core.rung, len(core.nested), others.waited_for()

        while not core.is_over():
            only_others_left = others.are_all_that_is_left()
            if not self._adopted() and not self._adopt():
                if not only_others_left:
                    # No task can be using what was opened in the block any more: now it is stopped.
                    host.leaving = True
                    inner.progress()
                elif not others.stop():
                    break
            self._cancel_adopted()
            # `only_others_left` as it was above: if that has changed since, the wait returns at once.
            acted_on = (*situation(), only_others_left)
            late = await core.backend.wait_through(has_changed, core.waiters)
            cancelled = late if cancelled is None else cancelled
        # Out of time: take over also what inner containments have not ended, so that the report names it.
        if core.is_over():
            self._adopt(at_last=True)
            others.look(at_last=True)
            self._cancel_adopted()
        return cancelled

    def _adopted(self) -> dict[Task, AdoptedTask]:
        """The adopted tasks that have not ended, without those that wait for the block to be exited."""
        adopted = [child for child in self._scope.children if isinstance(child, AdoptedTask)]
        return {child._task: child for child in adopted if not child.awaits_block}

    def _adopt(self, *, at_last: bool = False) -> list[AdoptedTask]:
        """Adopt new tasks of the block; `at_last` also those of inner containments that have not ended."""
        core, host = self._scope, cast(AsyncioBlockTask, self._inner.host)
        found: list[AdoptedTask] = []
        for task in asyncio.all_tasks():
            if task is host.task or task is asyncio.current_task() or task in self._kept_tasks:
                continue
            if is_kernels_own(task) or adopter_of(task) is core or not self._contains(node_of(task), at_last):
                continue
            if self._keeps(task):
                self._kept_tasks.add(task)
            else:
                found.append(AdoptedTask(core, task, host.around))
        core.include_in_report(found)
        return found

    def _contains(self, node: Node | None, at_last: bool) -> bool:
        """Whether work with this node belongs to the block: its scopes and their owners lead up to it."""
        return descends(node, self._inner, never_foreign if at_last else open_blocks.__contains__)

    def _has_started(self, at_last: bool, node: Node | None) -> bool:
        """Whether a process or a thread with this node is ours to stop."""
        # Not while a kept task runs: it may need what the block has started.
        return self._contains(node, at_last) and all(task.done() for task in self._kept_tasks)

    def _keeps(self, task: Task) -> bool:
        keep = self._options[0]
        try:
            return keep is not None and bool(keep(task))
        except Exception:
            logger.exception("keep of containment %r failed for %r: it is not kept", self._scope.label, task)
            return False

    def _cancel_adopted(self) -> None:
        """Cancel the adopted tasks, each once, except those that get their cancel from another task."""
        core, us, adopted = self._scope, asyncio.current_task(), self._adopted()
        assert us is not None
        if all(child.cancels_sent for child in adopted.values()):
            return
        # The block's own children are being cancelled too, and may forward that.
        own = [
            child._task for child in self._inner.children if isinstance(child, AsyncioHandle) and child._task
        ]
        graph = AwaitGraph([*adopted, *own, us])
        # A task that awaits ours would pass its cancel on to us. It ends when the block has been exited.
        for task in graph.leading_to(us) & adopted.keys():
            child = adopted.pop(task)
            child.awaits_block = True
            core.closers[child] = 1
        tasks = [*adopted, *own]
        forwarded, cleaning_up = graph.cancelled_through(tasks), graph.cleaning_up(tasks)
        for task, child in adopted.items():
            child.cancel_is_forwarded = task in forwarded
            child.cleaning_up = task in cleaning_up
            if core.closed and core.rung >= Rung.CANCEL:
                child._climb(Rung.CANCEL)

    def _finish(self) -> None:
        """Take the block out of the owner's scope, and report what is left."""
        core, inner = self._scope, self._inner
        waiting_for_us = core.who_waits_for(core.closers)
        for node in [node for node in core.closers if isinstance(node, (_Block, AdoptedTask))]:
            del core.closers[node]  # it was noted here; the tasks that call `close()` take themselves out
        core.take_over(inner, self._block)
        self._threads_and_processes.note_unseen()
        self.report = core.report(waiting_for_us)
        self.report.left = [*self.report.left, *self._threads_and_processes.possible_leftovers()]
        if is_trouble(self.report):
            log_report(self.report)


class _Block(Child):
    """The block as a child of the owner's scope: it ends when it is exited."""

    __slots__ = ("inner", "leaving", "threads_and_processes")

    _kind = "containment"

    def __init__(self, core: ScopeCore, inner: ScopeCore, site: Site, others: ThreadsAndProcesses) -> None:
        super().__init__(core, core.label, site)
        self.threads_and_processes = others
        self.state = RUNNING
        self.inner = inner
        self.leaving = False
        core.add(self)

    def _climb(self, rung: Rung) -> None:
        """Stop the body; if it does not exit in time, also the processes that it may be waiting for."""
        self.threads_and_processes.climb(rung)
        host = self.inner.host
        if host is not None and not self.leaving and self._core.reason is not None:
            host.interrupt(self._core.reason)
        self._core.wake()  # the owner of an `OpenContainment` waits for this

    def _stuck_at(self) -> str:
        """The line where the body is."""
        host = cast(AsyncioBlockTask | None, self.inner.host)
        return stuck_at(host.task.get_coro()) if host is not None else "its end"


async def _swallowed_cancel(host: AsyncioBlockTask) -> BaseException | None:
    """A cancel that was sent to the body's task since the block began, and was not raised out of the body."""
    if host.task.cancelling() <= host.cancels_before:
        return None
    try:
        # It may not have been delivered yet. And a cancelled anyio scope sends a cancel on every turn of the
        # loop, and recognises only an exception that it sent itself: so prefer that one to one of our own.
        await asyncio.sleep(0)
    except CancelledError as exc:
        return exc
    return CancelledError("cancelled inside contain(), where it was swallowed")
