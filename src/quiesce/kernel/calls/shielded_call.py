"""Clean-up that is not interrupted.

The clean-up runs in a task of its own, in a small scope that belongs to the owner but is not stopped with it
(`shielded`): the time when the owner stops is when clean-up is needed. So a cancel of the caller, once or
five times, reaches only the caller's wait. Two more things would reach the clean-up itself, and must not:

- The end of `asyncio.run` or `trio.run` cancels all tasks that are left, but not those of a shielded scope.
- The caller's token is cancelled by then. The clean-up has a token of its own; otherwise a tool that checks
  `current_token()` would refuse to work in it.

At the very end of a trio run, when the remaining async generators are finalised, no task can be started any
more. There the clean-up runs in the caller's own task, under a shield with the same deadline.

Only its own time bounds it. When that is over it is cancelled, once, and has the `terminate` seconds of the
owner's `Grace` to respond. After that it is left to the owner, which names it in its report.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from quiesce._safe.printed import logger
from quiesce.kernel.base import (
    DEFAULT_GRACE,
    OPEN,
    OUR_MODULES,
    CancelToken,
    Grace,
    Reason,
    Rung,
    caller_site,
    check_function,
    check_seconds,
    label_of,
)
from quiesce.kernel.scope import FAILED, FINISHED, ChildCancelled, Handle, current_backend

from .calling_task import CallingTask, owner_of

if TYPE_CHECKING:
    from quiesce.kernel.scope import Scope

T = TypeVar("T")


async def shielded(
    fn: Callable[..., Awaitable[T]],
    *args: Any,
    within: float | None = None,
    scope: Scope | None = None,
) -> T:
    """Run `fn(*args)` to its end, even if you are cancelled meanwhile; return its result.

    ```python
    try:
        await serve(connection)
    finally:
        await shielded(connection.say_goodbye, within=2)
    ```

    Your cancellation is raised when `fn` has ended. `fn` runs in its own task, in a copy of your context. Its
    error is raised as itself; if you were cancelled too, the cancellation is raised and the error is its
    cause.

    `within` bounds it, in seconds; by default it has the time that the owner's `Grace` gives to a clean-up
    (`Grace.cancel`). When that is over, `fn` is cancelled once and `TimeoutError` is raised. If it ignores
    its cancellation too, it is logged, and `scope` (by default the current scope) still owns it. The owner
    may be stopping, or settled: that is when `shielded` is needed.
    """
    check_function("shielded", fn)
    if within is not None:
        check_seconds("within", within)
    if _is_too_late_for_a_task():
        return await _run_in_place(fn, args, DEFAULT_GRACE.cancel if within is None else within)
    backend = current_backend()
    owner = owner_of(backend, scope)
    seconds = owner.grace.cancel if within is None else within
    site = caller_site()
    core = backend.make_core(
        name=f"shielded {label_of(fn)}",
        site=site,
        on_error="report",
        grace=owner.grace,
        parent=owner,
        token_above=CancelToken(),
        shielded=True,
    )
    call = CallingTask(core)
    core.when_child_fails(call.child_failed)
    handle = backend.make_handle(core, fn, site)
    core.add(handle)
    # One cancel when its time is over, and none at the later rungs: a second would interrupt its clean-up.
    handle._on_stop = lambda rung: rung is not Rung.CANCEL
    try:
        core.start(handle, fn, args)
    except BaseException:
        core.settle()
        raise
    expiry = partial(_expire, handle, Reason("timeout", f"it took longer than {seconds:g} s"))
    timer = backend.call_at(backend.now() + seconds, expiry) if seconds < math.inf else None
    cancelled = await call.wait_until(call.has_ended)
    if timer is not None:
        timer.cancel()
    late = await call.leave(None)
    call.finish()
    for other, failure in call.failures:
        if other is not handle:
            logger.error("%s in %r failed", other.name, core.label, exc_info=failure)
    error = _error_of(handle)
    cancelled = late if cancelled is None else cancelled
    if cancelled is not None:
        if error is not None:
            cancelled.__cause__ = error
        raise cancelled
    if error is not None:
        raise error
    result: T = handle._value
    return result


def _expire(handle: Handle, reason: Reason) -> None:
    """The time of the clean-up is over: cancel it."""
    core = handle._core
    # As a stop of its scope, so that what the clean-up has opened ends too. If that scope is being stopped
    # already (the clean-up may have closed it itself), a stop would change nothing: cancel the task directly.
    if core.state is OPEN:
        core.stop(reason, Grace(cooperate=0.0, cancel=core.grace.terminate, terminate=0.0, kill=0.0))
    else:
        handle._note_reason(reason)
        handle._climb(Rung.CANCEL)


def _error_of(handle: Handle) -> BaseException | None:
    if handle.state == FINISHED:
        return None
    if handle.state == FAILED:
        error: BaseException = handle._value
        return error
    reason = handle.reason
    if reason is None or reason.kind != "timeout":
        return ChildCancelled(handle.name, reason)
    how = "was cancelled"
    if not handle.done:
        # A clean-up of quiesce itself waits for something else that does not end, such as a thread. To say
        # that it ignores its cancellation would blame the wrong code.
        is_ours = (getattr(handle._label, "__module__", None) or "").startswith(OUR_MODULES)
        how = f"{'still waits' if is_ours else 'ignores its cancellation'}, at {handle._stuck_at()}"
    return TimeoutError(f"the clean-up {handle.name!r} {how}: {reason.message}")


def _is_too_late_for_a_task() -> bool:
    """Whether this is the very end of a trio run, when the remaining async generators are finalised."""
    trio = sys.modules.get("trio")
    if trio is None or not trio.lowlevel.in_trio_task():
        return False
    try:
        return getattr(current_backend(), "over", False)
    except RuntimeError:  # this run has no backend, and none can be made now
        return True


async def _run_in_place(fn: Callable[..., Awaitable[T]], args: tuple[Any, ...], seconds: float) -> T:
    """Run the clean-up in the caller's own task, on trio."""
    import trio

    with trio.CancelScope(deadline=trio.current_time() + seconds, shield=True):
        return await fn(*args)
    raise TimeoutError(f"the clean-up {label_of(fn)!r} was cancelled: it took longer than {seconds:g} s")
