"""A stop under way: something to wait for, from any event loop or thread.

It is settled once, by the run that was stopped, and every waiter gets the same report, in whichever loop or
thread it waits. No waiter can slow the stop down, interrupt it, or be forgotten by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from quiesce import CancelToken, Reason, StopReport
from quiesce.kernel.inner import WaitQueue, children_left, core_of, current_backend

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.kernel.inner import Backend

state_lock = threading.RLock()
"""Guards the states of all conversations.

It is held for microseconds, never across a wait. It is reentrant, as a signal handler or the garbage
collector may interrupt the thread that holds it. There is one for all conversations: ten thousand locks would
take memory.
"""

GLANCE = 0.02  # seconds between two looks at what an ended event loop has left
_OVER = Reason("user", "settled")


class Stopping:
    """What `Conversation.interrupt()` returns. The stop goes on by itself, whether you wait for it or not.

    ```python
    report = await conversation.interrupt()             # in any event loop
    report = conversation.interrupt().wait(timeout=5)   # in a thread; None if it takes longer
    ```

    When it is done, nothing of the run is left over except what the report names, and the transcript is
    complete and saved.
    """

    __slots__ = ("_backend", "_report", "_settled")

    def __init__(self, report: StopReport | None = None) -> None:
        self._report = report
        self._settled: CancelToken | None = None  # made for the first waiter
        self._backend: Backend | None = None  # of the event loop that has to do the stopping

    @property
    def done(self) -> bool:
        """Whether everything has been stopped, settled and saved."""
        return self._report is not None

    @property
    def report(self) -> StopReport | None:
        """What the stop did; None until it is done."""
        return self._report

    def __await__(self) -> Generator[Any, None, StopReport]:
        return self._wait().__await__()

    async def _wait(self) -> StopReport:
        if self._report is None:
            await self._signal().wait()
        assert self._report is not None
        return self._report

    def wait(self, timeout: float | None = None) -> StopReport | None:
        """Block this thread until it is done, for `timeout` seconds at most; returns the report, or None."""
        if self._report is None and self._backend is not None and self._backend.is_current():
            raise RuntimeError(
                "wait() would block the event loop that has to do the stopping: await the Stopping instead"
            )
        if self._report is None:
            self._signal().wait_sync(timeout)
        return self._report

    async def wait_through(self) -> tuple[StopReport, BaseException | None]:
        """Wait until it is done, even if the caller is cancelled meanwhile.

        Returns the report, and the caller's own cancellation, for the caller to raise.
        """
        cancelled: BaseException | None = None
        if self._report is None:
            backend = current_backend()
            queue = WaitQueue()
            forget = self._signal().on_cancel(partial(backend.run_from_anywhere, queue.wake_all))
            try:
                cancelled = await backend.wait_through(self._is_done, queue)
            finally:
                forget()
        assert self._report is not None
        return self._report, cancelled

    def _is_done(self) -> bool:
        return self._report is not None

    def _signal(self) -> CancelToken:
        # Most stops have no waiter, or one that comes when they are done: those need no token.
        if self._settled is None:
            with state_lock:
                if self._settled is None:
                    self._settled = CancelToken()
        if self._report is not None:  # `settle` may have run before there was a token to cancel
            self._settled.cancel(_OVER)
        return self._settled

    def happens_in(self, scope: Scope) -> None:
        """Note which scope is stopped: `wait()` in its event loop would block the stop itself."""
        self._backend = core_of(scope).backend

    def settle(self, report: StopReport) -> None:
        """Give the report to all waiters."""
        self._report = report
        if self._settled is not None:
            self._settled.cancel(_OVER)

    def __repr__(self) -> str:
        return f"<Stopping: {self._report}>" if self._report is not None else "<Stopping, under way>"


def stop_scope(scope: Scope, reason: Reason, *, again: bool, grace: Grace | None = None) -> None:
    """Stop a scope, from any thread.

    `again` halves the time that is left, even if the event loop has not seen the first call yet. `grace`
    bounds it.
    """
    core = core_of(scope)
    if not again or grace is not None:
        scope.cancel(reason, grace=grace)
        return
    # `scope.cancel` decides in this thread whether there is a stop to hurry. If the loop has not seen the
    # first call yet, there is none, and the second call would change nothing. Decided in the loop, it comes
    # behind the first one and always finds a stop.
    core.backend.run_from_anywhere(lambda: core.stop(reason, hurry=True))


def token_or_reason(scope: Scope) -> CancelToken | Reason | None:
    """Return the scope's token, or if nobody ever asked for that, the reason of its stop, if it has one."""
    core = core_of(scope)
    return core.token_if_made or core.reason


# What a stop has left over


async def wait_again(scope: Scope, reason: Reason) -> None:
    """Wait once more for what the scope has left over, for the time of its grace."""
    core = core_of(scope)
    if core.backend.is_current():
        await scope.close(reason=reason)
        return
    # Another loop owns the scope, or none does any more. Nothing can be awaited across loops, so look again
    # and again.
    ends = time.monotonic() + core.grace.total
    while children_left(scope) and time.monotonic() < ends:  # noqa: ASYNC110 - nothing would set an event
        await anyio.sleep(GLANCE)


def wait_again_sync(scope: Scope) -> None:
    """The same in a plain thread."""
    ends = time.monotonic() + core_of(scope).grace.total
    while children_left(scope) and time.monotonic() < ends:
        time.sleep(GLANCE)
