"""The loop for real sockets, processes and threads, under the virtual clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator
from typing import Any

from quiesce.audit.model import Limits
from quiesce.audit.watch import OutsideWork, Pause

from .stepping_loops import SteppingLoop


class RealLoop(SteppingLoop, asyncio.SelectorEventLoop):
    """Real sockets, processes and threads under the virtual clock.

    The clock knows nothing of work outside the loop. Before the clock jumps, the loop waits for an event for as long as
    a `Pause` says. The loop is hung if nothing is scheduled and no event arrived during the pause.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(selectors.DefaultSelector())
        self._limits = limits
        # The futures of calls that this loop has running in executors.
        self._jobs: set[Any] = set()
        self.selector: selectors.BaseSelector = self._selector  # type: ignore[attr-defined]
        # The loop's own socket pair, by which other threads wake it.
        self._own = set(self._waited_for())
        self._outside = OutsideWork(
            lambda: (fd for fd in self._waited_for() if fd not in self._own), lambda: bool(self._jobs)
        )

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        # Count the calls, because a pool thread that has just been handed one still looks idle.
        future = super().run_in_executor(executor, func, *args)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return future

    def _waited_for(self) -> Iterator[int]:
        """The descriptors that the loop waits for."""
        return (key.fd for key in self.selector.get_map().values())

    def _go_round(self, until: float | None) -> bool:
        self._take_due()
        self._poll(0)
        if not self._ready and until is not None:
            self._wait()
            if not self._ready:
                self._jump(until)
        if not self._ready:
            return False
        self._run_batch()
        return True

    def _wait(self) -> None:
        """Wait in real time for an event from outside, for as long as the pause lasts."""
        jump = self._scheduled[0]._when - self.now if self._scheduled else None
        pause = Pause(self._outside, jump, self._limits)
        while not self._ready:
            seconds = pause.seconds_to_wait()
            # Poll even if the pause has ended: something may have arrived in the meantime.
            self._poll(seconds)
            if not seconds:
                break
        self.passed_over = self._outside.passed_over

    def _poll(self, seconds: float) -> None:
        found = self.selector.select(seconds)
        if found:
            self._process_events(found)  # type: ignore[attr-defined]
            self._take_due()
