"""The schedule of one run: counts the steps of its tasks and makes each stop at its point.

The event loop reports every step of the target lane to the schedule, before and after. For the other lanes the loop
only increments their numbers itself, so that an injected run costs as much as a plain one. The schedule sees every step
(`sees_all`) only while it records, and while the next stop is for any task that is cleaning up.
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

# Where to stop next: at a point, or at the next suspension of a task that has been cancelled (in its clean-up).
IN_CLEAN_UP: Literal["in clean-up"] = "in clean-up"
Aim: TypeAlias = Point | Literal["in clean-up"]
# Called with the lane, its task, and the handle that was about to run the task.
Fire: TypeAlias = Callable[[TaskRecord, Any, Any], None]
# Six digits in a name are a time or an identifier, and differ from run to run.
_GENERATED = re.compile(r"\d{6}")


class Endless(Exception):
    """The run has taken more steps than its limit."""


@dataclass(slots=True)
class Moment:
    """A recorded suspension: the `number`-th of `lane`, at step `step` of the run."""

    lane: TaskRecord
    number: int
    step: int
    chain: Chain
    resumed_at: int | None = None
    #: The task resumed with the outcome of a future, so the stop `raise` can replace that outcome by an error.
    can_raise: bool = False


class Schedule:
    """Decides when to make a stop.

    The event loop maintains `steps` and `current`; `target` is the lane of the next stop.
    """

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
        # The lane, the step, and where the lane was suspended.
        self.fired: list[tuple[TaskRecord, int, Chain]] = []
        self._root = root
        # The scenario's code object: the position of the root before its first step.
        self._code = code
        self._records = record
        self._fire = fire
        self._is_cancelled = is_cancelled
        self._aims = list(aims)
        self._last: dict[TaskRecord, Moment] = {}
        # A stop for a newly started eager task is waiting for the current step to end.
        self.is_birth_stop_due = False
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
        """Drop the remaining stops and end the recording: the run has ended, and what follows is settling."""
        self._aims.clear()
        self._records = False
        self.is_birth_stop_due = False
        self._take_aim()

    def allow(self, steps: int) -> None:
        """Limit the run to this many more steps."""
        self.limit = self.steps + steps

    def check_limit(self) -> None:
        """Raise `Endless` if the run has taken more steps than allowed."""
        if self.steps > self.limit:
            raise Endless

    def add_task(
        self, task: Any, coroutine: object, made_at: Chain, *, is_internal: bool = False
    ) -> TaskRecord:
        """Add a lane for a new task that has not run yet. The first task is the root."""
        name = name_of(coroutine) if self.lanes.all else self._root
        if _GENERATED.search(name):
            name = steady(name)
        if is_internal:
            # The parentheses keep the numbering of the program's lanes free of the audit's own tasks.
            name = f"({name})"
        lane = self.lanes.add(task, name, made_at, self.current, self.steps)
        lane.is_internal = is_internal
        if lane.label == self._label:
            self.target = lane
        return lane

    @property
    def _root_has_ended(self) -> bool:
        """Whether the root has ended. Steps of other tasks in the same round no longer belong to the schedule."""
        return self.lanes.all[0].ended_at is not None

    def before_step(self, lane: TaskRecord, task: Any, handle: Any) -> None:
        """Called before a lane takes a step, which `steps` already includes; fires a stop of the phase `late`."""
        if self._records and not self._root_has_ended and (moment := self._last.get(lane)) is not None:
            moment.resumed_at = self.steps
            # asyncio passes the future that woke the task as the argument of the wake-up. A task that yielded bare
            # (`sleep(0)`) is resumed without arguments, and there is no outcome to replace.
            moment.can_raise = bool(getattr(handle, "_args", ()))
        if lane.number == self._number and not self._early and lane.label == self._label:
            self._make_stop(lane, task, handle)
        self.current = lane

    def after_suspension(self, lane: TaskRecord, task: Any, coroutine: object) -> None:
        """Called after a lane took a step and suspended; fires a stop of the phase `early`."""
        self.current = None
        lane.number += 1
        if self._records:
            self._record(lane, coroutine)
        if self.is_birth_stop_due:
            self.make_stop_at_birth()
        elif (lane.number == self._number and self._early and lane.label == self._label) or (
            self._after_cancel and self._is_cancelled(task)
        ):
            self._make_stop(lane, task, None)

    def after_eager_start(self, lane: TaskRecord, task: Any, coroutine: object) -> None:
        """Called when an eager task has run up to its first suspension, inside the step of the task that created it.

        A stop at this point is postponed until that step ends: no other task could stop anything in the middle of it.
        """
        lane.number = 1
        lane.is_eager = True
        if self._records:
            self._record(lane, coroutine)
        if self._number == 1 and self._early and lane.label == self._label:
            self._at_birth = (lane, task)
            self.is_birth_stop_due = True

    def after_end(self, lane: TaskRecord) -> None:
        """Called after the step in which the lane's task finished."""
        self.current = None
        lane.ended_at = self.steps
        if self.is_birth_stop_due:
            self.make_stop_at_birth()

    def _record(self, lane: TaskRecord, coroutine: object) -> None:
        if self._root_has_ended:
            return
        moment = Moment(lane, lane.number, self.steps, await_chain(coroutine))
        self._last[lane] = moment
        self.recorded.append(moment)

    def make_stop_at_birth(self) -> None:
        """Make the stop that `after_eager_start` postponed."""
        assert self._at_birth is not None
        (lane, task), self._at_birth, self.is_birth_stop_due = self._at_birth, None, False
        if not task.done():
            self._make_stop(lane, task, None)

    def _make_stop(self, lane: TaskRecord, task: Any, handle: Any) -> None:
        if self._root_has_ended:
            return
        # `get_coro` is asyncio's, `coro` is trio's.
        coroutine = task.get_coro() if hasattr(task, "get_coro") else task.coro
        chain = await_chain(coroutine)
        if lane.number == 0 and lane is self.lanes.all[0] and self._code is not None:
            # The root is a coroutine of the audit's, which has not called the scenario yet.
            chain = (*chain, (self._code, 0))
        self.fired.append((lane, self.steps, chain))
        self._take_aim()
        self._fire(lane, task, handle)
