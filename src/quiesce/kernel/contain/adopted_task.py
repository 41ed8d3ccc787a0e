"""Tasks of other code, on asyncio: which containment they belong to, and one of them as its child.

A task belongs where its context says: everything that is started inside a containment, at any depth, has a
copy of a context in which `current_node` leads to it. Python 3.11 cannot show a task's context; there a task
factory notes it when the task is made (`TaskStarts`). That misses tasks made by calling `asyncio.Task(...)`
directly, and those made while a factory of other code has replaced ours. (It also notes processes that are
started: see `process_starters`.)
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError
from contextvars import Context
from typing import Any

from quiesce.kernel.base import Leftover, Rung, Site, describe, label_of, site_of, stuck_at
from quiesce.kernel.loops import OwnedTask, outermost_shield, run_child, when_left
from quiesce.kernel.scope import CANCELLED, FAILED, FINISHED, RUNNING, Child, Node, ScopeCore, current_node

from .await_graph import Task, gathered_in
from .process_starters import note_start


class AdoptedTask(Child):
    """A task of other code, as a child of the containment that it was found in."""

    __slots__ = ("_task", "around", "awaits_block", "cancel_is_forwarded", "cancels_sent", "cleaning_up")

    def __init__(self, core: ScopeCore, task: Task, around: Any = None) -> None:
        before = _adoption_of(task)
        if before is not None:
            before.give_away()
        start = _start_of(task)
        super().__init__(core, label_of(task.get_coro()), start[1] if start is not None else None)
        self.state = RUNNING
        self._task = task
        self.cancels_sent = 0
        self.around = around  # the anyio scope that the containment is in
        self.cancel_is_forwarded = False  # another task, which is cancelled too, forwards its cancel to it
        self.cleaning_up = False  # it is handling an earlier cancel
        self.awaits_block = False  # it awaits the task that exits the block, and would forward a cancel to it
        _set(task, "_quiesce_adopted", self)
        core.add(self)
        task.add_done_callback(self._done)
        for future in gathered_in(task):
            future.add_done_callback(_retrieve_cancellation)

    def _climb(self, rung: Rung) -> None:
        """One cancel for its clean-up, a second when its time is over: from us, or forwarded to it."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)
        if self.awaits_block:
            return
        if rung is Rung.CANCEL and not (self.cancels_sent or self.cancel_is_forwarded or self.cleaning_up):
            self.cancels_sent = 1
            self._cancel_unless_shielded()
        # The second cancel is forwarded, too. One of our own comes a rung later, if that was in vain.
        elif rung is (Rung.KILL if self.cancel_is_forwarded else Rung.TERMINATE):
            self.cancels_sent = 2
            self._cancel()

    def _cancel_unless_shielded(self) -> None:
        if self.cancels_sent > 1 or self._task.done():
            return
        shield = outermost_shield(self._task, self.around)
        if shield is None:
            self._cancel()
        else:
            when_left(shield, self._cancel_unless_shielded)

    def _is_cleaning_up(self) -> bool:
        """Whether it was cancelled: by us, by another task, or before the stop."""
        return self.cancels_sent > 0 or self.cancel_is_forwarded or self.cleaning_up

    def _cancel(self) -> None:
        self._task.cancel(self.reason.text if self.reason is not None else None)

    def _done(self, task: Task) -> None:
        if task.cancelled():
            self.state = CANCELLED
        elif (error := task.exception()) is not None:
            self.state, self._value = FAILED, error
        else:
            self.state, self._value = FINISHED, task.result()
        self._ended()

    def give_away(self) -> None:
        """Let an outer containment take over a task that this one could not end."""
        self._task.remove_done_callback(self._done)
        self._core.discard(self)
        self._core.progress()

    def _stuck_at(self) -> str:
        """The line where the task waits."""
        return stuck_at(self._task.get_coro())

    def _leftovers(self) -> list[Leftover]:
        """The task, with the line that made it where that is known."""
        made_at = describe(self._site)
        if self._site is None:
            for frame in reversed(getattr(self._task, "_source_traceback", None) or ()):  # in debug mode
                if not frame.filename.startswith(_ASYNCIO):
                    made_at = f"{frame.filename}:{frame.lineno} in {frame.name}"
                    break
        return [Leftover(self._kind, self.name, made_at, self._stuck_at())]


def adopter_of(task: Task) -> ScopeCore | None:
    """The scope of the containment that has adopted this task, if one has."""
    adopted = _adoption_of(task)
    return adopted._core if adopted is not None else None


# What we know about a task is stored on the task itself. A WeakKeyDictionary would keep the task alive
# forever, because the stored values refer to it.


def _set(task: Any, name: str, value: object) -> None:
    try:
        setattr(task, name, value)
    except AttributeError:  # a task class of other code, with slots
        pass


def _adoption_of(task: Any) -> AdoptedTask | None:
    return getattr(task, "_quiesce_adopted", None)


def _start_of(task: Any) -> tuple[Node, Site] | None:
    return getattr(task, "_quiesce_task_start", None)


def _retrieve_cancellation(future: asyncio.Future[Any]) -> None:
    # `gather` keeps the cancel of a member as its error, and asyncio logs an error that was never retrieved.
    if not future.cancelled() and isinstance(future._exception, CancelledError):
        future.exception()


# Which containment a task belongs to


def is_kernels_own(task: Task) -> bool:
    """Whether it is the task of a child, which its scope stops."""
    return isinstance(task, OwnedTask) or getattr(task.get_coro(), "cr_code", None) is run_child.__code__


def node_of(task: Task) -> Node | None:
    """The node that the task belongs to: that of the context in which it was made."""
    node: Node | None
    if sys.version_info >= (3, 12):
        node = task.get_context().get(current_node)
    else:
        start = _start_of(task)
        node = start[0] if start is not None else None
    # In a task that is inside a block of its own, the context has the scope of that block: go out of it.
    while isinstance(node, ScopeCore) and node.host is not None and getattr(node.host, "task", None) is task:
        node = node.host.outer
    return node


_ASYNCIO = asyncio.__path__[0]


class TaskStarts:
    """A task factory that notes in whose context each task is made, and on which line."""

    # Any throughout: factories and coroutines of other code, as asyncio passes them.
    def __init__(self, inner: Any) -> None:
        self.quiesce_inner = inner  # by this name the kernel finds the factory that it replaces
        self.users = 0
        self.task_users = 0  # those of the users that need the starts of tasks, and not only of processes

    @classmethod
    def begin(cls, loop: asyncio.AbstractEventLoop, *, tasks: bool = True) -> TaskStarts | None:
        """Note the starts in `loop` from now on; None where it is not needed: from Python 3.12 on."""
        starts: TaskStarts | None = None
        if sys.version_info < (3, 12):
            factory: Any = loop.get_task_factory()
            starts = factory if isinstance(factory, TaskStarts) else cls(factory)
            if starts is not factory:
                loop.set_task_factory(starts)
            starts.users += 1
            starts.task_users += tasks
        return starts

    def end(self, loop: asyncio.AbstractEventLoop, *, tasks: bool = True) -> None:
        """Stop noting for one user; the last one restores the old factory."""
        self.users -= 1
        self.task_users -= tasks
        factory: Any = loop.get_task_factory()
        # If another factory has wrapped this one meanwhile, it stays, and only passes calls on.
        if not self.users and factory is self:
            loop.set_task_factory(self.quiesce_inner)

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        """Make a task, as asyncio calls it: with a `context` if the task is to have one of its own."""
        inner = self.quiesce_inner
        task = asyncio.Task(coro, loop=loop, **kwargs) if inner is None else inner(loop, coro, **kwargs)
        if not self.users:
            return task
        context: Context | None = kwargs.get("context")
        node = current_node.get() if context is None else context.get(current_node)
        note_start(coro, node)
        if self.task_users and node is not None:
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename.startswith(_ASYNCIO):
                frame = frame.f_back
            _set(task, "_quiesce_task_start", (node, site_of(frame)))
        return task
