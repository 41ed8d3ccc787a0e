"""The instrument that shows trio's steps to the schedule.

trio takes out an instrument that raises, and logs that: nothing here may. What goes wrong is given to the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.audit.model import Endless, await_chain, callers

from .private_parts import Task, could_fail, is_resident, trio

if TYPE_CHECKING:
    from .run import TrioRun


class Resumption:
    """Stands where an event loop has a handle. With arguments: what comes in could have been an error."""

    def __init__(self, *args: object) -> None:
        self._args = args


_RESUMES, _CAN_FAIL = Resumption(), Resumption(True)


class Steps(trio.abc.Instrument):
    """Every step of every task of the program, before and after."""

    def __init__(self, run: TrioRun) -> None:
        self._run = run
        self._schedule = run.schedule
        self._time = run.time
        self._lanes = run.schedule.lanes.by_id

    def task_spawned(self, task: Task) -> None:
        if not self._run.has_started:
            self._run.own_tasks.append(task)
        else:
            code = getattr(task.coro, "cr_code", None)
            is_ours = code in self._run.own_codes or is_resident(code)
            self._schedule.made(task, task.coro, callers(3), is_ours=is_ours)

    def before_task_step(self, task: Task) -> None:
        lane = self._lanes.get(id(task))
        if lane is None:
            return
        schedule = self._schedule
        schedule.steps += 1
        self._time.stop_waiting()
        try:
            schedule.check_limit()
            if lane is schedule.target or (schedule.sees_all and not lane.is_ours):
                schedule.resuming(lane, task, self._resumption(task))
            if lane is self._run.root_lane and self._run.stop.asked:
                self._run.stop.root_resumes(task)
        except Endless:
            self._run.wake("endless")
        except BaseException as error:
            self._run.fail(error)
        schedule.current = lane

    def _resumption(self, task: Task) -> Resumption:
        if self._schedule.sees_all and could_fail(task, await_chain(task.coro)):
            return _CAN_FAIL
        return _RESUMES

    def after_task_step(self, task: Task) -> None:
        lane = self._lanes.get(id(task))
        if lane is None or lane.died is not None:
            return
        schedule = self._schedule
        schedule.current = None
        if lane is schedule.target or (schedule.sees_all and not lane.is_ours):
            try:
                schedule.suspended(lane, task, task.coro)
            except BaseException as error:
                self._run.fail(error)
        else:
            lane.number += 1

    def task_exited(self, task: Task) -> None:
        lane = self._lanes.get(id(task))
        if lane is None:
            return
        self._schedule.ended(lane)
        if lane is self._run.root_lane:
            self._run.root_exited()
