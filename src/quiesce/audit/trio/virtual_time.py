"""Time in one run on trio: a virtual clock that notices when nothing can run any more.

trio's own `MockClock` jumps to the next deadline when all tasks are blocked, and waits forever if there is no deadline.
The audit needs that very moment: nothing can run and no deadline is set, so nothing ever will. This clock calls
`on_rest` then.

With real I/O something outside could still wake a task. Before the clock jumps or rests, trio waits for an event for as
long as a `Pause` says.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NoReturn

from quiesce.audit.model import Limits
from quiesce.audit.watch import OutsideWork, Pause

from .private_parts import CountedThreads, awaited_descriptors, has_callbacks, next_deadline, trio

# The clock starts here, not at zero, which some code takes for "not set".
START = 1_000.0


class Abandoned(BaseException):
    """Raised in trio's scheduler to end a run that nothing else can end."""


class VirtualTime:
    """The clock of one run. It does not move past `limit`; with None it neither moves nor waits for outside work."""

    def __init__(
        self, on_rest: Callable[[], None], *, workers: CountedThreads | None, limits: Limits
    ) -> None:
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.clock.jump(START)
        # trio calls the private `_autojump` of a MockClock when all tasks are blocked.
        self.clock._autojump = self._on_idle  # type: ignore[method-assign]
        self.limit: float | None = inf
        self._on_rest = on_rest
        self._limits = limits
        # Set while the run waits for outside work.
        self._pause: Pause | None = None
        # With real I/O: everything outside that could wake a task.
        self.outside: OutsideWork | None = None
        if workers is not None:
            self.outside = OutsideWork(awaited_descriptors, lambda: workers.working > 0)

    def elapsed(self) -> float:
        """The seconds that the clock has moved; works for an abandoned run too."""
        # By way of the class: `abandon()` replaces the method of the instance.
        return trio.testing.MockClock.current_time(self.clock) - START

    def allow(self, seconds: float) -> None:
        """Let the clock move by at most `seconds` from now."""
        self.limit = self.clock.current_time() + seconds

    def abandon(self) -> None:
        """End the run in the scheduler's next round, by letting its clock raise. The tasks stay where they are."""
        self.clock.current_time = _abandon  # type: ignore[method-assign]

    def _on_idle(self) -> None:
        deadline = next_deadline()
        limit = self.limit
        if limit is not None:
            # In this order: a thread delivers its result before it counts as idle, so callbacks have to be checked
            # last.
            if self.outside is not None and (self._must_wait(self.outside, deadline) or has_callbacks()):
                return
            if deadline < inf and deadline <= limit:
                self.clock.jump(max(0.0, deadline - self.clock.current_time()))
                return
        self._on_rest()

    def _must_wait(self, outside: OutsideWork, deadline: float) -> bool:
        """Whether to wait in real time for outside work. If so, trio waits and then calls `_on_idle` again."""
        if self._pause is None:
            jump = None if deadline == inf else deadline - self.clock.current_time()
            self._pause = Pause(outside, jump, self._limits)
        seconds = self._pause.seconds_to_wait()
        if not seconds:
            self.stop_waiting()
            return False
        self.clock.autojump_threshold = seconds
        return True

    def stop_waiting(self) -> None:
        """End the pause: a task has run, or the time for outside work has expired."""
        if self._pause is not None:
            self._pause = None
            self.clock.autojump_threshold = 0


def _abandon() -> NoReturn:
    raise Abandoned
