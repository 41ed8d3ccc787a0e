"""The owner task of somebody else's async context manager.

Task groups, cancel scopes, `asyncio.timeout` and whatever is built of them must be left by the task that entered
them, in the reverse order of entering. So nobody but the owner touches the context manager: one task enters it,
waits until it is asked to leave, and leaves it. All others only ask, from any task and in any order.

Invariants
- The owner is a child of a scope of its own. Closing is closing that scope: bounded, repeatable, from several tasks
  at once, through cancels, reported. Nothing of that is done here again.
- Entered means left: by asking first (`__aexit__(None, None, None)`), by a cancel when the time for that is over. One
  that is still being entered is cancelled, as its opener would be.
- The exception of an `async with` body is raised again inside the owner, the very object, so that transactions roll
  back and what the context manager suppresses is suppressed. Cancellations too: a cancelled transaction must
  not commit. But those are never suppressed for the body, whatever the context manager makes of them, and the
  owner itself is not cancelled by them, so that clean-up can await.
- If the owner's wait is cut short though nobody asked it to leave, the context manager has failed inside: a task group
  in it crashed, a timeout in it passed. Users are told at that moment, not when it has cleaned up.
- Processes that the context manager has started end with it, with their trees: see `owner_processes`.
- The owner refers to none of the objects that users hold, so that dropping those is noticed.
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
    """Raised where a context manager is used that is no longer held: it failed (see the cause) or was left."""


class ContextManagerOwner(Generic[T]):
    """What the owner task and those who ask it share."""

    value: T

    def __init__(self, cm: AbstractAsyncContextManager[T], core: ScopeCore, name: str, site: Site) -> None:
        self.cm = cm
        self.core = core
        self.name = name
        self.entered = False
        self.leaving = False
        self.thrown: BaseException | None = None  # what the body raised
        self.passed_on = False  # and whether the context manager let it pass
        self.broke = False
        self.told = False  # whether anybody has seen the failure
        self.unattended = False  # nobody is there any more who could
        self._nap = WaitQueue()
        self.processes: OwnerProcesses | None = None
        self.handle = core.backend.make_handle(core, name, site)
        self.handle._on_stop = self._on_stop

    # In the owner task

    async def hold(self) -> None:
        """Enter, wait, leave: the whole life of the owner."""
        try:
            if self.core.closed:  # trio begins what was cancelled before its first step
                backend = self.core.backend
                await backend.checkpoint_if_cancelled()
            async with self.cm as self.value:
                self.entered = True
                self.leaving = self.core.closed  # it was asked to stop, and entered all the same
                if self.processes is not None:
                    self.processes.guard()
                self.core.wake()
                await self._until_asked_to_leave()
                if self.thrown is not None:
                    raise self.thrown
        except BaseException as error:
            hide_frame(error, ContextManagerOwner.hold.__code__)
            failure = self._judge(error)
            if failure is not None and self.unattended and not is_cancel(failure):
                self._log(failure)
            if failure is error:
                raise
            if failure is not None:
                raise failure from None
        finally:
            self.leaving = True
            if self.processes is not None:
                self.processes.tell_to_go()
            self.handle._on_stop = None
            self.__dict__.pop("value", None)
            self.core.wake()

    async def _until_asked_to_leave(self) -> None:
        try:
            await self._nap.wait_until(lambda: self.leaving)
        except BaseException:
            self._broken()
            raise

    def _broken(self) -> None:
        if not self.leaving:
            self.leaving = self.broke = True
            if self.processes is not None:
                self.processes.look()
            default = Reason("error", f"{self.name} was ended from inside")
            self.core.stop(self.handle.reason or default)

    def _judge(self, error: BaseException) -> BaseException | None:
        """What of `error` is a failure of the context manager, and not the body's own coming back."""
        thrown = self.thrown
        if error is thrown:
            self.passed_on = True
            return None
        if thrown is not None and without_cancels(thrown) is None:
            # Cancel scopes inside may have made another cancellation of it, or a group with one in it.
            return without_cancels(error)
        return error

    # From outside

    def start(self) -> None:
        """Start the owner. With eager tasks it may have entered, and even left, when this returns."""
        self.core.children[self.handle] = None
        self.processes = OwnerProcesses.begin(self.core)
        self.core.start(self.handle, self.hold, ())

    def leave(self, thrown: BaseException | None = None) -> None:
        """Ask the owner to leave; only the first to ask says how."""
        if not self.leaving:
            self.leaving = True
            self.handle._asked_to_leave()
            self.thrown = thrown
            if self.processes is not None:
                self.processes.look()
        self._nap.wake_all()

    def _on_stop(self, rung: Rung) -> bool:
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
        """Until it can be used; an error or a cancellation meanwhile leaves nothing half entered."""
        core = self.core
        backend = core.backend
        while not (self.entered or self.handle.done or core.is_over()):
            try:
                await core.waiters.wait()
            except GeneratorExit:  # our coroutine is thrown away: nothing can be awaited
                backend.run_from_anywhere(partial(core.stop, Reason("parent", "its opener is gone")))
                raise
            except BaseException as mine:
                core.stop(reason_of_cancel(core, mine))
                await backend.wait_through(core.is_over, core.waiters)
                self.attach_failure(mine)
                raise
        if self.entered and not self.leaving:
            return
        core.stop(Reason("error", "cancelled from inside"))  # unless it was stopped, or has failed
        await backend.reraise(await backend.wait_through(core.is_over, core.waiters))
        raise_unchanged(self.take_failure() or self.not_held())

    # How it went

    @property
    def failure(self) -> BaseException | None:
        """What it raised, if it failed."""
        failures = self.core.failures
        return failures[0][1] if failures else None

    @property
    def has_ended_itself(self) -> bool:
        """Whether it has cut the owner short, and taken that back."""
        return self.broke and self.handle.state == FINISHED

    @property
    def has_suppressed(self) -> bool:
        """Whether it has ended well though the body's exception was raised in it."""
        return self.handle.state == FINISHED and not self.passed_on

    def take_failure(self) -> BaseException | None:
        """What it raised, for somebody who will raise it."""
        self.told = self.told or self.failure is not None
        return self.failure

    def attach_failure(self, cancelled: BaseException) -> None:
        """Somebody's cancellation goes first; let it carry what it raised, if it failed."""
        if self.failure is not None:
            cancelled.__cause__ = self.take_failure()

    def not_held(self) -> NotHeld:
        """The error for somebody who uses it after its end."""
        failure, core = self.failure, self.core
        if failure is not None:
            how = f"it failed: {failure!r}"
        elif self.broke:
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
        """Its users have let go of it."""
        core = self.core
        self.unattended = True
        if self.handle.done or core.closed:
            if self.failure is not None and not self.told:
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
            "context manager %r, made at %s, failed, and nobody has looked",
            self.name,
            describe(self.core._site),
            exc_info=failure,
        )
