"""The loop for real sockets, processes and threads, under the virtual clock."""

from __future__ import annotations

import asyncio
import selectors
import threading
from time import monotonic  # the real one, also while a scenario reads another
from typing import Any

from ._loops import SteppingLoop
from ._processes import has_children
from ._threads import busy_threads, is_surely_idle


class RealLoop(SteppingLoop, asyncio.SelectorEventLoop):
    """Real sockets, processes and threads under the virtual clock.

    The clock cannot see what is at work outside. Before it jumps, the loop waits for an event: for `patience` real
    seconds if there are only sockets and pipes, whose other ends are mostly in this very loop; for as long as the jump
    would be, but not longer than `hang_after`, while a process or a thread is at work, so that a timeout around it
    does not come first. It is hung when all that has been quiet for `hang_after` seconds.
    """

    def __init__(self, patience: float, hang_after: float) -> None:
        super().__init__(selectors.DefaultSelector())
        self._patience = patience
        self._hang_after = hang_after
        self._threads_before = set(threading.enumerate())
        self._busy_before = {thread for thread, _ in busy_threads()}  # with something that is not this run's
        self._jobs: set[Any] = set()  # the futures of calls that executors make for this loop
        self.selector: selectors.BaseSelector = self._selector  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        # A thread of a pool that has just been given work still looks idle.
        future = super().run_in_executor(executor, func, *args)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return future

    def _has_outside(self) -> bool:
        """Whether anything beyond this loop could still wake it."""
        if self._jobs or len(self.selector.get_map()) > 1 or busy_threads(self._busy_before):
            return True
        # A new one that looks idle may have been given work a moment ago.
        return any(
            thread not in self._threads_before and not is_surely_idle(thread)
            for thread in threading.enumerate()
        )

    def _go_round(self, until: float | None) -> bool:
        self._take_due()
        self._poll(0)
        if not self._ready and until is not None:
            if self._has_outside():
                self._wait(self._wait_before_jump() if self._scheduled else self._hang_after)
            if not self._ready:
                self._jump(until)
        if not self._ready:
            return False
        self._run_batch()
        return True

    def _wait_before_jump(self) -> float:
        if not busy_threads(self._busy_before) and not has_children():
            return self._patience
        jump: float = self._scheduled[0]._when - self.now
        return max(self._patience, min(jump, self._hang_after))

    def _wait(self, seconds: float) -> None:
        limit = monotonic() + seconds
        while not self._ready and self._has_outside() and (left := limit - monotonic()) > 0:
            self._poll(min(left, 0.05))

    def _poll(self, seconds: float) -> None:
        found = self.selector.select(seconds)
        if found:
            self._process_events(found)  # type: ignore[attr-defined]
            self._take_due()
