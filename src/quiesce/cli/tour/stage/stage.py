"""Where a program of the tour plays: it measures what the program does, and what is left of it.

The stage takes no task and no thread for that, so that it is not among what it counts: it looks when a timer of the loop says so. When the program is
over, the stage ends what it has left, which the tour would otherwise leave too; unless the program runs under `quiesce.run`, which does that.
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
from .survivors import Survivors, is_alive, look

if TYPE_CHECKING:
    from quiesce import StopReport

_EVERY: Final = 0.04  # seconds between two looks
_TO_DIE: Final = 2.0  # seconds that what is cancelled in the end gets


@dataclass(slots=True)
class Played:
    """What a program did."""

    lanes: list[Lane] = field(default_factory=list)
    left: list[Survivors] = field(default_factory=list)
    back: float | None = None  # when whoever had asked for the stop had control again
    lasted: float = 0.0
    raised: str = ""
    facts: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # of the event loop
    report: StopReport | None = None

    @property
    def harmed(self) -> list[Lane]:
        """What was cancelled though nobody meant it."""
        return [lane for lane in self.lanes if lane.innocent and lane.told is not None]

    @property
    def is_clean(self) -> bool:
        reported = self.report is None or self.report.clean
        return reported and not (self.left or self.harmed or self.complaints)


Watcher = Callable[[Played], None]


class Stage:
    """What a program of the tour is given."""

    def __init__(self, *, speed: float = 1.0, watcher: Watcher | None = None, tidies: bool = True) -> None:
        self.clock = Clock()
        self.played = Played()
        self.is_over = False  # threads end themselves then
        self._speed = speed
        self._watcher = watcher
        self._tidies = tidies
        self.afterwards = AsyncExitStack()  # what the program could not close, because that is what it shows
        self._timer: asyncio.TimerHandle | None = None
        self._before: set[asyncio.Task[Any]] = set()

    # For the program

    def seconds(self, seconds: float) -> float:
        """As long as that, at this speed."""
        return seconds / self._speed

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(self.seconds(seconds))

    def lane(self, name: str, kind: Kind = "task", *, innocent: bool = False) -> Lane:
        lane = Lane(kind, name, self.clock, innocent=innocent)
        self.played.lanes.append(lane)
        return lane

    def process(self, name: str, pid: int) -> Lane:
        """A lane for a child process. It ends when it is seen to have gone."""
        lane = self.lane(name, "process")
        lane.process = pid
        lane.start()
        return lane

    def folder(self) -> Path:
        """A folder that lives as long as the stage."""
        made = tempfile.TemporaryDirectory(prefix="quiesce-tour-", ignore_cleanup_errors=True)
        return Path(self.afterwards.enter_context(made))

    def tasks(self, name: str, *, but: asyncio.Task[Any]) -> Lane:
        """A lane for all the tasks that somebody else's code has begun by now; it ends with the last of them."""
        mine = {but, asyncio.current_task(), *self._before}
        theirs = {task for task in asyncio.all_tasks() if task not in mine}
        lane = self.lane(f"{name} ({len(theirs)})")
        lane.start()

        def ended(task: asyncio.Task[Any]) -> None:
            theirs.discard(task)
            if task.cancelled():
                lane.told_to_stop()
            if not theirs:
                lane.end("cancelled")

        for task in list(theirs):
            task.add_done_callback(ended)
        return lane

    def control_is_back(self, raised: BaseException | None = None, *, looks: bool = True) -> None:
        """Whoever asked for the stop goes on, and thinks that it is done."""
        self._see_processes()
        self.played.back = self.clock()
        if raised is not None:
            self.played.raised = f"{type(raised).__name__}: {raised}".rstrip(": ")
        if looks:
            self.look()

    def look(self) -> None:
        self.played.left = look(self._before, self.played.lanes)

    def say(self, fact: str) -> None:
        self.played.facts.append(fact)

    def reports(self, report: StopReport | None) -> None:
        self.played.report = report

    # For the tour

    async def play(self, program: Callable[[Stage], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._complain)
        self._before = asyncio.all_tasks()
        self._tick(loop)
        try:
            await program(self)
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

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
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
        self._timer = loop.call_later(_EVERY, self._tick, loop)

    def _see_processes(self) -> None:
        for lane in self.played.lanes:
            if lane.process is not None and lane.is_running and not is_alive(lane.process):
                lane.end("cancelled" if lane.told is not None else "finished")

    async def _tidy(self) -> None:
        for lane in self.played.lanes:
            if lane.process is not None and lane.ended is None:
                try:
                    os.kill(lane.process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        if not self._tidies:
            return
        # First those that the program has named: what they wait for, such as asyncio's tasks for a process, has then its own way to end.
        for is_next in (_is_named, lambda task: True):
            if left := {task for task in asyncio.all_tasks() - self._before if is_next(task)}:
                for task in left:
                    task.cancel()
                await asyncio.wait(left, timeout=_TO_DIE)


def _is_named(task: asyncio.Task[Any]) -> bool:
    return not task.get_name().startswith("Task-")
