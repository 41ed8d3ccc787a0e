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

    The clock cannot see what is at work outside. Before it jumps, the loop waits for an event, for as long as a `Pause`
    says. It is hung when nothing is scheduled and the pause has brought nothing.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(selectors.DefaultSelector())
        self._limits = limits
        self._jobs: set[Any] = set()  # the futures of calls that executors make for this loop
        self.selector: selectors.BaseSelector = self._selector  # type: ignore[attr-defined]
        self._own = set(self._waited_for())  # for calls from other threads
        self._outside = OutsideWork(
            lambda: (fd for fd in self._waited_for() if fd not in self._own), lambda: bool(self._jobs)
        )

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        # A thread of a pool that has just been given work still looks idle.
        future = super().run_in_executor(executor, func, *args)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return future

    def _waited_for(self) -> Iterator[int]:
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
        """Give the outside its time."""
        jump = self._scheduled[0]._when - self.now if self._scheduled else None
        pause = Pause(self._outside, jump, self._limits)
        while not self._ready:
            seconds = pause.left()
            self._poll(seconds)  # also if it is over: something may have come meanwhile
            if not seconds:
                break
        self.passed_over = self._outside.passed_over

    def _poll(self, seconds: float) -> None:
        found = self.selector.select(seconds)
        if found:
            self._process_events(found)  # type: ignore[attr-defined]
            self._take_due()
