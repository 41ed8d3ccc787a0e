"""Clean-up that is not cut short.

The clean-up runs in a task of its own, in a small scope that hangs below the owner but is not stopped with it
(`late`): it is when the owner stops that it is needed. So whoever cancels the caller, once or five times,
reaches only the caller's wait. Two more things would reach the clean-up itself, and may not:

- the end of `asyncio.run` or `trio.run`, which cancels whatever is left: a child of a `late` scope is not;
- the caller's token, which is cancelled by then. The clean-up has a token of its own, or a tool that looks
  at `current_token()` would refuse to work in it.

At the very end of a trio run, where the async generators that are left are finalised, no task can be started
any more: there the clean-up runs in the caller's own task, under a shield with the same deadline.

What bounds it is its own time alone. When that is over it is cancelled, once, and has the `terminate` seconds
of the owner's `Grace` to react; then it is left to the owner, which names it in its report.
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
    """Run `fn(*args)` to its end, however often the caller is cancelled meanwhile; return its result.

    ```python
    try:
        await serve(connection)
    finally:
        await shielded(connection.say_goodbye, within=2)
    ```

    Your cancellation is raised when `fn` has ended. `fn` runs in its own task, in a copy of your context.
    Its error is raised as itself; if you were cancelled too, the cancellation is raised and the error is its
    cause.

    `within` bounds it, in seconds; by default it has as long as the owner's `Grace` gives to a clean-up
    (`Grace.cancel`). When that is over, `fn` is cancelled once and `TimeoutError` is raised. If it then ignores
    even its cancellation, it is logged, and `scope` (the current scope, unless given) goes on owning it. The
    owner may be stopping, or have ended: that is what this is for.
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
        late=True,
    )
    call = CallingTask(core)
    core.on_child_error = call.child_failed
    handle = backend.make_handle(core, fn, site)
    core.children[handle] = None
    handle._on_stop = lambda rung: rung is not Rung.CANCEL  # cancelled once, and never again by us
    try:
        core.start(handle, fn, args)
    except BaseException:
        core.settle()
        raise
    expiry = partial(_expire, handle, Reason("timeout", f"it took longer than {seconds:g} s"))
    timer = backend.call_at(backend.now() + seconds, expiry) if seconds < math.inf else None
    cancelled = await call.wait_until(call.children_gone)
    if timer is not None:
        timer.cancel()
    late = await call.leave(None)
    call.go()
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
    core = handle._core
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
        # Ours wait on for what somebody else does not end, such as a thread: they are not what is deaf.
        is_ours = (getattr(handle._label, "__module__", None) or "").startswith("quiesce.")
        how = f"{'still waits' if is_ours else 'ignores its cancellation'}, at {handle._stuck_at()}"
    return TimeoutError(f"the clean-up {handle.name!r} {how}: {reason.message}")


def _is_too_late_for_a_task() -> bool:
    """Whether this is the very end of a trio run, where the generators that are left are finalised."""
    trio = sys.modules.get("trio")
    if trio is None or not trio.lowlevel.in_trio_task():
        return False
    try:
        return getattr(current_backend(), "over", False)
    except RuntimeError:  # it was not in use so far, and cannot begin now
        return True


async def _run_in_place(fn: Callable[..., Awaitable[T]], args: tuple[Any, ...], seconds: float) -> T:
    import trio

    with trio.CancelScope(deadline=trio.current_time() + seconds, shield=True):
        return await fn(*args)
    raise TimeoutError(f"the clean-up {label_of(fn)!r} was cancelled: it took longer than {seconds:g} s")
