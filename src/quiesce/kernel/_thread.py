"""Sync work in a thread that a scope owns.

Python cannot stop a thread; it can only be asked. So a thread is a child like any other (it has a token, a name, a place
where it is stuck, and an end that it reports), except that its ladder has one rung: the token.

Rules
- The caller waits for the thread while nobody stops it. Cancelled, it asks the thread to stop, waits on for the
  thread's grace through any further cancels, and then raises its cancellation, with or without the thread.
- An outcome that comes after the caller was cancelled is written down and logged. It is never returned, never raised,
  and never counts as a failure of the scope.
- A thread counts against its limiter, and stays in the scope, until it has really ended.
- A thread that its caller has given up moves into a scope of its own, nested in the owner: nobody waits for it
  without end, as the normal end of a block does for children, but every report names it.
- Everything here is touched in the loop's own thread, except `_work`, which runs in the other and reports back by
  `run_from_anywhere`. If the loop is gone by then, there is nobody to tell.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import sys
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from threading import get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary

from ._backend import Backend, Waiter, current_backend
from ._child import CANCELLED, FAILED, FINISHED, PENDING, RUNNING, Child, Handle, Life
from ._core import KEPT_FAILURES, ScopeClosed, ScopeCore
from ._current import Node, current_node
from ._grace import Grace, Rung
from ._idle_threads import Delivery, run_in_thread
from ._reason import Reason
from ._scope import current_core
from ._site import Site, label_of, site_of, thread_stuck_at
from ._token import CancelToken, TokenCancelled

if TYPE_CHECKING:
    from ._scope import Scope

logger = logging.getLogger("quiesce")

T = TypeVar("T")
Args = TypeVarTuple("Args")

THREADS_A_LOOP = 40
NO_GRACE = Grace(0.0, 0.0, 0.0, 0.0)
LOOK_AGAIN = 0.05  # seconds; trio wakes nobody for a second cancel, so there a waiting caller looks

# These mean something to whoever drives a coroutine, and would be taken for its doing, not the function's.
_NOT_TO_BE_RAISED_IN_A_COROUTINE = (StopIteration, GeneratorExit, asyncio.CancelledError)


class Limiter(Protocol):
    """What `to_thread` needs of a limiter: anyio's and trio's `CapacityLimiter` have it."""

    async def acquire_on_behalf_of(self, borrower: Any, /) -> None: ...

    def release_on_behalf_of(self, borrower: Any, /) -> None: ...


async def to_thread(
    fn: Callable[[Unpack[Args]], T],
    *args: Unpack[Args],
    scope: Scope | None = None,
    limiter: Limiter | None = None,
    grace: Grace | None = None,
    name: str | None = None,
) -> T:
    """Run `fn(*args)`, a sync function, in a thread; returns its result or raises its error.

    ```python
    def grep(path: str) -> int:
        token, found = current_token(), 0
        for line in open(path):
            token.raise_if_cancelled()      # a cancelled caller is heard here
            found += "TODO" in line
        return found

    found = await to_thread(grep, "app.log")
    ```

    Inside, context variables are the caller's (changes stay inside), and `current_token()` is a token of the
    thread's own. When the caller is cancelled, or the scope stopped, that token is set at once, and the thread has
    `grace.cooperate + grace.cancel` seconds to return (`grace` is the scope's unless given). One that does not
    stays owned by the scope and is named in its reports, with where it is stuck; what it returns or raises later
    is logged and not used. The event loop is never blocked.

    At most 40 threads a loop run at once, and threads that were given up count until they end. `limiter`, an anyio
    or trio `CapacityLimiter`, sets another limit. `scope` is the owner: the current scope unless given; one
    that is being stopped refuses with `ScopeClosed`.
    """
    _check_sync_function(fn)
    backend = current_backend()
    opener = current_node.get()
    core = scope._opened() if scope is not None else current_core(backend)
    if core.backend is not backend:
        raise RuntimeError(
            f"scope {core.label!r} belongs to another event loop than the caller's: give to_thread a scope of this one"
        )
    _check_open(core, name or fn)
    if limiter is None:
        limiter = _default_limiter(backend)
    thread = ThreadChild(core, name or fn, _site_of_call(sys._getframe(1), opener), opener, limiter)
    await backend.reraise(None)  # on trio, a caller that is already cancelled starts nothing
    await limiter.acquire_on_behalf_of(thread)
    try:
        _check_open(core, name or fn)
        thread.start(fn, args)
    except BaseException:
        limiter.release_on_behalf_of(thread)
        raise
    try:
        await thread.attend()
    except GeneratorExit:  # the loop is gone and the collector closes the caller: there is nowhere to wait
        thread.note_reason(Reason("shutdown", "the event loop is gone"))
        raise
    except ScopeClosed:
        raise
    except BaseException as cancelled:
        thread.note_reason(_why(opener, cancelled))
        await thread.wait_for_its_grace(grace or core.grace)
        raise
    try:
        return thread.outcome_for_caller()  # type: ignore[no-any-return]
    finally:
        del thread  # an error's traceback holds this frame, which must not hold the error


class ThreadChild(Child):
    """A thread, as its scope sees it."""

    __slots__ = ("attended", "ident", "limiter", "opener")

    kind = "thread"

    def __init__(
        self, core: ScopeCore, label: object, site: Site | None, opener: Node | None, limiter: Limiter
    ) -> None:
        super().__init__(core, label, site)
        self.opener = opener
        self.limiter = limiter
        self.ident: int | None = None
        self.attended = True  # its caller waits for it and was not cancelled

    # As a child

    def above(self) -> CancelToken:
        """Its caller's token, so that it is set with it at once, even while the loop is busy."""
        opener = self.opener
        if opener is not None and opener.core is self.core:
            return opener.token
        return self.core.token

    def climb(self, rung: Rung) -> None:
        """The token is all there is; when the time is over, the caller is let go."""
        if self.core.reason is not None:
            self.note_reason(self.core.reason)
        if rung >= Rung.TERMINATE:
            self.wake()

    def stuck_at(self) -> str:
        """Where the thread is now."""
        return thread_stuck_at(self.ident)

    @property
    def over(self) -> bool:
        """Whether the thread has ended."""
        return self.state != PENDING and self.state != RUNNING

    # The thread's side

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Register with the scope and begin."""
        context = copy_context()
        context.run(current_node.set, self)
        self.state = RUNNING
        self.core.children[self] = None
        try:
            run_in_thread(self.name, partial(self._work, context, fn, args))
        except BaseException:  # no more threads: nothing has begun
            self.core.children.pop(self, None)
            raise

    def _work(self, context: Context, fn: Callable[..., Any], args: tuple[Any, ...]) -> Delivery:
        """In the thread; returns how the loop is told."""
        self.ident = get_ident()
        state: Life = FINISHED
        value: Any
        try:
            value = context.run(fn, *args)
        except BaseException as error:
            value = error
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # this frame, which would hold the child
            state = CANCELLED if isinstance(error, TokenCancelled) and self.token.cancelled else FAILED
        return partial(self.core.backend.run_from_anywhere, partial(self._conclude, state, value))

    def _conclude(self, state: Life, value: Any) -> None:
        """In the loop's thread: it has ended, in whichever way."""
        self.ident = None
        # First the end, then how: an error is the caller's, or too late, but not the scope's to act on.
        self.ended()
        self.state, self.value = state, value
        self.limiter.release_on_behalf_of(self)
        self.wake()
        if not self.attended:
            self._tell_late()

    # The caller's side

    async def attend(self) -> None:
        """Wait until it has ended; a cancel that comes out of here is the caller's own."""
        self.waiters = waiters = []
        while not self.over:
            if self.core.rung >= Rung.TERMINATE:
                self.attended = False
                raise ScopeClosed(
                    f"thread {self.name!r} did not end in time while scope {self.core.label!r}, its owner, was stopped "
                    f"({self.core.reason}); it is waited for no longer"
                )
            waiter = self.core.backend.make_waiter()
            waiters.append(waiter)
            await waiter.wait()

    async def wait_for_its_grace(self, grace: Grace) -> None:
        """Its caller was cancelled: wait for it a little longer, then let it go."""
        self.attended = False
        if self.over:  # in the very same turn of the loop
            self._tell_late()
            return
        backend = self.core.backend
        patience = _Patience(self, grace.cooperate + grace.cancel)
        self.waiters = waiters = []
        try:
            await backend.wait_through(patience.is_over, waiters)
        finally:
            patience.forget()
        if not self.over:
            self._leave_to_its_scope()

    def _leave_to_its_scope(self) -> None:
        owner = self.core
        if owner.closed:  # its own ladder bounds the wait for this child
            return
        holder = ScopeCore(
            owner.backend, name=self.name, site=self.site, on_error="report", grace=owner.grace, parent=owner
        )
        owner.children.pop(self, None)
        holder.children[self] = None
        self.core = holder
        holder.stop(self.reason or Reason("cancelled"), NO_GRACE)
        if owner.waiters:
            owner.progress()

    def outcome_for_caller(self) -> Any:
        """The result, or the error itself."""
        if self.state == FINISHED:
            return self.value
        error: BaseException = self.value
        try:
            if isinstance(error, _NOT_TO_BE_RAISED_IN_A_COROUTINE):
                raise RuntimeError(
                    f"{self.name} raised {type(error).__name__} in its thread, which cannot be passed on to a coroutine"
                ) from error
            raise error
        finally:
            del error, self

    def wake(self) -> None:
        """Let the caller look again."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            waiter.wake()

    def _tell_late(self) -> None:
        if self.state != FAILED:
            logger.info("thread %r ended (%s) after its caller was cancelled; its result is not used", self.name, self.state)
            return
        logger.warning("thread %r failed after its caller was cancelled", self.name, exc_info=self.value)
        core = self.core
        if len(core.notes) < KEPT_FAILURES:
            core.notes.append(f"thread {self.name!r} failed after its caller was cancelled: {self.value!r}")
