"""The task that makes a scope for the duration of one call, and waits for it.

`guarded` and `shielded` are calls, not blocks: they do not change the caller's context, the scope never
cancels the caller, and the call returns when the scope has settled or expired. Two things depend on knowing
the caller's task. A closer deep inside the scope must not wait for this caller, which waits for that closer
(`who_waits_for` finds it as the `host`). And what a child raises belongs to the caller as long as the call
lasts; errors of what the call had to leave running go to the log.

The block of an `Inflight` is similar: its handlers do not run in its context, and never cancel its body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quiesce._safe.printed import logger
from quiesce.kernel.base import SETTLED, Reason
from quiesce.kernel.scope import BlockTask, Scope, ScopeCore, current_core, log_report

if TYPE_CHECKING:
    from quiesce.kernel.scope import Backend, Handle


def owner_of(backend: Backend, scope: Scope | None) -> ScopeCore:
    """The scope that owns what a call opens: `scope` if it is given, or the current scope."""
    if scope is None:
        return current_core(backend)
    owner = scope._opened()
    if owner.backend is not backend:
        raise RuntimeError(f"scope {scope.name!r} belongs to another event loop than the caller's")
    return owner


class CallingTask(BlockTask):
    """The task that waits for a scope which is not its current scope."""

    leaving = True  # there is no body that could be using the nested scopes

    def __init__(self, core: ScopeCore) -> None:
        # Without `enter`, which would make `core` the current scope of this task, as for a body.
        self._core = core
        self.task = core.backend.current_task()
        self.failures: list[tuple[Handle, BaseException]] = []
        self.has_returned = False
        core.enter_block(self)

    def is_current(self) -> bool:
        """Whether the calling code runs in this task."""
        return self._core.backend.current_task() is self.task

    def may_leave(self) -> bool:
        """Whether the event loop is running."""
        return self._core.backend.is_current()

    def cancel_body(self, reason: Reason) -> bool:
        """Always False: there is no body, and the caller only waits for the children, which are stopped."""
        return False

    def child_failed(self, handle: Handle, error: BaseException) -> None:
        """Keep what a child raised, and wake the caller; log it if the call has returned."""
        if self.has_returned:
            logger.error(
                "%s in %r failed after the call had returned", handle.name, self._core.label, exc_info=error
            )
        else:
            self.failures.append((handle, error))
            self._core.wake()

    def has_ended(self) -> bool:
        """Whether all children have ended, or the time of the scope is over."""
        return not self._core.children or self._core.is_over()

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Stop the scope and wait until it has settled or expired; returns the caller's own cancellation."""
        self.begin_to_leave(error)
        if self._core.state is SETTLED:
            return error
        late = await self.wait_until(self._core.is_over)
        return late if error is None else error

    async def wait_until(self, ready: Callable[[], bool]) -> BaseException | None:
        """Wait until `ready()`, through cancels and Ctrl-C; returns the first of them, if any."""
        # `wait_through` deals with cancels. But trio raises a Ctrl-C in the main task wherever that is, so
        # also here, where it would leave the children behind.
        interrupted: BaseException | None = None
        while True:
            try:
                late = await self._core.backend.wait_through(ready, self._core.waiters)
            except KeyboardInterrupt as exc:
                interrupted = exc if interrupted is None else interrupted
            else:
                return late if interrupted is None else interrupted

    def finish(self) -> None:
        """The call is about to return. What is left over is logged, stays owned, and logs its own errors."""
        self.has_returned = True
        self._core.leave_block()
        if self._core.state is SETTLED:
            # No child is left that could fail, and the callback would make a reference cycle.
            self._core.when_child_fails(None)
        else:
            log_report(self._core.report())
