"""Where a program of the tour plays: the stage measures what the program does, and what it leaves behind.

The stage uses a timer of the event loop, and no task or thread of its own, because those would be counted, too.
When the program has ended, the stage stops its leftovers, which the tour itself would leave otherwise. If the
program runs under `quiesce.run`, that does it instead.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .lanes import Clock, Kind, Lane
from .survivors import Survivor, is_alive, look

if TYPE_CHECKING:
    from quiesce import StopReport

_TICK: Final = 0.04  # seconds
#: Seconds that leftovers get to end after the stage has cancelled them.
_TIDY_TIMEOUT: Final = 2.0


@dataclass(slots=True)
class Played:
    """What was measured of a program."""

    lanes: list[Lane] = field(default_factory=list)
    left: list[Survivor] = field(default_factory=list)
    #: When the code that asked for the stop had control again.
    back: float | None = None
    lasted: float = 0.0
    raised: str = ""
    facts: list[str] = field(default_factory=list)
    #: What the event loop's exception handler was called with.
    complaints: list[str] = field(default_factory=list)
    report: StopReport | None = None

    @property
    def harmed(self) -> list[Lane]:
        """The lanes that were cancelled though no stop was meant for them."""
        return [lane for lane in self.lanes if lane.innocent and lane.stop_seen is not None]

    @property
    def is_clean(self) -> bool:
        reported = self.report is None or self.report.clean
        return reported and not (self.left or self.harmed or self.complaints)


Watcher = Callable[[Played], None]


class Stage:
    """Passed to every program of the tour, which uses it to record what it does.

    With `tidy`, the stage stops what the program has left.
    """

    def __init__(self, *, speed: float = 1.0, watcher: Watcher | None = None, tidy: bool = True) -> None:
        self.clock = Clock()
        self.played = Played()
        #: The program has ended. Its threads check this to end themselves, because a thread cannot be cancelled.
        self.is_over = False
        self._speed = speed
        self._watcher = watcher
        self._tidies = tidy
        #: Closes what the program leaves open on purpose, to show a leak.
        self.afterwards = AsyncExitStack()
        self._timer: asyncio.TimerHandle | None = None
        self._before: set[asyncio.Task[Any]] = set()

    # For the program

    def seconds(self, seconds: float) -> float:
        """A duration, scaled by the speed of the tour."""
        return seconds / self._speed

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(self.seconds(seconds))

    def lane(self, name: str, kind: Kind = "task", *, innocent: bool = False) -> Lane:
        lane = Lane(kind, name, self.clock, innocent=innocent)
        self.played.lanes.append(lane)
        return lane

    def process(self, name: str, pid: int) -> Lane:
        """Add a lane for a child process. It ends when the stage sees that the process has exited."""
        lane = self.lane(name, "process")
        lane.process = pid
        lane.start()
        return lane

    def folder(self) -> Path:
        """Make a temporary folder, which is removed when the program has ended."""
        made = tempfile.TemporaryDirectory(prefix="quiesce-tour-", ignore_cleanup_errors=True)
        return Path(self.afterwards.enter_context(made))

    def tasks(self, name: str, *, but: asyncio.Task[Any]) -> Lane:
        """Add one lane for all tasks that a library has started so far; it ends with the last of them."""
        own = {but, asyncio.current_task(), *self._before}
        foreign = {task for task in asyncio.all_tasks() if task not in own}
        lane = self.lane(f"{name} ({len(foreign)})")
        lane.start()

        def on_done(task: asyncio.Task[Any]) -> None:
            foreign.discard(task)
            if task.cancelled():
                lane.told_to_stop()
            if not foreign:
                lane.end("cancelled")

        for task in list(foreign):
            task.add_done_callback(on_done)
        return lane

    def control_is_back(self, raised: BaseException | None = None, *, look: bool = True) -> None:
        """Record that the code that asked for the stop continues, believing that everything has stopped.

        With `look`, look for leftovers at this moment.
        """
        self._see_processes()
        self.played.back = self.clock()
        if raised is not None:
            self.played.raised = f"{type(raised).__name__}: {raised}".rstrip(": ")
        if look:
            self.look()

    def look(self) -> None:
        self.played.left = look(self._before, self.played.lanes)

    def say(self, fact: str) -> None:
        self.played.facts.append(fact)

    def record_report(self, report: StopReport | None) -> None:
        self.played.report = report

    # For the tour

    async def play(self, program: Callable[[Stage], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        self._before = asyncio.all_tasks()
        self._tick(loop)
        try:
            await program(self)
            # "Task was destroyed but it is pending" is reported on collection. Collect while it is still counted.
            gc.collect()
            await asyncio.sleep(0)
        finally:
            self.played.lasted = self.clock()
            self.is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self._see_processes()
            self.clock.is_stopped = True
            async with self.afterwards:
                await self._tidy()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self.is_over:
            return
        task = context.get("task") or context.get("future")
        name = task.get_name() if isinstance(task, asyncio.Task) else ""
        text = str(context["message"])
        if (error := context.get("exception")) is not None:
            text += f": {type(error).__name__}: {error}"
        self.played.complaints.append(f"{text} ({name})" if name and not name.startswith("Task-") else text)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._see_processes()
        if self._watcher is not None:
            self.played.lasted = self.clock()
            self._watcher(self.played)
        self._timer = loop.call_later(_TICK, self._tick, loop)

    def _see_processes(self) -> None:
        for lane in self.played.lanes:
            if lane.process is not None and lane.is_running and not is_alive(lane.process):
                lane.end("cancelled" if lane.stop_seen is not None else "finished")

    async def _tidy(self) -> None:
        for lane in self.played.lanes:
            if lane.process is not None and lane.ended is None:
                try:
                    os.kill(lane.process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        if not self._tidies:
            return
        # First the tasks that the program has named. They may be waiting for internal ones, such as asyncio's tasks
        # for a process, which end properly once they are no longer needed.
        for is_next in (_is_named, lambda task: True):
            if left := {task for task in asyncio.all_tasks() - self._before if is_next(task)}:
                for task in left:
                    task.cancel()
                await asyncio.wait(left, timeout=_TIDY_TIMEOUT)


def _is_named(task: asyncio.Task[Any]) -> bool:
    return not task.get_name().startswith("Task-")
