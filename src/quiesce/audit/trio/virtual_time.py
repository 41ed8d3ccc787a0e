"""Time in one run on trio: a virtual clock that knows what to do when nothing can run.

trio's own `MockClock` jumps to the next deadline when all tasks are blocked, and waits for ever when there is none. Here
that is the moment which matters: nothing can run and no deadline is set, so that nothing ever will. `on_rest` is told
so at once.

With real I/O something outside could still wake a task. Before the clock jumps, or rests, trio waits for that, for as long
as a `Pause` says.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NoReturn

from quiesce.audit.model import Limits
from quiesce.audit.watch import OutsideWork, Pause

from .private_parts import CountedThreads, has_callbacks, next_deadline, trio, waited_for

START = 1_000.0  # not zero, which some code takes for "not set"


class Abandoned(BaseException):
    """Raised in trio's scheduler to end a run that cannot be ended otherwise."""


class VirtualTime:
    """`limit` is how far the clock may move: None is not at all, not even to wait for the outside."""

    def __init__(
        self, on_rest: Callable[[], None], *, workers: CountedThreads | None, limits: Limits
    ) -> None:
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.clock.jump(START)
        self.clock._autojump = self._on_idle  # type: ignore[method-assign]
        self.limit: float | None = inf
        self._on_rest = on_rest
        self._limits = limits
        self._pause: Pause | None = None  # while it waits for the outside
        self.outside: OutsideWork | None = None  # what could wake a task, with real I/O
        if workers is not None:
            self.outside = OutsideWork(waited_for, lambda: workers.working > 0)

    def elapsed(self) -> float:
        """How far the clock has moved. Also of a run that was abandoned."""
        return trio.testing.MockClock.current_time(self.clock) - START

    def allow(self, seconds: float) -> None:
        """Let the clock move so far, and no further."""
        self.limit = self.clock.current_time() + seconds

    def abandon(self) -> None:
        """End the run from the scheduler's next round. Its tasks stay as they are."""
        self.clock.current_time = _abandon  # type: ignore[method-assign]

    def _on_idle(self) -> None:
        deadline = next_deadline()
        limit = self.limit
        if limit is not None:
            # In this order: a thread that is no longer at work has left its result.
            if self.outside is not None and (self._must_wait(self.outside, deadline) or has_callbacks()):
                return
            if deadline < inf and deadline <= limit:
                self.clock.jump(max(0.0, deadline - self.clock.current_time()))
                return
        self._on_rest()

    def _must_wait(self, outside: OutsideWork, deadline: float) -> bool:
        """Whether the outside gets its time now. trio then waits, and asks again if that brought nothing."""
        if self._pause is None:
            jump = None if deadline == inf else deadline - self.clock.current_time()
            self._pause = Pause(outside, jump, self._limits)
        seconds = self._pause.left()
        if not seconds:
            self.stop_waiting()
            return False
        self.clock.autojump_threshold = seconds
        return True

    def stop_waiting(self) -> None:
        """Something came of it, or nothing did."""
        if self._pause is not None:
            self._pause = None
            self.clock.autojump_threshold = 0


def _abandon() -> NoReturn:
    raise Abandoned
