"""A public object for something in an owner task that has users before it is open: a connection, a session.

`own` returns its `Held` only when the context manager was entered. But a connection may be closed while it is
being opened, or be given what to send. So here users hold it from the start (`Holding`), and opening it is a
wait of its own.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Generic, TypeVar

from quiesce.kernel.base import SETTLED, is_cancel, raise_unchanged, without_cancels
from quiesce.kernel.scope import (
    Cancellable,
    Closable,
    current_backend,
    log_report,
    reason_of_block,
    when_ended,
)

from .context_manager_owner import NotHeld
from .owned import Held, Owned, check_context_manager

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.kernel.base import CancelToken, Grace, Reason, Site, StopReport
    from quiesce.kernel.scope import Scope, ScopeCore

T = TypeVar("T")


class Holding(Held[T]):
    """A context manager that an owner task is entering, holds, or has exited."""

    def start(self) -> None:
        """Start the owner task. With eager tasks it may have entered, and even exited, when this returns."""
        self._keeper.begin()

    @property
    def core(self) -> ScopeCore:
        """The scope that it lives in."""
        return self._keeper.core

    @property
    def entered(self) -> bool:
        """Whether it was entered; still true after its end."""
        return self._keeper.entered

    async def wait_until_entered(self) -> None:
        """Wait until it can be used, or has ended since.

        Raises its error, or `NotHeld` if it was stopped before it was entered. If you are cancelled, it has
        ended when your cancellation is raised.
        """
        try:
            await self._keeper.wait_until_entered()
        except NotHeld:
            # Entered, and ended since: for the caller that is no different from an end a moment later.
            if not self.entered or self._keeper.failure is not None:
                raise

    async def leave(self, error: BaseException | None) -> bool:
        """Exit it at the end of a block whose body has raised `error`; returns whether it suppresses that.

        As the end of `async with own(...)`, but any task may call it. Nothing cancels the body if it fails
        meanwhile, because nobody knows which task runs the body.
        """
        owner, core = self._keeper, self.core
        if isinstance(error, GeneratorExit):  # the block is in a generator that is being closed: not an error
            if not core.backend.is_current():
                return False
            error = None
        if not core.closed:
            owner.leave(error)  # before the stop, which alone would exit it without the error
        try:
            await Closable.close(self, reason=reason_of_block(core, error))
        except BaseException as mine:
            if not is_cancel(mine):
                raise
            if error is None or not is_cancel(error):
                owner.attach_failure(mine)
                raise
        finally:
            if core.state is not SETTLED:
                log_report(core.report())
        if error is not None and without_cancels(error) is None:
            owner.attach_failure(error)
            return False
        failure = owner.take_failure()
        if failure is not None:
            raise_unchanged(failure, error)
        return error is not None and error is owner.body_error and owner.has_suppressed

    def take_failure(self) -> BaseException | None:
        """What it raised, for a caller that will raise or report it."""
        return self._keeper.take_failure()

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call `callback()` when the owner task has ended, even if it never started; at once if it has."""
        when_ended(self._keeper.handle, callback)


def make_holding(
    cm: AbstractAsyncContextManager[T],
    name: str,
    site: Site,
    *,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> Holding[T]:
    """Prepare to hold `cm`, made at `site`; `start()` then starts the owner task that enters it."""
    # Two steps, because an eager owner may run code that uses the holding before `start()` has returned.
    check_context_manager(cm)
    return Holding(Owned(cm, scope, name, grace, site)._prepare(current_backend()))


def start_holding(
    cm: AbstractAsyncContextManager[T],
    name: str,
    site: Site,
    *,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> Holding[T]:
    """Start an owner task that enters `cm`, without waiting for it."""
    holding = make_holding(cm, name, site, grace=grace, scope=scope)
    holding.start()
    return holding


class SessionFace(Cancellable, Generic[T]):
    """What users hold of something in an owner task. A subclass sets `_holding` when it is opened."""

    _holding: Holding[T] | None = None

    def _find_core(self) -> ScopeCore | None:
        return self._holding.core if self._holding is not None else None

    def _held(self) -> Holding[T]:
        """What the owner task holds; an error before it was opened."""
        if self._holding is None:
            raise self._how_to_open()
        return self._holding

    @property
    def token(self) -> CancelToken:
        """A token that is cancelled, with the reason, as soon as it is being closed or has failed."""
        return self._open_core().token

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Close it, wait until everything in it has ended, and report. From any task, any number of times.

        Bounded by `deadline` seconds, or its `Grace`. Raises the error that has ended it, if there was one.
        If you are cancelled meanwhile, the close goes on and your cancellation is raised after it; the report
        is then in `report`.
        """
        return await self._held().close(deadline=deadline, grace=grace, reason=reason)
