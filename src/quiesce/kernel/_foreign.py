"""Other people's tasks, on asyncio: whose they are, who waits for whom, and one of them as a child.

Whose a task is says the context that it runs in: everything started from inside a containment, however
deep, has a copy of a context in which `current_node` leads to it. Python 3.11 cannot show a task's context;
there a task factory notes it when the task is made (`Births`). It misses tasks made by calling
`asyncio.Task(...)` by hand, and those made while somebody else's factory stands in place of ours.

Who waits for whom decides who must not be cancelled by us:

- A cancel of a task goes on to whatever it awaits, and a TaskGroup hands it to its tasks. Two cancels for
  one stop would cut clean-ups in half, so who gets it from another is left out.
- Who is in the middle of handling a cancellation has had its cancel, and so have those that it awaits.
- A task that awaits *us* would pass its cancel on to us.

asyncio keeps no record of this before 3.14. It can be read off `_fut_waiter` and the done-callbacks; where those
are missing (other people's task classes) nothing breaks but the courtesy.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import Context
from functools import partial
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakKeyDictionary

from ._asyncio import OwnedTask, _child
from ._child import CANCELLED, FAILED, FINISHED, RUNNING, Child
from ._core import ScopeCore
from ._current import Node, current_node
from ._grace import Rung
from ._report import Leftover
from ._site import Site, describe, label_of, site_of, stuck_at

if TYPE_CHECKING:
    from collections.abc import Coroutine

Task: TypeAlias = "asyncio.Task[Any]"  # Any: other people's results


class Adopted(Child):
    """Somebody else's task, as a child of the containment that it was found in."""

    __slots__ = ("asked", "spared", "task")

    def __init__(self, core: ScopeCore, task: Task) -> None:
        before = _adopted.get(task)
        if before is not None:
            before.give_away()
        birth = _births.get(task)
        super().__init__(core, label_of(task.get_coro()), birth[1] if birth is not None else None)
        self.state = RUNNING
        self.task = task
        self.asked = 0
        self.spared = False  # somebody else has cancelled it, or will
        _adopted[task] = self
        core.children[self] = None
        task.add_done_callback(self._done)
        for future in waiting_for(task):
            future.add_done_callback(_retrieve_cancellation)

    def climb(self, rung: Rung) -> None:
        """One cancel for its clean-up, a second when its time is over."""
        if self.core.reason is not None:
            self.note_reason(self.core.reason)
        if rung is Rung.CANCEL and not self.asked and not self.spared:
            self.asked = 1
            self._cancel()
        elif rung is Rung.TERMINATE:
            self.asked = 2
            self._cancel()

    def _cancel(self) -> None:
        self.task.cancel(self.reason.text if self.reason is not None else None)

    def _done(self, task: Task) -> None:
        if task.cancelled():
            self.state = CANCELLED
        elif (error := task.exception()) is not None:
            self.state, self.value = FAILED, error
        else:
            self.state, self.value = FINISHED, task.result()
        self.ended()

    def give_away(self) -> None:
        """A containment further out takes over what this one could not end."""
        self.task.remove_done_callback(self._done)
        self.core.children.pop(self, None)
        self.core.progress()

    def stuck_at(self) -> str:
        """Where the task waits."""
        return stuck_at(self.task.get_coro())

    def leftover(self) -> Leftover:
        """With where it was made, as far as anybody has noted that."""
        made_at = describe(self.site)
        traceback = getattr(self.task, "_source_traceback", None)  # in asyncio's debug mode
        if self.site is None and traceback:
            made_at = f"{traceback[-1].filename}:{traceback[-1].lineno} in {traceback[-1].name}"
        return Leftover(self.kind, self.name, made_at, self.stuck_at())


_adopted: WeakKeyDictionary[Task, Adopted] = WeakKeyDictionary()


def adopter_of(task: Task) -> ScopeCore | None:
    """The containment's scope that has this task already."""
    adopted = _adopted.get(task)
    return adopted.core if adopted is not None else None


def _retrieve_cancellation(future: asyncio.Future[Any]) -> None:
    """`gather` keeps a cancelled member as an error, and asyncio would complain if nobody looks at it."""
    if not future.cancelled() and isinstance(future._exception, CancelledError):
        future.exception()


# Whose ------------------------------------------------------------------------------------------------------


def is_kernels_own(task: Task) -> bool:
    """Whether it is the task of a child, which belongs to its scope."""
    return isinstance(task, OwnedTask) or getattr(task.get_coro(), "cr_code", None) is _child.__code__


def node_of(task: Task) -> Node | None:
    """What the task belongs to: the node in whose context it was made."""
    if sys.version_info < (3, 12):
        birth = _births.get(task)
        return birth[0] if birth is not None else None
    node = task.get_context().get(current_node)
    while isinstance(node, ScopeCore) and node.host is not None and getattr(node.host, "task", None) is task:
        node = node.host.outer  # it is inside a block of its own
    return node


def descends(node: Node | None, above: ScopeCore) -> bool:
    """Whether `node` is in `above`, by way of the scopes that own it."""
    core = node.core if node is not None else None
    while core is not None and core is not above:
        opener = core.opener
        core = core.parent or (opener.core if opener is not None else None)
    return core is not None


_births: WeakKeyDictionary[Task, tuple[Node, Site | None]] = WeakKeyDictionary()
_ASYNCIO = asyncio.__path__[0]


class Births:
    """A task factory that notes in whose context each task is made, and where."""

    def __init__(self, inner: Callable[..., Any] | None) -> None:
        self.quiesce_inner = inner  # so that the kernel sees what would be there without us
        self.users = 0

    @classmethod
    def begin(cls, loop: asyncio.AbstractEventLoop) -> Births | None:
        """Note the tasks of `loop` from now on; not needed where a task can show its context."""
        if sys.version_info >= (3, 12):
            return None
        factory = loop.get_task_factory()
        births = factory if isinstance(factory, Births) else cls(factory)
        if births is not factory:
            loop.set_task_factory(births)
        births.users += 1
        return births

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        """The last user takes it out; if somebody has wrapped it meanwhile, it only passes on."""
        self.users -= 1
        if not self.users and loop.get_task_factory() is self:
            loop.set_task_factory(self.quiesce_inner)

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **kwargs: Any
    ) -> Any:
        inner = self.quiesce_inner
        task = asyncio.Task(coro, loop=loop, **kwargs) if inner is None else inner(loop, coro, **kwargs)
        context: Context | None = kwargs.get("context")
        node = current_node.get() if context is None else context.get(current_node)
        if self.users and node is not None:
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename.startswith(_ASYNCIO):
                frame = frame.f_back
            _births[task] = (node, site_of(frame))
        return task


# Who waits for whom -----------------------------------------------------------------------------------------


class Waits:
    """Which of some tasks await which others of them."""

    def __init__(self, tasks: Collection[Task]) -> None:
        self.forwards: dict[Task, set[Task]] = {task: set() for task in tasks}
        self.awaits: dict[Task, set[Task]] = {task: set() for task in tasks}
        waiting = {id(waiter): task for task in tasks if (waiter := _waiter_of(task)) is not None}
        for task in tasks:
            self.forwards[task].update(inner for inner in _awaited_tasks(task) if inner in self.forwards)
            for callback in _callbacks_of(task):
                group = getattr(callback, "__self__", None)
                if isinstance(group, asyncio.TaskGroup):
                    self.forwards.get(cast(Any, group)._parent_task, set()).add(task)
                for held in _held_by(callback):
                    waiter = waiting.get(id(held))
                    if waiter is not None:
                        # A partial is that of `wait_for` in 3.11, which hands the cancel on.
                        (self.forwards if isinstance(callback, partial) else self.awaits)[waiter].add(task)
        for task, inner in self.forwards.items():
            self.awaits[task] |= inner

    def told_by_others(self, tellers: Iterable[Task]) -> set[Task]:
        """Who hears of a cancel if these are cancelled, apart from themselves."""
        return {inner for task in tellers for inner in self.forwards[task] if inner is not task}

    def leading_to(self, task: Task) -> set[Task]:
        """Whose cancel would end up at `task`."""
        found = {task}
        while more := {other for other, inner in self.forwards.items() if inner & found} - found:
            found |= more
        return found - {task}

    def cleaning_up(self) -> set[Task]:
        """Who is handling a cancellation, and everybody that those wait for."""
        found = {task for task in self.awaits if is_cleaning_up(task)}
        while more := {inner for task in found for inner in self.awaits[task]} - found:
            found |= more
        return found


def _waiter_of(task: Task) -> asyncio.Future[Any] | None:
    return getattr(task, "_fut_waiter", None)


def _awaited_tasks(task: Task) -> Iterator[Task]:
    """The tasks that `task` awaits, directly or through `gather`."""
    futures: list[Any] = [_waiter_of(task)]
    while futures:
        future = futures.pop()
        if isinstance(future, asyncio.Task):
            yield future
        else:
            futures += getattr(future, "_children", ())


def _callbacks_of(task: Task) -> list[Callable[..., Any]]:
    return [callback for callback, _ in getattr(task, "_callbacks", None) or ()]


def _held_by(callback: Callable[..., Any]) -> Iterator[object]:
    """What a done-callback will do something to: `wait_for`, `wait`, `shield` and `gather` have one each."""
    if isinstance(callback, partial):
        yield from callback.args
    elif isinstance(callback, FunctionType):
        for cell in callback.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # still empty
                pass


def waiting_for(task: Task) -> list[asyncio.Future[Any]]:
    """The futures of `gather` that this task is a member of."""
    return [
        held
        for callback in _callbacks_of(task)
        for held in _held_by(callback)
        if isinstance(held, asyncio.Future) and task in getattr(held, "_children", ())
    ]


def is_cleaning_up(task: Task) -> bool:
    """Whether it has been cancelled and is inside an `except` or `finally` because of that.

    A suspended coroutine refers to the exception that it is handling; one that swallowed its cancel and went on
    does not.
    """
    if not task.cancelling():
        return False
    link: Any = task.get_coro()
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        referents = gc.get_referents(link)
        if any(isinstance(referent, CancelledError) for referent in referents):
            return True
        if isinstance(link, CoroutineType):
            link = link.cr_await
        elif isinstance(link, GeneratorType):
            link = link.gi_yieldfrom
        elif isinstance(link, AsyncGeneratorType):
            link = link.ag_await
        else:
            inside = (AsyncGeneratorType, CoroutineType, GeneratorType)
            link = next((referent for referent in referents if isinstance(referent, inside)), None)
    return False
