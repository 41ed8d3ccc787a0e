"""The owner task of an async context manager.

Task groups, cancel scopes, `asyncio.timeout` and everything built on them must be exited by the task that
entered them, in reverse order. So only the owner touches the context manager: this one task enters it, waits
until it is told to leave, and exits it. Other tasks only tell it to, at any time and in any order.

Invariants
- The owner is a child of a scope of its own. Closing the context manager means closing that scope: bounded,
  repeatable, from several tasks at once, through cancels, reported. None of that is done again here.
- What was entered is exited: first by telling the owner (`__aexit__(None, None, None)`), and by a cancel when
  the time for that is over. A context manager that is still being entered is cancelled, as it would be in the
  task of its user.
- The exception of an `async with` body is raised again inside the owner, the same object, so that
  transactions roll back and what the context manager suppresses is suppressed. So are cancellations: a
  cancelled transaction must not commit. But for the body they are never suppressed, whatever the context
  manager does with them, and the owner itself is not cancelled by them, so that its clean-up can await.
- If the owner's wait is interrupted before it was told to leave, the context manager has broken down inside:
  a task group in it crashed, or a timeout in it expired. Users see that at once, not only after the clean-up.
- Processes that the context manager has started end with it, with their trees: see `owner_processes`.
- The owner refers to none of the objects that users hold, so that it is noticed when those are dropped.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from quiesce._safe.printed import logger
from quiesce.kernel.base import (
    Reason,
    Rung,
    Site,
    WaitQueue,
    describe,
    hide_frame,
    is_cancel,
    raise_unchanged,
    without_cancels,
)
from quiesce.kernel.contain import OwnerProcesses
from quiesce.kernel.scope import FINISHED, reason_of_cancel

if TYPE_CHECKING:
    from quiesce.kernel.scope import ScopeCore

T = TypeVar("T")


class NotHeld(RuntimeError):
    """Raised when a context manager is used after its end: it failed (see the cause) or was exited."""


class ContextManagerOwner(Generic[T]):
    """The state that the owner task shares with the tasks that use it."""

    value: T

    def __init__(self, cm: AbstractAsyncContextManager[T], core: ScopeCore, name: str, site: Site) -> None:
        self.cm = cm
        self.core = core
        self.name = name
        self.entered = False
        self.leaving = False
        self.body_error: BaseException | None = None  # what the body raised, to be raised in the owner
        self.body_error_came_back = False  # the context manager did not suppress it
        self.broke_down = False  # from inside, before it was told to leave
        self.failure_was_seen = False  # if not, it is logged when the last user drops it
        self.was_dropped = False  # no user is left who could see a failure
        self._leave_queue = WaitQueue()  # the owner waits here until it is told to leave
        self.processes: OwnerProcesses | None = None
        self.handle = core.backend.make_handle(core, name, site)
        self.handle._on_stop = self._on_stop

    # In the owner task

    async def hold(self) -> None:
        """Enter, wait, exit: the whole life of the owner."""
        try:
            if self.core.closed:
                # On trio a task that was cancelled before its first step still runs up to its first
                # checkpoint, so give it one: the context manager is then not entered at all.
                backend = self.core.backend
                await backend.checkpoint_if_cancelled()
            async with self.cm as self.value:
                self.entered = True
                self.leaving = self.core.closed  # true if it ignored the stop while it was being entered
                if self.processes is not None:
                    self.processes.guard()
                self.core.wake()
                await self._wait_until_leaving()
                if self.body_error is not None:
                    raise self.body_error
        except BaseException as error:
            hide_frame(error, ContextManagerOwner.hold.__code__)
            failure = self._judge(error)
            if failure is not None and self.was_dropped and not is_cancel(failure):
                self._log(failure)
            if failure is error:
                raise
            if failure is not None:
                raise failure from None
            # Else only the body's own error came back. It goes on in the body's task, so for the owner this
            # is an ordinary end, and not a failure to report a second time.
        finally:
            self.leaving = True
            if self.processes is not None:
                self.processes.tell_to_go()
            self.handle._on_stop = None
            self.__dict__.pop("value", None)
            self.core.wake()

    async def _wait_until_leaving(self) -> None:
        try:
            await self._leave_queue.wait_until(lambda: self.leaving)
        except BaseException:
            self._break_down()
            raise

    def _break_down(self) -> None:
        if not self.leaving:
            self.leaving = self.broke_down = True
            if self.processes is not None:
                self.processes.look()
            default = Reason("error", f"{self.name} was ended from inside")
            self.core.stop(self.handle.reason or default)

    def _judge(self, error: BaseException) -> BaseException | None:
        """The part of `error` that is a failure of the context manager, and not the body's own error."""
        body_error = self.body_error
        if error is body_error:
            self.body_error_came_back = True
            return None
        if body_error is not None and without_cancels(body_error) is None:
            # The body was cancelled. Cancel scopes inside may have replaced that cancellation by another, or
            # wrapped it in a group, so its identity says nothing; only what else is in it counts.
            return without_cancels(error)
        return error

    # From other tasks

    def begin(self) -> None:
        """Start the owner. With eager tasks it may have entered, and even exited, when this returns."""
        try:
            self.core.add(self.handle)
            self.processes = OwnerProcesses.begin(self.core)
            self.core.start(self.handle, self.hold, ())
        except BaseException:
            self.core.settle()
            raise

    def leave(self, body_error: BaseException | None = None) -> None:
        """Tell the owner to leave, and to raise `body_error` inside. Only the first call counts."""
        if not self.leaving:
            self.leaving = True
            self.handle._asked_to_leave()
            self.body_error = body_error
            if self.processes is not None:
                self.processes.look()
        self._leave_queue.wake_all()

    def _on_stop(self, rung: Rung) -> bool:
        """Tell the owner to leave instead of cancelling it: see `Handle._on_stop`."""
        # Processes are found before the context manager exits, while their parents are still there to show
        # whose they are, and signalled only when it has had its chance to end them itself.
        if self.processes is not None:
            if rung is Rung.CANCEL:
                self.processes.look()
            else:
                self.processes.tell_to_go()
        if rung is Rung.CANCEL and self.entered:
            self.leave()
            return True
        return False

    async def wait_until_entered(self) -> None:
        """Wait until it can be used. If this raises, nothing is left half entered."""
        core = self.core
        backend = core.backend
        while not (self.entered or self.handle.done or core.is_over()):
            try:
                await core.waiters.wait()
            except GeneratorExit:  # the caller's coroutine is being closed: nothing can be awaited
                backend.run_from_anywhere(partial(core.stop, Reason("parent", "its opener was dropped")))
                raise
            except BaseException as mine:
                core.stop(reason_of_cancel(core, mine))
                await backend.wait_through(core.is_over, core.waiters)
                self.attach_failure(mine)
                raise
        if self.entered and not self.leaving:
            return
        core.stop(Reason("error", "cancelled from inside"))  # has no effect if it was stopped, or has failed
        await backend.reraise(await backend.wait_through(core.is_over, core.waiters))
        raise_unchanged(self.take_failure() or self.not_held())

    # How it ended

    @property
    def failure(self) -> BaseException | None:
        """What it raised, if it failed."""
        failures = self.core.failures
        return failures.kept[0][1] if failures is not None else None

    @property
    def has_ended_itself(self) -> bool:
        """Whether it has interrupted the owner, and then suppressed that, as `move_on_after` does."""
        return self.broke_down and self.handle.state == FINISHED

    @property
    def has_suppressed(self) -> bool:
        """Whether it has suppressed the error of the body."""
        return self.handle.state == FINISHED and not self.body_error_came_back

    def take_failure(self) -> BaseException | None:
        """What it raised, for a caller that will raise or report it. From now on it counts as seen."""
        self.failure_was_seen = self.failure_was_seen or self.failure is not None
        return self.failure

    def attach_failure(self, cancelled: BaseException) -> None:
        """Make its failure, if any, the cause of the caller's cancellation, which takes precedence."""
        if self.failure is not None:
            cancelled.__cause__ = self.take_failure()

    def not_held(self) -> NotHeld:
        """The error for a caller that uses it after its end."""
        failure, core = self.failure, self.core
        if failure is not None:
            how = f"it failed: {failure!r}"
        elif self.broke_down:
            how = "it ended by itself"
        elif not self.entered:
            how = f"it was stopped while it was being entered ({core.reason})"
        else:
            how = f"it was left ({core.reason})"
        error = NotHeld(
            f"context manager {self.name!r}, made at {describe(core._site)}, is not held any more: {how}"
        )
        error.__cause__ = self.take_failure()
        return error

    def dropped(self, user: object) -> None:
        """`user`, the last object through which it could be used, was dropped: close it, and warn."""
        core = self.core
        self.was_dropped = True
        if self.handle.done or core.closed:
            if self.failure is not None and not self.failure_was_seen:
                self._log(self.failure)
            return
        why = Reason("parent", "dropped without close()")
        core.backend.run_from_anywhere(partial(core.stop, why))
        warnings.warn(
            f"context manager {self.name!r}, made at {describe(core._site)}, was dropped without close(): "
            "it is being left",
            ResourceWarning,
            source=user,
            stacklevel=2,
        )

    def _log(self, failure: BaseException) -> None:
        logger.error(
            "context manager %r, made at %s, failed, and its error was never retrieved",
            self.name,
            describe(self.core._site),
            exc_info=failure,
        )
