"""Which tasks of other code await which others, on asyncio.

It decides which tasks we must not cancel:

- A cancel of a task goes on to what it awaits, and a TaskGroup forwards it to its tasks. Two cancels for one
  stop would interrupt a clean-up, so a task that gets one from another task is left out.
- A task that is handling a cancellation has had its cancel, and so have the tasks that it awaits.
- A task that awaits *us* would pass its cancel on to us.

It is read from `_fut_waiter` and the done-callbacks. A task class of other code may lack those: its tasks may
then be cancelled twice, but nothing breaks. From 3.14 on asyncio has a public graph,
`asyncio.capture_call_graph`, which is not enough: for `gather` and `shield` it names the task that called
them, not the one that awaits them, and it does not tell which ones forward a cancel (`gather`, a TaskGroup)
and which do not (`wait`, `shield`).
"""

from __future__ import annotations

import asyncio
import gc
from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any, TypeAlias, cast

Task: TypeAlias = "asyncio.Task[Any]"  # Any: other code's results


class AwaitGraph:
    """Which of the given tasks await which others of them."""

    def __init__(self, tasks: Collection[Task]) -> None:
        self.forwards: dict[Task, set[Task]] = {task: set() for task in tasks}
        self.awaits: dict[Task, set[Task]] = {task: set() for task in tasks}
        waiting = {id(waiter): task for task in tasks if (waiter := _waiter_of(task)) is not None}
        for task in tasks:
            self.forwards[task].update(inner for inner in awaited_tasks(task) if inner in self.forwards)
            for callback in _callbacks_of(task):
                group = getattr(callback, "__self__", None)
                if isinstance(group, asyncio.TaskGroup):
                    self.forwards.get(cast(Any, group)._parent_task, set()).add(task)
                for captured in _captured_by(callback):
                    waiter = waiting.get(id(captured))
                    if waiter is not None:
                        # Only `wait_for` of 3.11 uses a partial, and it forwards a cancel; the others do not.
                        (self.forwards if isinstance(callback, partial) else self.awaits)[waiter].add(task)
        for task, inner in self.forwards.items():
            self.awaits[task] |= inner

    def cancelled_through(self, tasks: Iterable[Task]) -> set[Task]:
        """The tasks that are cancelled when `tasks` are, because one of those forwards its cancel to them."""
        return {inner for task in tasks for inner in self.forwards[task] if inner is not task}

    def leading_to(self, task: Task) -> set[Task]:
        """The tasks whose cancel would be forwarded to `task`, directly or through others."""
        found = {task}
        while more := {other for other, inner in self.forwards.items() if inner & found} - found:
            found |= more
        return found - {task}

    def cleaning_up(self, tasks: Iterable[Task]) -> set[Task]:
        """Those of `tasks` that are handling a cancellation, and all tasks that those await."""
        found = {task for task in tasks if is_cleaning_up(task)}
        while more := {inner for task in found for inner in self.awaits[task]} - found:
            found |= more
        return found


def _waiter_of(task: Task) -> asyncio.Future[Any] | None:
    return getattr(task, "_fut_waiter", None)


def awaited_tasks(task: Task) -> Iterator[Task]:
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


def _captured_by(callback: Callable[..., Any]) -> Iterator[object]:
    """The objects that a done-callback acts on: with `wait_for`, `wait`, `shield` and `gather`, a future."""
    if isinstance(callback, partial):
        yield from callback.args
    elif isinstance(callback, FunctionType):
        yield from closure_of(callback)


def closure_of(fn: object) -> Iterator[object]:
    """The variables of the enclosing functions that `fn` uses, as far as they have a value."""
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # still empty
            pass


def gathered_in(task: Task) -> list[asyncio.Future[Any]]:
    """The futures of `gather` that this task is a member of."""
    return [
        captured
        for callback in _callbacks_of(task)
        for captured in _captured_by(callback)
        if isinstance(captured, asyncio.Future) and task in getattr(captured, "_children", ())
    ]


def is_cleaning_up(task: Task) -> bool:
    """Whether it was cancelled and is inside an `except` or `finally` because of that."""
    # The count of its cancels alone does not say: a task that swallowed its cancel and goes on has it too.
    # But a suspended coroutine refers to the exception that it is handling, and one that goes on does not.
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
