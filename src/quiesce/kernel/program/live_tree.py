"""`tree`: what runs now. Every scope of the program with what it owns, how old that is, and where it waits.

Invariants
- Looking changes nothing and waits for nothing. Any thread may look, also while a loop is blocked or about to
  end.
- It costs nothing until you look. So the start times of tasks and scopes are not recorded: their ages count
  from the first look that saw them, and say so (`age_is_exact`). Threads and processes cost so much that
  their start times do not matter: those are known.
- A look is not an instant. The loops go on meanwhile: something may end between the line that names it and
  the one that reads where it waits. What cannot be read any more is left out, or "unknown".
- What a task has opened, and the thread that it waits for, are shown below that task, though its scope owns
  both.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeVar

from quiesce._safe.printed import printed_line
from quiesce.kernel.base import SETTLED, describe, thread_stuck_at
from quiesce.kernel.process import TreeChild
from quiesce.kernel.scope import (
    Backend,
    Child,
    Handle,
    Node,
    ScopeCore,
    blocked_loop,
    current_backend,
    current_node,
)
from quiesce.kernel.threads import ThreadChild

T = TypeVar("T")

_TRIES = 20  # to copy a collection that another thread is changing
_first_seen: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Branch:
    """One thing that runs, with all that runs below it: what `tree()` returns.

    - `kind`: `"program"`, `"loop"`, `"scope"`, `"task"`, `"thread"`, `"process"`, or another kind that a
      scope owns; and its `name`.
    - `state`: of a scope `"open"`, `"stopping"` or `"expired"`; of a task `"pending"`, `"running"` or
      `"stopping"`.
    - `where`: the line of code where it waits or is; the command line of a process; empty where that means
      nothing.
    - `age`: in seconds; None at the first look. With `age_is_exact` False it counts from the first look, and
      the thing may be older.
    - `reason`: why it is being stopped, if it is: its token is cancelled then.

    ```python
    print(quiesce.tree())                                       # as a tree
    stuck = [b for b in quiesce.tree().walk() if b.kind == "thread" and (b.age or 0) > 60]
    ```
    """

    kind: str
    name: str
    state: str = "running"
    where: str = ""
    made_at: str = ""
    age: float | None = None
    age_is_exact: bool = True
    reason: str | None = None
    children: tuple[Branch, ...] = ()

    def walk(self) -> Iterator[Branch]:
        """This branch and branches below it."""
        waiting: list[Branch] = [self]
        while waiting:
            branch = waiting.pop()
            yield branch
            waiting.extend(reversed(branch.children))

    @property
    def line(self) -> str:
        """This branch alone, as one line of text."""
        text = f"{self.kind} {self.name!r}" if self.kind == "scope" else f"{self.kind} {self.name}"
        if self.state != "running" and self.state != "open":
            text += f" {self.state}"
        if self.reason is not None:
            text += f" ({self.reason})"
        if self.age is not None:
            text += f", {self.age:.1f} s" + ("" if self.age_is_exact else "+")
        return printed_line(f"{text}: {self.where}" if self.where else text)

    def __str__(self) -> str:
        lines: list[str] = []
        waiting: list[tuple[Branch, str, str]] = [(self, "", "")]
        while waiting:
            branch, first, rest = waiting.pop()
            lines.append(first + branch.line)
            last = len(branch.children) - 1
            below = [
                (
                    child,
                    rest + ("└─ " if place == last else "├─ "),
                    rest + ("   " if place == last else "│  "),
                )
                for place, child in enumerate(branch.children)
            ]
            waiting.extend(reversed(below))
        return "\n".join(lines)


def tree() -> Branch:
    """What runs now in this program: loops, scopes, tasks, threads and processes, each below its owner.

    Call it from any thread.

    ```python
    print(quiesce.tree())
    ```
    """
    loops = [found for backend in _retry(lambda: list(blocked_loop._backends)) if (found := _loop(backend))]
    return Branch("program", f"(pid {os.getpid()})", children=tuple(loops))


def note_ages() -> None:
    """Note when the tasks and scopes of the current loop were first seen: later looks count from here.

    Cheap enough to be called every few seconds.
    """
    cores = _top_scopes(current_backend())
    while cores:
        core = cores.pop()
        _age_since_first_look(core)
        for child in list(core.children):
            _age_since_first_look(getattr(child, "_task", None))
        cores += core.nested


# Loops


def _loop(backend: Backend) -> Branch | None:
    if getattr(backend, "over", False) or _is_closed(backend):
        return None
    scopes = [_scope(core) for core in _top_scopes(backend)]
    if not scopes:
        return None
    name = next(
        (t.name for t in threading.enumerate() if t.ident == backend.thread), "a thread that has ended"
    )
    where = "" if backend.thread == threading.get_ident() else thread_stuck_at(backend.thread)
    if where.endswith("Selector.select"):
        where = ""  # it waits for events, as a healthy loop does
    return Branch("loop", f"{backend.name} in {name}", where=where, children=tuple(scopes))


def _is_closed(backend: Backend) -> bool:
    loop = getattr(backend, "loop", None)
    return loop is not None and loop.is_closed()


def _top_scopes(backend: Backend) -> list[ScopeCore]:
    """The scopes without an owner: the root, and the blocks that were entered outside of all others."""
    tops: dict[ScopeCore, None] = {}
    if backend.root is not None:
        tops[backend.root] = None
    # A list of all blocks would cost every scope something; but each task in a block has it in its context.
    for context in _retry(lambda: list(_contexts(backend))):
        node = context.get(current_node)
        core = node._core if node is not None else None
        while core is not None and core.parent is not None:
            core = core.parent
        if core is not None and core.backend is backend:
            tops[core] = None
    return [
        core for core in tops if core.state is not SETTLED and (core.children or core.nested or core.host)
    ]


def _contexts(backend: Backend) -> Iterator[Context]:
    loop = getattr(backend, "loop", None)
    if loop is None:
        yield from _trio_contexts(backend)
        return
    for task in asyncio.all_tasks(loop):
        get_context = getattr(task, "get_context", None)  # from 3.12 on
        if get_context is not None:
            yield get_context()
        else:
            yield from (found for found in gc.get_referents(task) if isinstance(found, Context))


def _trio_contexts(backend: Any) -> Iterator[Context]:
    task = backend.nursery.parent_task if backend.nursery is not None else None
    while task is not None and task.parent_nursery is not None:
        task = task.parent_nursery.parent_task
    waiting = [task] if task is not None else []
    while waiting:
        task = waiting.pop()
        yield task.context
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


# Scopes and what they own


def _scope(core: ScopeCore) -> Branch:
    # A nested scope, or a thread, is shown below the task that opened it, if that is a child of this scope.
    children = [child for child in _retry(lambda: list(core.children)) if child._label is not None]
    below: dict[Node, list[Branch]] = {child: [] for child in children}
    here: list[Branch] = []
    for nested in _retry(lambda: list(core.nested)):
        if nested.state is not SETTLED:
            place = below.get(nested.opener, here) if nested.opener is not None else here
            place.append(_scope(nested))
    for child in children:
        opener = child.opener if isinstance(child, ThreadChild) else None
        if opener is not None and opener in below:
            below[opener].append(_child(child, below.pop(child)))
    listed = [_child(child, below[child]) for child in children if child in below]
    branches = (*listed, *here)
    # The scope of a process, of remote work or of an abandoned thread is not of the user's making: show what it owns.
    if (
        len(branches) == 1
        and branches[0].kind != "task"
        and core.name
        and branches[0].name.startswith(core.name)
    ):
        return branches[0]
    return Branch(
        "scope",
        core.label,
        core.state,
        where="",
        made_at=describe(core._site),
        age=_age_since_first_look(core),
        age_is_exact=False,
        reason=_reason(core),
        children=branches,
    )


def _child(child: Child, below: list[Branch]) -> Branch:
    if isinstance(child, TreeChild):
        return _process(child)
    task = getattr(child, "_task", None)
    state: str = child.state
    if isinstance(child, Handle) and child._asked:
        state = "stopping"
    return Branch(
        child._kind,
        child.name,
        state,
        where=_or_unknown(child._stuck_at),
        made_at=describe(child._site),
        age=time.monotonic() - child.began if isinstance(child, ThreadChild) else _age_since_first_look(task),
        age_is_exact=isinstance(child, ThreadChild),
        reason=_reason(child),
        children=tuple(below),
    )


def _process(child: TreeChild) -> Branch:
    tree = child.tree
    alive = tree.peek()
    leader = [proc for proc in alive if proc.pid == tree.pid]
    others = [proc for proc in alive if proc.pid != tree.pid]
    return Branch(
        "process",
        child.name,
        "running" if child.returncode is None else f"exited with {child.returncode}",
        where=leader[0].describe() if leader else ("" if others else "exiting"),
        made_at=describe(child._site),
        age=_age_of(tree.leader_start),
        reason=_reason(child._core),
        children=tuple(
            Branch("process", proc.comm, where=proc.describe(), age=_age_of(proc.starttime))
            for proc in others
        ),
    )


def _reason(node: Child | ScopeCore) -> str | None:
    reason = node.reason
    return str(reason) if reason is not None else None


# Ages


def _age_since_first_look(thing: object) -> float | None:
    if thing is None:
        return None
    now = time.monotonic()
    try:
        first = _first_seen.setdefault(thing, now)
    except TypeError:  # a task class of other code, without weak references
        return None
    return now - first if first < now else None


def _age_of(start: int) -> float | None:
    """The age of a process that was started at `start`, in clock ticks since boot."""
    if not start or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK"))


# Reading what other threads change


def _retry(copy: Callable[[], list[T]]) -> list[T]:
    for _ in range(_TRIES):
        try:
            return copy()
        except RuntimeError:  # it changed size while it was copied
            continue
    return []


def _or_unknown(read: Callable[[], str]) -> str:
    try:
        return read()
    except Exception:  # it ended while we read it
        return "unknown"
