"""The task that made a scope for the length of one call, and waits for it.

`guarded` and `shielded` are calls, not blocks: the caller's context stays its own, nobody interrupts it, and
it leaves when the scope is over. Two things depend on knowing who it is. A closer deep inside the scope
must not wait for this caller, which waits for that closer (`who_waits_for` asks `host` for it). And
what a child raises belongs to the caller, as long as the call lasts; from what the call had to leave
behind, errors go to the log.

The block of an `Inflight` is like that too: its handlers do not run in its context, and never interrupt it.
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
    """The scope that owns what a call opens: the one that it was given, or the current one."""
    if scope is None:
        return current_core(backend)
    owner = scope._opened()
    if owner.backend is not backend:
        raise RuntimeError(f"scope {scope.name!r} belongs to another event loop than the caller's")
    return owner


class CallingTask(BlockTask):
    """Whoever waits, in the end, for a scope that is not its context."""

    leaving = True  # there is no body that would use what is nested

    def __init__(self, core: ScopeCore) -> None:
        # Without `enter`: that puts the scope into the context of the task at hand, as for a body.
        self._core = core
        self.task = core.backend.current_task()
        self.failures: list[tuple[Handle, BaseException]] = []
        self.over = False
        core.host = self

    def is_current(self) -> bool:
        """Whether the calling code runs in this task."""
        return self._core.backend.current_task() is self.task

    def may_leave(self) -> bool:
        """Whoever waits here, waits for itself."""
        return self._core.backend.is_current()

    def cancel_body(self, reason: Reason) -> bool:
        """There is none. It sees the end of the children, and that is all it waits for."""
        return False

    def child_failed(self, handle: Handle, error: BaseException) -> None:
        """Keep what a child raised, and let the caller look."""
        if self.over:
            logger.error(
                "%s in %r failed after the call had returned", handle.name, self._core.label, exc_info=error
            )
        else:
            self.failures.append((handle, error))
            self._core.wake()

    def children_gone(self) -> bool:
        """Whether the work is done, or its time is over."""
        return not self._core.children or self._core.is_over()

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """End the scope and wait until it is over; returns the caller's own cancellation."""
        self.begin_to_leave(error)
        if self._core.state is SETTLED:
            return error
        late = await self.wait_until(self._core.is_over)
        return late if error is None else error

    async def wait_until(self, ready: Callable[[], bool]) -> BaseException | None:
        """Wait through cancels, and through a Ctrl-C that trio raises here; returns the first of them."""
        interrupted: BaseException | None = None
        while True:
            try:
                late = await self._core.backend.wait_through(ready, self._core.waiters)
            except KeyboardInterrupt as exc:
                interrupted = exc if interrupted is None else interrupted
            else:
                return late if interrupted is None else interrupted

    def go(self) -> None:
        """The call returns. What it leaves is named, stays owned, and has the log for its errors."""
        self.over = True
        self._core.host = None
        if self._core.state is SETTLED:
            self._core.on_child_error = None  # nobody is left to fail; and it would hold us, as we hold it
        else:
            log_report(self._core.report())
