"""When trio breaks down, or a run has to be abandoned.

Code that leaves a scope or a nursery in another task than entered it can break trio's own bookkeeping: `trio.run` then
ends with `TrioInternalError`, its tasks where they stood. That is a finding, and must not touch the next run.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiesce.audit.model import Sighting
from quiesce.audit.watch import text_of, where_raised

from .private_parts import Task, disown_children


def wants_out(error: BaseException) -> BaseException | None:
    """The interrupt or the exit in it, which is not ours to keep."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := wants_out(inner)) is not None), None)
    return None


def root_cause(error: BaseException) -> BaseException:
    """What trio, or a nursery, wrapped."""
    seen: set[int] = set()  # chains can be circular
    while id(error) not in seen:
        seen.add(id(error))
        if error.__cause__ is not None:
            error = error.__cause__
        elif isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    return error


def crash(name: str, error: BaseException, *, is_closing: bool) -> Sighting:
    """trio itself, or something in a place from where only trio can report it, has failed with this."""
    where = where_raised(error)
    if "corrupted" in str(error):
        detail = text_of(error)
    else:
        inner = f" in {where[-1][0].co_qualname}" if where else ""
        detail = f"trio broke down with {text_of(error)}{inner}"
        if is_closing:
            detail += ": a scope or a nursery must be left by the task that entered it"
    return Sighting("close" if is_closing else "crash", name, stuck_at=where, detail=detail)


def close_tasks(tasks: Iterable[Task | None]) -> bool:
    """Close the coroutines of tasks that were abandoned, the oldest last. False: there were none."""
    left = [task for task in tasks if task is not None and getattr(task.coro, "cr_frame", None) is not None]
    for task in reversed(left):
        try:
            task.coro.close()
        except BaseException:
            pass
        disown_children(task)
    return bool(left)
