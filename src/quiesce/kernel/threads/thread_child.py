"""A thread, as its scope sees it.

Python cannot stop a thread; it can only be asked. So a thread is a child like any other (it has a token, a
name, a place where it is stuck, and an end that it reports), except that its ladder has one rung: the token.

Rules
- The caller waits for the thread while nobody stops it. Cancelled, it asks the thread to stop, waits on for the
  thread's grace through any further cancels, and then raises its cancellation, with or without the thread.
- An outcome that comes after the caller was cancelled is written down and logged. It is never returned, never
  raised, and never counts as a failure of the scope.
- A thread stays in its scope until it has really ended. It has its slot until then, or until its caller has given it
  up: see `limiter`.
- A thread that its caller has given up moves into a scope of its own, nested in the owner: the normal end of a
  block waits for children without end, but for what is nested in it only as long as its grace lasts.
- Everything here is touched in the loop's own thread, except `_work`, which runs in the other and reports back
  by `run_from_anywhere`. If the loop is gone by then, there is nobody to tell.
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
    CancelToken,
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
LOOK_AGAIN = 0.05  # seconds; trio wakes nobody for a second cancel, so there a waiting caller looks

# They mean something to whoever drives a coroutine, and would be taken for its own doing.
_NOT_FOR_A_COROUTINE = (StopIteration, GeneratorExit, asyncio.CancelledError)


class ThreadChild(Child):
    """A thread, as its scope sees it."""

    __slots__ = ("attended", "began", "callers", "fn", "ident", "limiter", "opener", "owner")

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
        self.attended = True  # somebody waits for it who will take its outcome

    # As a child

    def _above(self) -> CancelToken:
        """Its caller's token: that is set at once by a cancel from another thread, even if the loop is busy."""
        opener, owner = self.opener, self.owner
        if opener is not None and (opener._core is owner or opener._core.backend is not owner.backend):
            return opener.token
        return owner.token

    def _climb(self, rung: Rung) -> None:
        """The token is all there is; when the time is over, the caller is let go."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)
        if rung >= Rung.TERMINATE:
            self.wake_caller()

    def _stuck_at(self) -> str:
        """Where the thread is now."""
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
        """Let the caller look again."""
        self.callers.wake_all()

    # In the thread

    def check_owner_is_open(self) -> None:
        """Nothing is started in a scope that is being stopped."""
        if self.owner.closed:
            raise self.owner.refusal(f"start thread {self.name!r} in")

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Register with the scope, and begin."""
        context = copy_context()
        context.run(current_node.set, self)
        self.fn = fn
        self.began = time.monotonic()
        self.state = RUNNING
        self.owner.children[self] = None
        try:
            run_in_thread(self.name, partial(self._work, context, fn, args))
        except BaseException:  # no more threads: nothing has begun
            self.owner.children.pop(self, None)
            raise

    def _work(self, context: Context, fn: Callable[..., Any], args: tuple[Any, ...]) -> Delivery:
        """In the thread; returns what tells the loop."""
        self.ident = get_ident()
        state: ChildState = FINISHED
        value: Any
        try:
            value = context.run(fn, *args)
        except BaseException as error:
            value = error
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # without this frame, which holds us
            state = CANCELLED if isinstance(error, TokenCancelled) and self.token.cancelled else FAILED
        self.ident = None
        try:
            return partial(self.owner.backend.run_from_anywhere, partial(self._conclude, state, value))
        finally:
            del self, value, context  # frames in the error's traceback lead back to this one

    def _conclude(self, state: ChildState, value: Any) -> None:
        """In the loop's thread: it has ended, in whichever way."""
        # First the end, then how: an error is the caller's, or too late, but not the scope's to act on.
        self._ended()
        self.state, self._value = state, value
        self.wake_caller()
        self.limiter.release_on_behalf_of(self)
        if not self.attended:
            self._tell_late()

    # For the caller

    async def attend(self, grace: Grace) -> None:
        """Wait until it has ended, or until the caller is cancelled and the thread has had its grace."""
        try:
            while not self.over:
                self._check_time_is_left()
                await self.callers.wait()
        except ScopeClosed:
            self.attended = False
            self._free_slot()
            raise
        except GeneratorExit:  # the loop is gone, and the collector closes the caller: no place to wait
            self.attended = False
            self._note_reason(Reason("shutdown", "the event loop is gone"))
            raise
        except BaseException as cancelled:
            self.attended = False
            self._note_reason(_why(self.opener, cancelled))
            await self._wait_for_its_grace(grace)
            raise

    def _check_time_is_left(self) -> None:
        """For a caller outside the scope that owns the thread: it is not cancelled with it."""
        owner = self.owner
        if owner.rung >= Rung.TERMINATE:
            raise ScopeClosed(
                f"thread {self.name!r} did not end in time when its scope {owner.label!r} was stopped "
                f"({owner.reason}); it is waited for no longer"
            )

    async def _wait_for_its_grace(self, grace: Grace) -> None:
        if self.over:  # in the very turn of the loop in which the cancel came
            self._tell_late()
            return
        patience = _Patience(self, grace.cooperate + grace.cancel)
        try:
            await self.owner.backend.wait_through(patience.is_over, self.callers)
        finally:
            patience.forget()
            self._free_slot()
            # A closed owner bounds the wait for its children itself.
            if not self.over and not self.owner.closed:
                self._move_out()

    def _free_slot(self) -> None:
        """Nobody waits for it any more. A limit that the caller has set holds all the same, until its end."""
        if isinstance(self.limiter, Slots):
            self.limiter.release_on_behalf_of(self)

    def _move_out(self) -> None:
        owner = self.owner
        self._core = owner.backend.make_core(
            name=self.name, site=self._site, on_error="report", grace=owner.grace, parent=owner
        )
        owner.children.pop(self, None)
        self._core.children[self] = None
        self._core.stop(self.reason or Reason("cancelled"), NO_GRACE)
        owner.progress()

    def result_for_caller(self) -> object:
        """The result; or the error itself, raised."""
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

    def _tell_late(self) -> None:
        if self.state != FAILED:
            logger.info("thread %r has %s after its caller was cancelled: not used", self.name, self.state)
            return
        logger.warning("thread %r failed after its caller was cancelled", self.name, exc_info=self._value)
        notes = self.owner.notes
        if len(notes) < KEPT_FAILURES:
            late = f"thread {self.name!r} failed after its caller was cancelled: {self._value!r}"
            self.owner.notes = [*notes, late]


class _Patience:
    """How long a cancelled caller waits for its thread."""

    __slots__ = ("_glance", "_out_of_time", "_thread", "_timer")

    def __init__(self, thread: ThreadChild, seconds: float) -> None:
        backend = thread.owner.backend
        self._thread = thread
        self._out_of_time = False
        self._timer: Timer | None = None
        self._glance: Timer | None = None
        if not math.isinf(seconds):
            self._timer = backend.call_at(backend.now() + seconds, self._end)
        if backend.name == "trio" and isinstance(thread.opener, Handle):
            self._look_again()

    def is_over(self) -> bool:
        """The thread has ended, or its time has, or its owner's, or the caller's own."""
        thread, opener = self._thread, self._thread.opener
        return (
            thread.over
            or self._out_of_time
            or thread.owner.rung >= Rung.TERMINATE
            or (opener is not None and opener._core.rung >= Rung.TERMINATE)
            or (isinstance(opener, Handle) and opener._asked > 1)
        )

    def _end(self) -> None:
        self._out_of_time = True
        self._thread.wake_caller()

    def _look_again(self) -> None:
        backend = self._thread.owner.backend
        self._glance = backend.call_at(backend.now() + LOOK_AGAIN, self._look_again)
        self._thread.wake_caller()

    def forget(self) -> None:
        """No more wake-ups."""
        for timer in (self._timer, self._glance):
            if timer is not None:
                timer.cancel()


def _why(opener: Node | None, cancelled: BaseException) -> Reason:
    """Why the caller was cancelled, as far as anybody said."""
    reason = opener.token.reason if opener is not None else None
    if reason is not None:
        return reason
    if getattr(cancelled, "source", None) == "deadline":  # trio says where a cancel came from
        return Reason("timeout", "a deadline around to_thread passed")
    return Reason("cancelled", str(cancelled))
