"""One run's schedule: which task steps when, and the stop at its point.

The event loop tells it of every step of the lane that is aimed at, before and after; of the other lanes it only keeps the
numbers, which the loop counts itself, so that an injected run costs what a plain one costs. Only with `record` set, and
while the next stop is for whoever is in its clean-up, does it see every step (`sees_all`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal, TypeAlias

from .points import Point
from .source_places import Chain, await_chain, name_of
from .steady_names import steady
from .task_records import TaskRecord, TaskRecords

# Where to stop next: a point, or wherever a task that has been cancelled next suspends, in its clean-up.
IN_CLEAN_UP: Literal["in clean-up"] = "in clean-up"
Aim: TypeAlias = Point | Literal["in clean-up"]
Fire: TypeAlias = Callable[
    [TaskRecord, Any, Any], None
]  # the lane, its task, the handle that was about to run it
_MADE_UP = re.compile(r"\d{6}")  # a time or an identifier that somebody has put into a name


class Endless(Exception):
    """The run has taken more steps than a run may."""


@dataclass(slots=True)
class Moment:
    """A suspension that happened: `number` of `lane`, at step `step` of the run."""

    lane: TaskRecord
    number: int
    step: int
    chain: Chain
    resumed_at: int | None = None
    can_raise: bool = False  # it resumed with the outcome of a future, which could have been an error


class Schedule:
    """`steps` and `current` are kept by whoever drives the tasks; `target` is the lane of the next stop."""

    def __init__(
        self,
        aims: Sequence[Aim],
        fire: Fire,
        is_cancelled: Callable[[Any], bool],
        *,
        root: str,
        code: CodeType | None,
        limit: int,
        record: bool,
    ) -> None:
        self.lanes = TaskRecords()
        self.steps = 0
        self.current: TaskRecord | None = None
        self.target: TaskRecord | None = None
        self.limit = limit
        self.recorded: list[Moment] = []
        self.fired: list[tuple[TaskRecord, int, Chain]] = []  # lane, step, where it stood
        self._root = root
        self._code = code  # of the scenario: where the root stands before its first step
        self._records = record
        self._fire = fire
        self._is_cancelled = is_cancelled
        self._aims = list(aims)
        self._last: dict[TaskRecord, Moment] = {}
        self.is_due = False  # a stop at the birth of an eager task, to be made when the present step ends
        self._at_birth: tuple[TaskRecord, Any] | None = None
        self._take_aim()

    def _take_aim(self) -> None:
        aim = self._aims.pop(0) if self._aims else None
        self._label, self._number, self._early = "", -1, False
        self.target = None
        if isinstance(aim, Point):
            self._label, self._number, self._early = aim.lane, aim.number, aim.phase == "early"
            self.target = next((lane for lane in self.lanes.all if lane.label == aim.lane), None)
        self._after_cancel = aim == IN_CLEAN_UP
        self.sees_all = self._records or self._after_cancel

    def disarm(self) -> None:
        """The run is over: what happens from now on is not part of the schedule."""
        self._aims.clear()
        self._records = False
        self.is_due = False
        self._take_aim()

    def allow(self, steps: int) -> None:
        """Let the run take so many more steps."""
        self.limit = self.steps + steps

    def check_limit(self) -> None:
        if self.steps > self.limit:
            raise Endless

    def made(self, task: Any, coroutine: object, made_at: Chain, *, is_ours: bool = False) -> TaskRecord:
        """A task has been made; it has not run yet. The first is the root."""
        name = name_of(coroutine) if self.lanes.all else self._root
        if _MADE_UP.search(name):
            name = steady(name)
        if is_ours:
            name = f"({name})"  # no lane of the program's can have this name
        lane = self.lanes.add(task, name, made_at, self.current, self.steps)
        lane.is_ours = is_ours
        if lane.label == self._label:
            self.target = lane
        return lane

    @property
    def _is_over(self) -> bool:
        """Whether the root has ended: what others do in the same round comes after the schedule."""
        return self.lanes.all[0].died is not None

    def resuming(self, lane: TaskRecord, task: Any, handle: Any) -> None:
        """The lane is about to take a step, which is counted already."""
        if self._records and not self._is_over and (moment := self._last.get(lane)) is not None:
            moment.resumed_at = self.steps
            moment.can_raise = bool(getattr(handle, "_args", ()))
        if lane.number == self._number and not self._early and lane.label == self._label:
            self._hit(lane, task, handle)
        self.current = lane

    def suspended(self, lane: TaskRecord, task: Any, coroutine: object) -> None:
        """The lane has taken a step and waits for something."""
        self.current = None
        lane.number += 1
        if self._records:
            self._record(lane, coroutine)
        if self.is_due:
            self.hit_at_birth()
        elif (lane.number == self._number and self._early and lane.label == self._label) or (
            self._after_cancel and self._is_cancelled(task)
        ):
            self._hit(lane, task, None)

    def suspended_at_birth(self, lane: TaskRecord, task: Any, coroutine: object) -> None:
        """An eager task has run up to its first suspension inside its maker's step.

        A stop here is made when that step ends: in the middle of it nobody else could make one.
        """
        lane.number = 1
        lane.is_eager = True
        if self._records:
            self._record(lane, coroutine)
        if self._number == 1 and self._early and lane.label == self._label:
            self._at_birth = (lane, task)
            self.is_due = True

    def ended(self, lane: TaskRecord) -> None:
        """The lane's task is done."""
        self.current = None
        lane.died = self.steps
        if self.is_due:
            self.hit_at_birth()

    def _record(self, lane: TaskRecord, coroutine: object) -> None:
        if self._is_over:
            return
        moment = Moment(lane, lane.number, self.steps, await_chain(coroutine))
        self._last[lane] = moment
        self.recorded.append(moment)

    def hit_at_birth(self) -> None:
        assert self._at_birth is not None
        (lane, task), self._at_birth, self.is_due = self._at_birth, None, False
        if not task.done():
            self._hit(lane, task, None)

    def _hit(self, lane: TaskRecord, task: Any, handle: Any) -> None:
        if self._is_over:
            return
        coroutine = task.get_coro() if hasattr(task, "get_coro") else task.coro
        chain = await_chain(coroutine)
        if lane.number == 0 and lane is self.lanes.all[0] and self._code is not None:
            chain = (*chain, (self._code, 0))
        self.fired.append((lane, self.steps, chain))
        self._take_aim()
        self._fire(lane, task, handle)
