"""One run's schedule: which task steps when, and the stop at its point.

The event loop tells it of every step, before and after. It counts suspensions, and when a lane is at the point
aimed for, it fires. Nothing else is done on the way, so that an injected run costs what a plain one costs; chains
are read only when `record` is set, or at the point itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from ._lanes import Lane, Lanes
from ._places import Chain, await_chain, name_of
from ._points import Point

# Where to stop next: a point, or wherever a task that has been cancelled next suspends, in its clean-up.
IN_CLEAN_UP: Final = "in clean-up"
Aim: TypeAlias = Point | Literal["in clean-up"]
Fire: TypeAlias = Callable[[Lane, Any, Any], None]  # the lane, its task, the handle that was about to run it


class Endless(Exception):
    """The run has taken more steps than a run may."""


@dataclass(slots=True)
class Moment:
    """A suspension that happened: `number` of `lane`, at step `step` of the run."""

    lane: Lane
    number: int
    step: int
    chain: Chain
    resumed_at: int | None = None
    can_raise: bool = False  # it resumed with the outcome of a future, which could have been an error


class Schedule:
    def __init__(
        self, aims: Sequence[Aim], fire: Fire, is_cancelled: Callable[[Any], bool], *, limit: int, record: bool
    ) -> None:
        self.lanes = Lanes()
        self.steps = 0
        self.current: Lane | None = None
        self.moments: list[Moment] | None = [] if record else None
        self.fired: list[tuple[Lane, int, Chain]] = []  # lane, step, where it stood
        self._limit = limit
        self._fire = fire
        self._is_cancelled = is_cancelled
        self._aims = list(aims)
        self._last: dict[Lane, Moment] = {}
        self._eager: tuple[Lane, Any] | None = None
        self._take_aim()

    def _take_aim(self) -> None:
        aim = self._aims.pop(0) if self._aims else None
        self._after_cancel = aim == IN_CLEAN_UP
        self._lane, self._number, self._early = "", -1, False
        if isinstance(aim, Point):
            self._lane, self._number, self._early = aim.lane, aim.number, aim.phase == "early"

    def disarm(self) -> None:
        """The run is over: what happens from now on is not part of the schedule."""
        self._aims.clear()
        self._take_aim()
        self.moments, self._moments_kept = None, self.moments

    @property
    def recorded(self) -> list[Moment]:
        return self.moments or getattr(self, "_moments_kept", None) or []

    def allow(self, steps: int) -> None:
        """Let the run take so many more steps."""
        self._limit = self.steps + steps

    def made(self, task: Any, coroutine: object, made_at: Chain) -> Lane:
        """A task has been made; it has not run yet."""
        return self.lanes.add(task, name_of(coroutine), made_at, self.current, self.steps)

    def resuming(self, lane: Lane, task: Any, handle: Any) -> None:
        """The lane is about to take a step."""
        self.steps += 1
        if self.steps > self._limit:
            raise Endless
        if self.moments is not None and (moment := self._last.get(lane)) is not None:
            moment.resumed_at = self.steps
            moment.can_raise = bool(getattr(handle, "_args", ()))
        if lane.number == self._number and not self._early and lane.label == self._lane:
            self._hit(lane, task, handle)
        self.current = lane

    def suspended(self, lane: Lane, task: Any, coroutine: object) -> None:
        """The lane has taken a step and waits for something."""
        self.current = None
        lane.number += 1
        if self.moments is not None:
            moment = Moment(lane, lane.number, self.steps, await_chain(coroutine))
            self._last[lane] = moment
            self.moments.append(moment)
        if self._eager is not None:
            (first, first_task), self._eager = self._eager, None
            self._hit(first, first_task, None)
        elif (lane.number == self._number and self._early and lane.label == self._lane) or (
            self._after_cancel and self._is_cancelled(task)
        ):
            self._hit(lane, task, None)

    def suspended_at_birth(self, lane: Lane, task: Any, coroutine: object) -> None:
        """An eager task has run up to its first suspension inside its maker's step.

        A stop here is made when that step ends: in the middle of it nobody else could make one.
        """
        lane.number = 1
        if self.moments is not None:
            moment = Moment(lane, 1, self.steps, await_chain(coroutine))
            self._last[lane] = moment
            self.moments.append(moment)
        if self._number == 1 and self._early and lane.label == self._lane:
            self._eager = (lane, task)

    def ended(self, lane: Lane) -> None:
        """The lane's task is done."""
        self.current = None
        lane.died = self.steps
        if self._eager is not None:
            (first, task), self._eager = self._eager, None
            self._hit(first, task, None)

    def _hit(self, lane: Lane, task: Any, handle: Any) -> None:
        coroutine = task.get_coro() if hasattr(task, "get_coro") else task.coro
        self.fired.append((lane, self.steps, await_chain(coroutine)))
        self._take_aim()
        self._fire(lane, task, handle)
