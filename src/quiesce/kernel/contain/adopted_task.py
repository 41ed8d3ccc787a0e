"""Other people's tasks, on asyncio: whose they are, and one of them as a child of a containment.

Whose a task is says the context that it runs in: everything started from inside a containment, however
deep, has a copy of a context in which `current_node` leads to it. Python 3.11 cannot show a task's context;
there a task factory notes it when the task is made (`TaskStarts`). It misses tasks made by calling
`asyncio.Task(...)` by hand, and those made while somebody else's factory stands in place of ours. (It also learns
of processes that are started: see `process_starters`.)
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
    """Somebody else's task, as a child of the containment that it was found in."""

    __slots__ = ("_task", "around", "asked", "cleaning_up", "told", "waits_for_us")

    def __init__(self, core: ScopeCore, task: Task, around: Any = None) -> None:
        before = _adoption_of(task)
        if before is not None:
            before.give_away()
        birth = _birth_of(task)
        super().__init__(core, label_of(task.get_coro()), birth[1] if birth is not None else None)
        self.state = RUNNING
        self._task = task
        self.asked = 0
        self.around = around  # anyio's scope that the containment is in
        self.told = False  # another task will hand its own cancel on to it
        self.cleaning_up = False  # it is handling somebody's cancel already
        self.waits_for_us = False  # it awaits the task that leaves the block: its cancel would be ours
        _note(task, "_quiesce_adopted", self)
        core.children[self] = None
        task.add_done_callback(self._done)
        for future in gathered_in(task):
            future.add_done_callback(_retrieve_cancellation)

    def _climb(self, rung: Rung) -> None:
        """One cancel for its clean-up, a second when its time is over: from us, or handed on to it."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)
        if self.waits_for_us:
            return
        if rung is Rung.CANCEL and not (self.asked or self.told or self.cleaning_up):
            self.asked = 1
            self._cancel_unless_shielded()
        elif rung is (Rung.KILL if self.told else Rung.TERMINATE):
            self.asked = 2
            self._cancel()

    def _cancel_unless_shielded(self) -> None:
        if self.asked > 1 or self._task.done():
            return
        shield = outermost_shield(self._task, self.around)
        if shield is None:
            self._cancel()
        else:
            when_left(shield, self._cancel_unless_shielded)

    def _is_cleaning_up(self) -> bool:
        """Whether it was cancelled: by us, or by somebody before us."""
        return self.asked > 0 or self.told or self.cleaning_up

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
        """A containment further out takes over what this one could not end."""
        self._task.remove_done_callback(self._done)
        self._core.children.pop(self, None)
        self._core.progress()

    def _stuck_at(self) -> str:
        """Where the task waits."""
        return stuck_at(self._task.get_coro())

    def _leftovers(self) -> list[Leftover]:
        """With where it was made, as far as anybody has noted that."""
        made_at = describe(self._site)
        if self._site is None:
            for frame in reversed(getattr(self._task, "_source_traceback", None) or ()):  # in debug mode
                if not frame.filename.startswith(_ASYNCIO):
                    made_at = f"{frame.filename}:{frame.lineno} in {frame.name}"
                    break
        return [Leftover(self._kind, self.name, made_at, self._stuck_at())]


def adopter_of(task: Task) -> ScopeCore | None:
    """The containment's scope that has this task already."""
    adopted = _adoption_of(task)
    return adopted._core if adopted is not None else None


# What is known of a task is kept on the task. A dict of weak keys would keep it for ever: what we know of it
# leads back to it.


def _note(task: Any, name: str, value: object) -> None:
    try:
        setattr(task, name, value)
    except AttributeError:  # somebody's own class of tasks, with slots
        pass


def _adoption_of(task: Any) -> AdoptedTask | None:
    return getattr(task, "_quiesce_adopted", None)


def _birth_of(task: Any) -> tuple[Node, Site] | None:
    return getattr(task, "_quiesce_birth", None)


def _retrieve_cancellation(future: asyncio.Future[Any]) -> None:
    """`gather` keeps a cancelled member as an error, and asyncio would complain if nobody looks at it."""
    if not future.cancelled() and isinstance(future._exception, CancelledError):
        future.exception()


# Whose ------------------------------------------------------------------------------------------------------


def is_kernels_own(task: Task) -> bool:
    """Whether it is the task of a child, which belongs to its scope."""
    return isinstance(task, OwnedTask) or getattr(task.get_coro(), "cr_code", None) is run_child.__code__


def node_of(task: Task) -> Node | None:
    """What the task belongs to: the node in whose context it was made."""
    node: Node | None
    if sys.version_info >= (3, 12):
        node = task.get_context().get(current_node)
    else:
        birth = _birth_of(task)
        node = birth[0] if birth is not None else None
    while isinstance(node, ScopeCore) and node.host is not None and getattr(node.host, "task", None) is task:
        node = node.host.outer  # it is inside a block of its own
    return node


_ASYNCIO = asyncio.__path__[0]


class TaskStarts:
    """A task factory that notes in whose context each task is made, and where."""

    # Any throughout: other people's factories and coroutines, as asyncio hands them over.
    def __init__(self, inner: Any) -> None:
        self.quiesce_inner = inner  # so that the kernel sees what would be there without us
        self.users = 0
        self.of_tasks = 0  # how many of these want to know of tasks, and not only of processes

    @classmethod
    def begin(cls, loop: asyncio.AbstractEventLoop, *, tasks: bool = True) -> TaskStarts | None:
        """Note the starts of `loop` from now on; not needed where a task can show its context."""
        births: TaskStarts | None = None
        if sys.version_info < (3, 12):
            factory: Any = loop.get_task_factory()
            births = factory if isinstance(factory, TaskStarts) else cls(factory)
            if births is not factory:
                loop.set_task_factory(births)
            births.users += 1
            births.of_tasks += tasks
        return births

    def end(self, loop: asyncio.AbstractEventLoop, *, tasks: bool = True) -> None:
        """The last user takes it out; if somebody has wrapped it meanwhile, it only passes on."""
        self.users -= 1
        self.of_tasks -= tasks
        factory: Any = loop.get_task_factory()
        if not self.users and factory is self:
            loop.set_task_factory(self.quiesce_inner)

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        """As asyncio calls it: with a `context` if the task is to have one of its own."""
        inner = self.quiesce_inner
        task = asyncio.Task(coro, loop=loop, **kwargs) if inner is None else inner(loop, coro, **kwargs)
        if not self.users:
            return task
        context: Context | None = kwargs.get("context")
        node = current_node.get() if context is None else context.get(current_node)
        note_start(coro, node)
        if self.of_tasks and node is not None:
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename.startswith(_ASYNCIO):
                frame = frame.f_back
            _note(task, "_quiesce_birth", (node, site_of(frame)))
        return task
