"""anyio's shields on asyncio: `anyio.CancelScope(shield=True)` keeps a stop's first cancel out, as it does on trio.

asyncio knows nothing of them: `task.cancel()` goes right through, as anyio itself says. So a cancel of ours that would land inside a
shield waits until the outermost one is left. It does not wait for ever: when the time for clean-up is over, the second cancel comes,
shield or not.

- A task that runs just now, because it has stopped itself, or a child has failed in its eager first step, may enter a shield before it awaits
  anything. Its cancel waits until it does (`may_enter_one`): a cancel that is pending already would arrive inside.
- Only shields that were entered inside of what is cancelled count: those around the block of a scope do not keep its own stop from its body.
- The kernel's own (see `_asyncio._enter_anyio_shield`) do not count.
- What anyio knows of a task is private to it. If it is not where it is in the versions that are known, shields are not seen.

How one learns that a shield is left: on its way out it sees to cancels that have waited for it, by a method of its own. For that one
object the class is exchanged for a subclass that tells us too. (Not `__exit__`: a `with` looks that up when it is entered.) Who is to be
told is kept on the task that has entered the shield. If the task is destroyed there, its shield is never left, and nothing is kept.
"""

from __future__ import annotations

import sys
from asyncio import Task, get_running_loop
from collections.abc import Callable
from typing import Any

from quiesce._safe.printed import logger

_BACKEND = "anyio._backends._asyncio"
_states: Any = None  # anyio's table of tasks; False if this version of it is not known
_watched_type: Any = None
_own: set[int] = set()  # ids of shields of the kernel's own


def is_known() -> bool:
    """Whether anyio is at work on asyncio, in a version that is known."""
    return _learn() if _states is None else _states is not False


def table() -> Any:
    """anyio's table of tasks and their scopes; None where there is nothing to look at."""
    return _states if _states or (_states is None and _learn()) else None


def scope_of(task: Task[Any]) -> Any:
    """The innermost scope of anyio's that `task` is in now; None if there is none."""
    states = table()
    state = states.get(task) if states else None
    return state.cancel_scope if state is not None else None


def outermost_shield(task: Task[Any], inside: Any = None) -> Any:
    """The outermost shield that keeps a cancel from `task`, looked for as far out as the scope `inside`; None if there is none."""
    found = None
    scope = scope_of(task)
    while scope is not None and scope is not inside:
        if scope._shield and id(scope) not in _own:
            found = scope
        scope = scope._parent_scope
    return found


def may_enter_one(task: Task[Any]) -> bool:
    """Whether `task` runs just now, and so may be in a shield by the time it awaits something.

    Not only the current task does: an eager one runs inside of the task that makes it.
    """
    return getattr(task.get_coro(), "cr_running", False) and is_known()


def when_left(shield: Any, fn: Callable[[], object]) -> None:
    """Call `fn()` in the turn of the loop after the one in which the shield is left."""
    if type(shield) is not _watched_type:
        shield.__class__ = _watched_type
    task = shield._host_task
    if not hasattr(task, "_quiesce_shields"):
        task._quiesce_shields = {}
    task._quiesce_shields.setdefault(shield, []).append(fn)


def take_as_own(shield: Any) -> None:
    """This one is the kernel's."""
    _own.add(id(shield))


def give_up(shield: Any) -> None:
    """It is left: forget it."""
    _own.discard(id(shield))


def _learn() -> bool:
    global _states, _watched_type
    module = sys.modules.get(_BACKEND)
    if module is None or not hasattr(module, "CancelScope"):  # or it is being imported just now
        return False
    try:
        states, scope_type = module._task_states, module.CancelScope
        scope = scope_type(shield=True)
        _ = scope._shield, scope._parent_scope, scope._host_task, states.get
        _ = scope._restart_cancellation_in_parent

        class Watched(scope_type):  # type: ignore[misc, valid-type]
            __slots__ = ()

            def _restart_cancellation_in_parent(self) -> None:
                super()._restart_cancellation_in_parent()
                for fn in self._host_task._quiesce_shields.pop(self, ()):
                    get_running_loop().call_soon(fn)

        scope.__class__ = Watched
    except (AttributeError, TypeError) as error:
        logger.warning(
            "this version of anyio keeps its cancel scopes elsewhere (%s): a stop on asyncio will not wait for anyio's shields",
            error,
        )
        _states = False
        return False
    Watched.__name__ = Watched.__qualname__ = scope_type.__name__
    _states, _watched_type = states, Watched
    return True
