"""A stop under way: something to wait for, from any event loop or thread.

It is settled once, by whoever stopped; everybody who waits, wherever that is, gets the same report. Nobody who waits can slow the stop
down, cut it or be forgotten by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from quiesce import CancelToken, Leftover, Reason, StopReport
from quiesce.kernel.inner import SETTLED, ThreadChild, WaitQueue, current_backend, current_node, who_waits_for

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.kernel.inner import Backend, Child, ScopeCore

state_lock = threading.RLock()
"""Guards the states of all conversations. It is held for microseconds, never while anything is waited for; reentrant, since a signal
handler or the collector may interrupt whoever holds it. One for all: ten thousand of them take memory."""

GLANCE = 0.02  # seconds between two looks at a thread whose event loop has ended
_OVER = Reason("user", "settled")


class Stopping:
    """What `Conversation.interrupt()` returns. The stop goes on by itself; wait for it or not.

    ```python
    report = await conversation.interrupt()             # in any event loop
    report = conversation.interrupt().wait(timeout=5)   # in a thread; None if it takes longer
    ```

    When it is done, nothing of the run is left but what the report names, and the transcript is complete and saved.
    """

    __slots__ = ("_backend", "_report", "_settled")

    def __init__(self, report: StopReport | None = None) -> None:
        self._report = report
        self._settled: CancelToken | None = None  # made for the first who waits
        self._backend: Backend | None = None  # of the event loop that has to do the stopping

    @property
    def done(self) -> bool:
        """Whether everything has been stopped, settled and saved."""
        return self._report is not None

    @property
    def report(self) -> StopReport | None:
        """What the stop did; None as long as it goes on."""
        return self._report

    def __await__(self) -> Generator[Any, None, StopReport]:
        return self._wait().__await__()

    async def _wait(self) -> StopReport:
        if self._report is None:
            await self._signal().wait()
        assert self._report is not None
        return self._report

    def wait(self, timeout: float | None = None) -> StopReport | None:
        """Block this thread until it is done, but no longer than `timeout` seconds; returns the report, or None."""
        if self._report is None and self._backend is not None and self._backend.is_current():
            raise RuntimeError(
                "wait() would block the event loop that has to do the stopping: await the Stopping instead"
            )
        if self._report is None:
            self._signal().wait_sync(timeout)
        return self._report

    async def wait_through(self) -> tuple[StopReport, BaseException | None]:
        """Wait however often the caller is cancelled meanwhile; returns its own cancellation too, to be raised."""
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
        if self._settled is None:
            with state_lock:
                if self._settled is None:
                    self._settled = CancelToken()
        if self._report is not None:  # `settle` may have looked for a token before there was one
            self._settled.cancel(_OVER)
        return self._settled

    def settle(self, report: StopReport) -> None:
        """It is done."""
        self._report = report
        if self._settled is not None:
            self._settled.cancel(_OVER)

    def __repr__(self) -> str:
        return f"<Stopping: {self._report}>" if self._report is not None else "<Stopping, under way>"


def stop_scope(scope: Scope, reason: Reason, *, again: bool, grace: Grace | None = None) -> None:
    """Stop it, from any thread; `again` halves the time that is left, also if the loop has not seen the first call yet. `grace` bounds it."""
    core = scope._opened()
    if not again or grace is not None:
        scope.cancel(reason, grace=grace)
        return
    core.backend.run_from_anywhere(lambda: core.stop(reason, hurry=True))


def runs_inside(scope: Scope) -> bool:
    """Whether the caller is a part of it, and so cannot wait for its end."""
    node, core = current_node.get(), scope._opened()
    return node is not None and bool(who_waits_for(core, (node,)))


# What a stop had to leave


def is_dead(scope: Scope) -> bool:
    """Whether its event loop was closed. (One of trio's ends when all in it has.)"""
    return _is_dead(scope._opened())


def _is_dead(core: ScopeCore) -> bool:
    loop = getattr(core.backend, "loop", None)
    return loop is not None and loop.is_closed()


def is_gone(scope: Scope) -> bool:
    """Whether nothing of it is left, though its event loop may have ended before that."""
    return not children_left(scope)


def leftovers_of(scope: Scope) -> list[Leftover]:
    """What of it is still there."""
    return [left for child in children_left(scope) for left in child._leftovers()]


def children_left(scope: Scope) -> list[Child]:
    """Who is still there, all the way down."""
    core = scope._opened()
    return [] if core.state is SETTLED else list(_left_in(core))


def _left_in(core: ScopeCore) -> Iterator[Child]:
    tasks_go_on = not _is_dead(core)
    for child in list(core.children):
        # A thread whose event loop has ended has nobody to tell that it has ended too.
        if child.ident is not None if isinstance(child, ThreadChild) else tasks_go_on:
            yield child
    for nested in list(core.nested):
        yield from _left_in(nested)


async def wait_again(scope: Scope, reason: Reason) -> None:
    """Give what it has left its grace once more."""
    core = scope._opened()
    if core.backend.is_current():
        await scope.close(reason=reason)
        return
    ends = time.monotonic() + core.grace.total
    while not is_gone(scope) and time.monotonic() < ends:  # noqa: ASYNC110 - nobody is there to set an event
        await anyio.sleep(GLANCE)


def wait_again_sync(scope: Scope) -> None:
    """The same in a plain thread."""
    ends = time.monotonic() + scope._opened().grace.total
    while not is_gone(scope) and time.monotonic() < ends:
        time.sleep(GLANCE)
