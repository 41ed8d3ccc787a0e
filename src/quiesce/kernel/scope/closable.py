"""What all resources that are opened, owned and closed have in common.

A process, a server, a connection, a session: each lives in a scope of its own, may be closed from any task
any number of times, and reports. A class for such a resource says which scope that is (`_find_core`) and how
to open it (`_how_to_open`), and inherits the rest.

Rules
-----
- The end of an `async with` block closes the resource; the reason says how the body ended.
- If the body was cancelled, that cancellation goes on. Another one, which comes while we close, does not take
  its place, and so does not hide where the body was.
- If the garbage collector exits the block, because its event loop has ended, there is nothing to wait for.
- A block has no caller to return its report to: what is left over then is logged.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from quiesce.kernel.base import SETTLED, Reason, as_reason, check_grace, is_cancel

from .closing import close_core, reason_of_block
from .stop_listeners import log_report

if TYPE_CHECKING:
    from quiesce.kernel.base import Grace, StopReport

    from .lifecycle import ScopeCore


class Closable:
    """A resource that is opened, owned by a scope, and closed from any task."""

    __slots__ = ()

    def _find_core(self) -> ScopeCore | None:
        """The scope that it lives in; None before it was opened."""
        raise NotImplementedError  # abstract: each class has its own

    def _how_to_open(self) -> Exception:
        """The error for a caller that uses it before it is open."""
        raise NotImplementedError  # abstract: each class has its own

    def _open_core(self) -> ScopeCore:
        core = self._find_core()
        if core is None:
            raise self._how_to_open()
        return core

    @property
    def closed(self) -> bool:
        """Whether it is closed, or being closed."""
        core = self._find_core()
        return core is not None and core.closed

    @property
    def report(self) -> StopReport | None:
        """What the last `close()`, or its end, has reported; None before."""
        core = self._find_core()
        if core is None:
            return None
        if core.last_report is None and core.state is SETTLED:  # its owner has stopped it, without a report
            return core.report()
        return core.last_report

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop it, wait until everything in it has ended, and report. From any task, any number of times.

        Bounded by `deadline` seconds, or its `Grace`: what is still running then is named in the report,
        stays owned, and can be closed again. If you are cancelled meanwhile, the stop goes on and your
        cancellation is raised after it; the report is then in `report`.
        """
        return await close_core(self._open_core(), deadline, grace, reason)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core = self._open_core()
        if isinstance(error, GeneratorExit) and not core.backend.is_current():
            self._lost_its_loop()
            return
        try:
            await self._close_block(reason_of_block(core, error))
        except BaseException as failure:
            if error is None or not (is_cancel(error) and is_cancel(failure)):
                raise
            # It carries what failed meanwhile, and that must not get lost with it.
            if error.__cause__ is None:
                error.__cause__ = failure.__cause__
        finally:
            if core.state is not SETTLED and core.last_report is not None:
                log_report(core.last_report)

    async def _close_block(self, reason: Reason) -> None:
        """Close it at the end of its block."""
        await self.close(reason=reason)

    def _lost_its_loop(self) -> None:
        """Signal what can be signalled without an event loop: the loop has ended before the block."""


class Cancellable(Closable):
    """A `Closable` that can also be stopped without waiting, from any thread."""

    __slots__ = ()

    def cancel(self, reason: Reason | str | None = None, *, grace: Grace | None = None) -> None:
        """Begin to stop it; from any thread, without waiting. A second call makes the stop faster."""
        core = self._open_core()
        check_grace(grace)
        why = as_reason(reason, Reason("user"))
        core.backend.run_from_anywhere(lambda: core.stop(why, grace, hurry=core.closed and grace is None))
