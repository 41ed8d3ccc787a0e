"""Sync work in a thread that a scope owns: `to_thread`. How the thread behaves is in `thread_child`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, cast

from quiesce.kernel.base import Grace, Reason, Site, is_machinery, label_of, site_of
from quiesce.kernel.calls import owner_of
from quiesce.kernel.scope import Node, current_backend, current_node

from .limiter import SYNC_WORK, Limiter, slots_for
from .thread_child import ThreadChild

if TYPE_CHECKING:
    from quiesce.kernel.scope import Scope, ScopeCore

T = TypeVar("T")
Args = TypeVarTuple("Args")
_CALL_ENDED = Reason("parent", "the call in it has ended")


async def to_thread(
    fn: Callable[[Unpack[Args]], T],
    *args: *Args,
    scope: Scope | None = None,
    limiter: Limiter | None = None,
    grace: Grace | None = None,
    name: str | None = None,
) -> T:
    """Run `fn(*args)`, a sync function, in a thread; returns its result or raises its error.

    ```python
    def count_todos(path: str) -> int:
        token, found = current_token(), 0
        for line in open(path):
            token.raise_if_cancelled()      # here it hears that its caller was cancelled
            found += "TODO" in line
        return found

    found = await to_thread(count_todos, "app.log")
    ```

    The function sees the caller's context variables (its changes stay inside), and `current_token()` is a
    token of the thread's own. When the caller is cancelled or the scope is stopped, that token is set at
    once, and the thread has `grace.cooperate + grace.cancel` seconds to return (default: the scope's
    `Grace`). If it does not, the scope keeps it and names it in its reports, with the line where it is stuck;
    what it returns or raises later is logged and not used. The event loop is never blocked.

    At most 40 threads per loop run at the same time for callers that wait for them; a thread that its caller
    stopped waiting for no longer counts. If a caller has to wait for more than a second, that is logged, with
    the work that holds the threads. `limiter`, an anyio or trio `CapacityLimiter`, sets another limit, for
    which threads count until they end. `scope` is the owner (default: the current scope). A scope that is
    being stopped refuses with `ScopeClosed`, except for clean-up: code that was cancelled has the time that
    is left.
    """
    _check_sync_function(fn)
    return cast(T, await call_in_thread(fn, args, sys._getframe(1), scope, limiter, grace, name))


async def call_in_thread(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    caller: FrameType,
    scope: Scope | None = None,
    limiter: Limiter | None = None,
    grace: Grace | None = None,
    name: str | None = None,
    on_start: Callable[[], object] | None = None,
) -> Any:
    """`to_thread` for `caller`. `on_start` runs before the thread begins; if it raises, nothing begins."""
    backend = current_backend()
    opener = current_node.get()
    owner = owner_of(backend, scope)
    limiter = limiter or slots_for(SYNC_WORK, backend)
    site = _site_of_call(caller, opener)
    del caller  # the caller's frame refers to this one, which must not refer to it in turn
    clean_up_scope: ScopeCore | None = None
    # Clean-up, perhaps in a scope that takes no more children: a nested scope of its own, just for this call.
    if owner.takes_clean_up():
        owner = clean_up_scope = backend.make_core(
            name=label_of(name or fn), site=site, on_error="report", grace=owner.grace, parent=owner
        )
    try:
        return await _run_in_thread(
            ThreadChild(owner, name or fn, site, opener, limiter), fn, args, grace, on_start
        )
    finally:
        if clean_up_scope is not None:
            clean_up_scope.stop(_CALL_ENDED)


async def _run_in_thread(
    thread: ThreadChild,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    grace: Grace | None,
    on_start: Callable[[], object] | None,
) -> Any:
    limiter, backend, owner = thread.limiter, thread.owner.backend, thread.owner
    thread.check_owner_is_open()
    # On trio, a caller that is already cancelled must not start anything.
    await backend.checkpoint_if_cancelled()
    await limiter.acquire_on_behalf_of(thread)
    try:
        thread.check_owner_is_open()  # again: it may have been stopped while we waited for a slot
        if on_start is not None:
            on_start()
        thread.start(fn, args)
    except BaseException:
        limiter.release_on_behalf_of(thread)
        raise
    try:
        await thread.wait_for_outcome(grace or owner.grace)
        return thread.result_for_caller()
    finally:
        del thread  # it holds the error, whose traceback holds this frame: a cycle


def _site_of_call(caller: FrameType, opener: Node | None) -> Site | None:
    """The line that awaits `to_thread`; if its task does nothing else, the line that made the task."""
    return opener._site if opener is not None and is_machinery(caller) else site_of(caller)


def _check_sync_function(fn: object) -> None:
    """Raise an error that explains what is wrong if `fn` is async or not a function."""
    if isinstance(fn, CoroutineType):
        fn.close()  # or Python would also warn that it was never awaited
        raise TypeError(
            f"to_thread takes a sync function and its arguments, not a coroutine: await {label_of(fn)}(...) instead"
        )
    if not callable(fn):
        raise TypeError(
            "to_thread takes a sync function and its arguments: write to_thread(fn, arg), not "
            f"to_thread(fn(arg)), which here gave it {type(fn).__name__}"
        )
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
        raise TypeError(
            f"to_thread takes a sync function, and {label_of(fn)} is async: await it, or spawn it in a scope"
        )
