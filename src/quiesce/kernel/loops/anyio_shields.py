"""anyio's shields on asyncio: `anyio.CancelScope(shield=True)` delays the first cancel of a stop, as on trio.

asyncio knows nothing of these shields: `task.cancel()` goes right through them, as anyio's documentation
says. So a cancel that would arrive inside a shield waits until the task has exited the outermost one. It does
not wait forever: when the time to clean up is over, the second cancel is delivered, shield or not.

- A task that is running right now, because it has stopped its own scope or a child of it has failed in its
  eager first step, may enter a shield before its next await. Its cancel waits for that await
  (`may_enter_one`): a cancel that is already pending would arrive inside the shield.
- Only shields inside of what is cancelled count: a shield around the block of a scope does not protect the
  body from the scope's own stop.
- The kernel's own shields (`asyncio_loop._enter_anyio_shield`) do not count.
- What anyio knows about a task is private to anyio. If it is not where the known versions have it, shields
  are not seen, and a warning says so.

How we notice that a shield is exited: at its exit, a cancel scope of anyio calls a method of its own, which
restarts the cancellation in its parent. We replace the class of that one object by a subclass whose method
calls us as well. (Overriding `__exit__` would not work: a `with` looks it up when it is entered.) The
callbacks are kept on the task that has entered the shield. If that task is destroyed inside, the shield is
never exited, and nothing is kept alive.
"""

from __future__ import annotations

from asyncio import Task, get_running_loop
from collections.abc import Callable
from sys import modules
from typing import Any

from quiesce._safe.printed import logger

_BACKEND = "anyio._backends._asyncio"
# anyio's table of tasks; False if this version of anyio is not known.
_states: Any = None
# The dict inside that weak table: asking the table itself whether it is empty costs three calls.
_entries: Any = None
_watched_type: Any = None
_kernel_shields: set[int] = set()  # by `id()`


def is_known() -> bool:
    """Whether anyio is in use on asyncio, in a version that is known."""
    return _BACKEND in modules and _find_private_parts() if _states is None else _states is not False


def table() -> Any:
    """anyio's table of tasks and their scopes; None if it is empty or there is none."""
    return (
        _states if _entries or (_states is None and _BACKEND in modules and _find_private_parts()) else None
    )


def scope_of(task: Task[Any]) -> Any:
    """The innermost cancel scope of anyio that `task` is in now; None if there is none."""
    states = table()
    state = states.get(task) if states else None
    return state.cancel_scope if state is not None else None


def outermost_shield(task: Task[Any], inside: Any = None) -> Any:
    """The outermost shield that `task` is in, except those around the scope `inside`; None without any."""
    found = None
    scope = scope_of(task)
    while scope is not None and scope is not inside:
        if scope._shield and id(scope) not in _kernel_shields:
            found = scope
        scope = scope._parent_scope
    return found


def may_enter_one(task: Task[Any]) -> bool:
    """Whether `task` is running right now, and so may enter a shield before its next await."""
    # More than the current task may be running: an eager task runs its first step inside the task that makes
    # it. Hence the look at the coroutine, instead of a comparison with `current_task()`.
    return getattr(task.get_coro(), "cr_running", False) and is_known()


def when_left(shield: Any, fn: Callable[[], object]) -> None:
    """Call `fn()` in the turn of the loop after the one in which the shield is exited."""
    if type(shield) is not _watched_type:
        shield.__class__ = _watched_type
    task = shield._host_task
    if not hasattr(task, "_quiesce_shields"):
        task._quiesce_shields = {}
    task._quiesce_shields.setdefault(shield, []).append(fn)


def add_kernel_shield(shield: Any) -> None:
    """Register a shield of the kernel: it protects no code of a user."""
    _kernel_shields.add(id(shield))


def discard_kernel_shield(shield: Any) -> None:
    """Forget a shield of the kernel that is about to be exited."""
    _kernel_shields.discard(id(shield))


def _find_private_parts() -> bool:
    global _states, _entries, _watched_type
    module = modules.get(_BACKEND)
    if module is None or not hasattr(module, "CancelScope"):  # not imported, or only in part so far
        return False
    # Everything that is used of anyio is tried here, once: a version that has it elsewhere is found now and
    # not in the middle of a stop.
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
            "this version of anyio keeps its cancel scopes elsewhere (%s): "
            "a stop on asyncio will not wait for anyio's shields",
            error,
        )
        _states = False
        return False
    Watched.__name__ = Watched.__qualname__ = scope_type.__name__
    _states, _entries, _watched_type = states, getattr(states, "data", states), Watched
    return True
