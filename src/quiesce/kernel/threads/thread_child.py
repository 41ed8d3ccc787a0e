"""A thread as a child of a scope.

Python cannot stop a thread, only ask it to stop. So a thread is a child like any other (it has a token, a
name, a place where it is stuck, and an end that it reports), except that its ladder has one rung: the token.

Rules
- The caller waits for the thread until it is cancelled or its scope is stopped. Cancelled, it sets the
  thread's token, keeps waiting for the thread's grace through any further cancels, and then raises its
  cancellation, with or without the thread.
- An outcome that comes after the caller was cancelled is logged, and noted in the report. It is never
  returned, never raised, and never counts as a failure of the scope.
- A thread stays in its scope until it has really ended. It keeps its slot until then, or until its caller no
  longer waits for it: see `limiter`.
- A thread that its caller has abandoned moves into a scope of its own, nested in the owner: the normal end of
  a block waits for children without limit, but for nested scopes only as long as the grace lasts.
- Everything here runs in the loop's own thread, except `_work`, which runs in the other one and reports back
  by `run_from_anywhere`. If the loop has ended by then, the report is dropped.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from threading import get_ident
from typing import Any

from quiesce._safe.printed import logger
from quiesce.kernel.base import (
    Grace,
    Reason,
    Rung,
    Site,
    Timer,
    TokenCancelled,
    WaitQueue,
    label_of,
    thread_stuck_at,
)
from quiesce.kernel.scope import (
    CANCELLED,
    FAILED,
    FINISHED,
    KEPT_FAILURES,
    PENDING,
    RUNNING,
    Child,
    ChildState,
    Handle,
    Node,
    ScopeClosed,
    ScopeCore,
    current_node,
)

from .idle_threads import Delivery, run_in_thread
from .limiter import Limiter, Slots

NO_GRACE = Grace(cancel=0.0, terminate=0.0, kill=0.0)
LOOK_AGAIN = 0.05  # seconds: trio does not wake a waiting task for a second cancel, so there it has to look

# Raised in a coroutine, these mean its own end or cancel: they must not come out of a thread's function.
_NOT_FOR_A_COROUTINE = (StopIteration, GeneratorExit, asyncio.CancelledError)


class ThreadChild(Child):
    """A thread as a child of a scope."""

    __slots__ = ("began", "callers", "fn", "has_caller", "ident", "limiter", "opener", "owner")

    _kind = "thread"

    def __init__(
        self, owner: ScopeCore, label: object, site: Site | None, opener: Node | None, limiter: Limiter
    ) -> None:
        super().__init__(owner, label, site)
        self.callers = WaitQueue()
        self.owner = owner
        self.opener = opener
        self.limiter = limiter
        self.ident: int | None = None
        self.has_caller = True  # a caller waits for it, and will take its outcome

    # As a child

    def _holder_above(self) -> Node:
        # The caller's token where that is possible: a cancel from another thread sets it at once, even if the
        # loop is busy. The scope's own token is set by the loop.
        opener, owner = self.opener, self.owner
        if opener is not None and (opener._core is owner or opener._core.backend is not owner.backend):
            return opener
        return owner

    def _climb(self, rung: Rung) -> None:
        """Nothing can be done beyond the token, which is set; when its time is over, wake its caller."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)
        if rung >= Rung.TERMINATE:
            self.wake_caller()

    def _is_at_work(self, *, loop_goes_on: bool) -> bool:
        """Whether the thread is working. Its `state` is not enough: the loop sets it, and may have ended."""
        return self.ident is not None

    def _stuck_at(self) -> str:
        """The line where the thread is now."""
        frame = sys._current_frames().get(self.ident) if self.ident is not None else None
        if frame is None:
            return "its very beginning or end"
        if frame.f_code is ThreadChild._work.__code__:
            return f"{label_of(self.fn)}, which runs no Python code"
        return thread_stuck_at(self.ident)

    @property
    def over(self) -> bool:
        """Whether the thread has ended."""
        return self.state != PENDING and self.state != RUNNING

    def wake_caller(self) -> None:
        """Let a waiting caller check again whether it should go on waiting."""
        self.callers.wake_all()

    # In the thread

    def check_owner_is_open(self) -> None:
        """Raise `ScopeClosed` if the owner is being stopped: then nothing is started in it."""
        if self.owner.closed:
            raise self.owner.refusal(f"start thread {self.name!r} in")

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Add the thread to its scope, and begin."""
        context = copy_context()
        context.run(current_node.set, self)
        self.fn = fn
        self.began = time.monotonic()
        self.state = RUNNING
        self.owner.add(self)
        try:
            run_in_thread(self.name, partial(self._work, context, fn, args))
        except BaseException:  # the system has no more threads: nothing has begun
            self.owner.discard(self)
            raise

    def _work(self, context: Context, fn: Callable[..., Any], args: tuple[Any, ...]) -> Delivery:
        """Call the function, in the thread; returns what reports the outcome to the loop."""
        self.ident = get_ident()
        state: ChildState = FINISHED
        value: Any
        try:
            value = context.run(fn, *args)
        except BaseException as error:
            value = error
            # Without this frame: it refers to this child, which refers to the error.
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            state = CANCELLED if isinstance(error, TokenCancelled) and self.token.cancelled else FAILED
        self.ident = None
        try:
            return partial(self.owner.backend.run_from_anywhere, partial(self._conclude, state, value))
        finally:
            del self, value, context  # other frames in the error's traceback lead back to this one

    def _conclude(self, state: ChildState, value: Any) -> None:
        """Record the outcome, in the loop's thread."""
        # The end before the state: a child that ends in the state "failed" is a failure of its scope. Here
        # the error is the caller's, or comes too late: the scope must not act on it.
        self._ended()
        self.state, self._value = state, value
        self.wake_caller()
        self.limiter.release_on_behalf_of(self)
        if not self.has_caller:
            self._log_late_outcome()

    # For the caller

    async def wait_for_outcome(self, grace: Grace) -> None:
        """Wait until the thread has ended; or, if the caller is cancelled, until it has had its grace."""
        try:
            while not self.over:
                self._check_time_is_left()
                await self.callers.wait()
        except ScopeClosed:
            self.has_caller = False
            self._free_slot()
            raise
        except GeneratorExit:  # the loop was dropped, and the collector closes the caller: do not wait
            self.has_caller = False
            self._note_reason(Reason("shutdown", "the event loop is gone"))
            raise
        except BaseException as cancelled:
            self.has_caller = False
            self._note_reason(_reason_of(cancelled, self.opener))
            await self._wait_for_its_grace(grace)
            raise

    def _check_time_is_left(self) -> None:
        # A caller outside the owner is not cancelled when the owner is stopped: it would wait forever.
        owner = self.owner
        if owner.rung >= Rung.TERMINATE:
            raise ScopeClosed(
                f"thread {self.name!r} did not end in time when its scope {owner.label!r} was stopped "
                f"({owner.reason}); it is waited for no longer"
            )

    async def _wait_for_its_grace(self, grace: Grace) -> None:
        if self.over:  # it ended in the very turn of the loop in which the cancel came
            self._log_late_outcome()
            return
        grace_period = _GracePeriod(self, grace.cooperate + grace.cancel)
        try:
            await self.owner.backend.wait_through(grace_period.is_over, self.callers)
        finally:
            grace_period.end()
            self._free_slot()
            # An owner that is being stopped waits for its children only as long as its grace lasts.
            if not self.over and not self.owner.closed:
                self._move_out()

    def _free_slot(self) -> None:
        """Release the slot when the caller stops waiting; a limit set by the caller holds until the end."""
        if isinstance(self.limiter, Slots):
            self.limiter.release_on_behalf_of(self)

    def _move_out(self) -> None:
        """Move into a scope of its own: see the top of this module."""
        owner = self.owner
        self._core = owner.backend.make_core(
            name=self.name, site=self._site, on_error="report", grace=owner.grace, parent=owner
        )
        owner.discard(self)
        self._core.add(self)
        self._core.stop(self.reason or Reason("cancelled"), NO_GRACE)
        owner.progress()

    def result_for_caller(self) -> object:
        """Return the function's result, or raise its error."""
        if self.state == FINISHED:
            return self._value
        error: BaseException = self._value
        try:
            if isinstance(error, _NOT_FOR_A_COROUTINE):
                raise RuntimeError(
                    f"{self.name} raised {type(error).__name__} in its thread; a coroutine cannot pass that on"
                ) from error
            raise error
        finally:
            del error, self

    def _log_late_outcome(self) -> None:
        if self.state != FAILED:
            logger.info("thread %r has %s after its caller was cancelled: not used", self.name, self.state)
            return
        logger.warning("thread %r failed after its caller was cancelled", self.name, exc_info=self._value)
        if len(self.owner.notes) < KEPT_FAILURES:
            note = f"thread {self.name!r} failed after its caller was cancelled: {self._value!r}"
            self.owner.add_notes([note])


class _GracePeriod:
    """The time that a cancelled caller waits for its thread."""

    __slots__ = ("_deadline", "_out_of_time", "_poll", "_thread")

    def __init__(self, thread: ThreadChild, seconds: float) -> None:
        backend = thread.owner.backend
        self._thread = thread
        self._out_of_time = False
        self._deadline: Timer | None = None
        self._poll: Timer | None = None
        if not math.isinf(seconds):
            self._deadline = backend.call_at(backend.now() + seconds, self._run_out)
        if backend.name == "trio" and isinstance(thread.opener, Handle):
            self._look_again()

    def is_over(self) -> bool:
        """Whether the thread has ended, or its own time, its owner's or its caller's is over."""
        thread, opener = self._thread, self._thread.opener
        return (
            thread.over
            or self._out_of_time
            or thread.owner.rung >= Rung.TERMINATE
            or (opener is not None and opener._core.rung >= Rung.TERMINATE)
            or (isinstance(opener, Handle) and opener._asked > 1)
        )

    def _run_out(self) -> None:
        self._out_of_time = True
        self._thread.wake_caller()

    def _look_again(self) -> None:
        backend = self._thread.owner.backend
        self._poll = backend.call_at(backend.now() + LOOK_AGAIN, self._look_again)
        self._thread.wake_caller()

    def end(self) -> None:
        """Cancel the timers."""
        for timer in (self._deadline, self._poll):
            if timer is not None:
                timer.cancel()


def _reason_of(cancelled: BaseException, opener: Node | None) -> Reason:
    """Why the caller was cancelled, as far as that is known."""
    reason = opener.token.reason if opener is not None else None
    if reason is not None:
        return reason
    if getattr(cancelled, "source", None) == "deadline":  # trio says what a cancel came from
        return Reason("timeout", "a deadline around to_thread passed")
    return Reason("cancelled", str(cancelled))
