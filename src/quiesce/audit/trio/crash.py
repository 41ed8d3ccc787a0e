"""Runs in which trio breaks down, or which have to be abandoned.

Code that exits a scope or a nursery in another task than the one that entered it can break trio's own bookkeeping:
`trio.run` then ends with `TrioInternalError`, and its tasks stay where they were. That is a finding, and must not
affect the next run.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiesce.audit.model import Sighting
from quiesce.audit.watch import text_of, where_raised

from .private_parts import Task, disown_children


def exit_request(error: BaseException) -> BaseException | None:
    """The KeyboardInterrupt or SystemExit in an error or its group, which has to be raised; None if there is none."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := exit_request(inner)) is not None), None)
    return None


def root_cause(error: BaseException) -> BaseException:
    """The error that trio or a nursery wrapped in this one."""
    # Chains of causes can be circular.
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        if error.__cause__ is not None:
            error = error.__cause__
        elif isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    return error


def crash(name: str, error: BaseException, *, is_closing: bool) -> Sighting:
    """The sighting for an error of trio itself, or of code whose error only trio can report."""
    where = where_raised(error)
    if "corrupted" in str(error):
        detail = text_of(error)
    else:
        inner = f" in {where[-1][0].co_qualname}" if where else ""
        detail = f"trio broke down with {text_of(error)}{inner}"
        if is_closing:
            detail += ": a scope or a nursery must be exited by the task that entered it"
    return Sighting("close" if is_closing else "crash", name, stuck_at=where, detail=detail)


def close_tasks(tasks: Iterable[Task | None]) -> bool:
    """Close the coroutines of abandoned tasks, the oldest last; False if there were none."""
    leftover = [
        task for task in tasks if task is not None and getattr(task.coro, "cr_frame", None) is not None
    ]
    for task in reversed(leftover):
        try:
            task.coro.close()
        except BaseException:
            # Its clean-up runs outside of trio and may fail in any way. The run was judged before.
            pass
        disown_children(task)
    return bool(leftover)
