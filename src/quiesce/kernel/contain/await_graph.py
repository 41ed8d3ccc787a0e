"""Which of other people's tasks, on asyncio, wait for which others.

It decides who must not be cancelled by us:

- A cancel of a task goes on to whatever it awaits, and a TaskGroup hands it to its tasks. Two cancels for
  one stop would cut clean-ups in half, so who gets it from another is left out.
- Who is in the middle of handling a cancellation has had its cancel, and so have those that it awaits.
- A task that awaits *us* would pass its cancel on to us.

It is read off `_fut_waiter` and the done-callbacks; where those are missing (other people's task classes) nothing
breaks but the courtesy. From 3.14 on asyncio has a public graph of this, `asyncio.capture_call_graph`, which does not do:
for `gather` and `shield` it names the task that called them, not the one that awaits them, if any does, and it does not
tell who hands a cancel on (`gather`, a TaskGroup) from who does not (`wait`, `shield`).
"""

from __future__ import annotations

import asyncio
import gc
from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any, TypeAlias, cast

Task: TypeAlias = "asyncio.Task[Any]"  # Any: other people's results


class AwaitGraph:
    """Which of some tasks await which others of them."""

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
                for held in _held_by(callback):
                    waiter = waiting.get(id(held))
                    if waiter is not None:
                        # A partial is that of `wait_for` in 3.11, which hands the cancel on.
                        (self.forwards if isinstance(callback, partial) else self.awaits)[waiter].add(task)
        for task, inner in self.forwards.items():
            self.awaits[task] |= inner

    def told_by_others(self, tellers: Iterable[Task]) -> set[Task]:
        """Who is cancelled if these are, because one of them hands its cancel on."""
        return {inner for task in tellers for inner in self.forwards[task] if inner is not task}

    def leading_to(self, task: Task) -> set[Task]:
        """Whose cancel would end up at `task`."""
        found = {task}
        while more := {other for other, inner in self.forwards.items() if inner & found} - found:
            found |= more
        return found - {task}

    def cleaning_up(self, tasks: Iterable[Task]) -> set[Task]:
        """Who of these is handling a cancellation, and everybody that those wait for."""
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


def gathered_in(task: Task) -> list[asyncio.Future[Any]]:
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
