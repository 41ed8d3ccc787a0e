"""The instrument that reports trio's steps to the schedule.

trio removes an instrument that raises, and only logs the error. So nothing in this module may raise: errors are passed
to the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.audit.model import Endless, await_chain, callers

from .private_parts import Task, could_fail, is_resident, trio

if TYPE_CHECKING:
    from .run import TrioRun


class Resumption:
    """Takes the place of an event loop's handle. It has arguments if the task could have been resumed with an error."""

    def __init__(self, *args: object) -> None:
        self._args = args


_RESUMES, _CAN_FAIL = Resumption(), Resumption(True)


class Steps(trio.abc.Instrument):
    """Reports every step of every task of the program, before and after it."""

    def __init__(self, run: TrioRun) -> None:
        self._run = run
        self._schedule = run.schedule
        self._time = run.time
        self._lanes = run.schedule.lanes.by_id

    def task_spawned(self, task: Task) -> None:
        # Before the root, trio creates its own tasks and the conductor. They get no lanes.
        if not self._run.has_started:
            self._run.own_tasks.append(task)
        else:
            code = getattr(task.coro, "cr_code", None)
            is_internal = code in self._run.own_codes or is_resident(code)
            self._schedule.add_task(task, task.coro, callers(3), is_internal=is_internal)

    def before_task_step(self, task: Task) -> None:
        lane = self._lanes.get(id(task))
        if lane is None:
            return
        schedule = self._schedule
        schedule.steps += 1
        # A task runs, so something has happened: the next pause for outside work starts afresh.
        self._time.stop_waiting()
        try:
            schedule.check_limit()
            if lane is schedule.target or (schedule.sees_all and not lane.is_internal):
                schedule.before_step(lane, task, self._resumption(task))
            if lane is self._run.root_lane and self._run.stop.stops_made:
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
        if lane is None or lane.ended_at is not None:
            return
        schedule = self._schedule
        schedule.current = None
        if lane is schedule.target or (schedule.sees_all and not lane.is_internal):
            try:
                schedule.after_suspension(lane, task, task.coro)
            except BaseException as error:
                self._run.fail(error)
        else:
            lane.number += 1

    def task_exited(self, task: Task) -> None:
        lane = self._lanes.get(id(task))
        if lane is None:
            return
        self._schedule.after_end(lane)
        if lane is self._run.root_lane:
            self._run.root_exited()
