"""A uvloop event loop that reports the steps of its tasks to the schedule.

The queue and the clock of uvloop are written in C and cannot be driven from here. But every step of a task still goes
through `call_soon`, as a callback whose `__self__` is the task, and can be wrapped there. Time is real:

- A run is *hung* if no task has taken a step for `hang_after` seconds and no timer is set; with a timer set, after ten
  times as long. A busy machine gets longer.
- Tasks that outlive the root get `GRACE` seconds to end by themselves, also longer on a busy machine, and less if a
  task of the same name did not end in an earlier run.
"""

from __future__ import annotations

import random
import sys
from asyncio import events
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, copy_context
from types import AsyncGeneratorType, BuiltinMethodType
from typing import Any
from weakref import WeakSet

from quiesce.audit.model import (
    Chain,
    Endless,
    Limits,
    Schedule,
    TaskRecord,
    await_chain,
    callers,
    is_audit_code,
    name_of,
)
from quiesce.audit.watch import OutsideWork, OwnSilence, open_descriptors

from .stepping_loops import is_step

try:
    import uvloop
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "uvloop is not installed; it comes with an extra: pip install 'quiesce[uvloop]'", name="uvloop"
    ) from None

# Real seconds for tasks that outlive the root.
GRACE = 0.2
_SHORT_GRACE = 0.03
# Real seconds between two checks for a hang.
_LOOK = 0.1
# After this many rounds without a new callback nothing more will happen without time passing.
_QUIET_ROUNDS = 3


class _Step:
    """A queued step of a task. Like a handle, it has the `_args` that the stop `raise` replaces."""

    __slots__ = ("_args", "callback", "context", "lane", "task")

    def __init__(
        self, lane: TaskRecord, task: Any, callback: Any, args: tuple[Any, ...], context: Context
    ) -> None:
        self.lane = lane
        self.task = task
        self.callback = callback
        self.context = context
        self._args = args


class UvLoop(uvloop.Loop):
    """A uvloop loop with those methods of `SteppingLoop` that the asyncio world uses."""

    schedule: Schedule
    # True until `enter()`, too.
    _is_paused = True

    def __init__(self, limits: Limits, persistent: set[str]) -> None:
        super().__init__()
        self._hang_after = max(limits.hang_after, limits.patience)
        self._descriptors_before = open_descriptors()
        self._outside = OutsideWork(self._new_descriptors, bool)
        self.passed_over = ""
        # The names of tasks that did not end within the full grace in an earlier run.
        self._persistent = persistent

    def _new_descriptors(self) -> list[int]:
        return sorted(open_descriptors() - self._descriptors_before)

    def prepare(self, schedule: Schedule, *, seed: int | None, eager: bool) -> None:
        """Attach the loop to a schedule. A seed shuffles the steps of each round."""
        self.schedule = schedule
        self.dropped: list[tuple[str, Chain]] = []
        self._lanes = schedule.lanes.by_id
        self._random = None if seed is None else random.Random(seed)
        self._round: list[_Step] = []
        self._next_round: list[_Step] = []
        # How many callbacks have been queued.
        self._callback_count = 0
        self._timers: list[Any] = []
        self._generators: WeakSet[AsyncGeneratorType[Any, Any]] = WeakSet()
        self._ours: set[TaskRecord] = set()
        self._error: BaseException | None = None
        self._is_finished = False
        self._default_executor: ThreadPoolExecutor | None = None

    # Being the running loop. uvloop sets this itself, but only while it runs; the audit also works between its rounds.

    def enter(self) -> None:
        """Become the running loop of this thread."""
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        events._set_running_loop(self)
        self._is_paused = False

    def exit(self) -> None:
        """Undo `enter()`."""
        self._is_paused = True
        events._set_running_loop(None)
        sys.set_asyncgen_hooks(*self._hooks)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Look as if the loop were not running: `asyncio.run` cancels all tasks between two runs of its loop."""
        self._is_paused = True
        events._set_running_loop(None)
        try:
            yield
        finally:
            events._set_running_loop(self)
            self._is_paused = False

    def is_running(self) -> bool:
        return not self._is_paused

    # Tasks and their steps

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        self._callback_count += 1
        if not is_step(callback):
            return super().call_soon(callback, *args, context=context)
        task = callback.__self__
        lane = self._lanes.get(id(task))
        if lane is None or lane.ref() is not task:
            # A wake-up for an unknown task: the task is being destroyed.
            if type(callback) is BuiltinMethodType:
                return super().call_soon(callback, *args, context=context)
            lane = self._add_lane(task)
        step = _Step(lane, task, callback, args, copy_context() if context is None else context)
        if self._random is None:
            return super().call_soon(self._take, step)
        self._next_round.append(step)
        return super().call_soon(self._take_any)

    def _add_lane(self, task: Any) -> TaskRecord:
        coroutine = task.get_coro()
        code = getattr(coroutine, "cr_code", None)
        # The first task is the root, which counts as the program's although the audit wraps it.
        is_internal = code is not None and is_audit_code(code) and bool(self._lanes)
        return self.schedule.add_task(task, coroutine, callers(2, until=_RUNNER), is_internal=is_internal)

    def _take_any(self) -> None:
        """Take a random step of this round: the queue decides when a step is taken, the seed which one."""
        if not self._round:
            self._round, self._next_round = self._next_round, []
        assert self._random is not None
        self._take(self._round.pop(self._random.randrange(len(self._round))))

    def _take(self, step: _Step) -> None:
        """Take one step and report it to the schedule."""
        schedule, lane, task = self.schedule, step.lane, step.task
        schedule.steps += 1
        is_shown = lane is schedule.target or (schedule.sees_all and not lane.is_internal)
        try:
            schedule.check_limit()
            if is_shown:
                schedule.before_step(lane, task, step)
        except BaseException as error:
            # Take the step nevertheless: a task that loses one is never resumed again, and cannot even be cancelled.
            self._fail(error)
        schedule.current = lane
        step.context.run(step.callback, *step._args)
        try:
            if is_shown and not task.done():
                schedule.after_suspension(lane, task, task.get_coro())
                return
            if task.done():
                schedule.after_end(lane)
            else:
                schedule.current = None
                lane.number += 1
            if schedule.is_birth_stop_due:
                schedule.make_stop_at_birth()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop the loop and keep an error, which `_run` raises: too many steps, or a bug in the audit.

        Raised here, inside a callback, uvloop would pass it to the exception handler.
        """
        self._error = error if self._error is None else self._error
        self.stop()

    # Generators and threads

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        self._generators.add(agen)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        self.dropped.append((name_of(agen), await_chain(agen)))
        if not self.is_closed():
            self.call_soon_threadsafe(self.create_task, agen.aclose())

    def unfinished_generators(self) -> list[tuple[str, Chain]]:
        """The async generators that were started, are still referenced and have not ended: name and position."""
        return [
            (name_of(agen), await_chain(agen))
            for agen in sorted(self._generators, key=name_of)
            if agen.ag_frame is not None and not agen.ag_running
        ]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        # uvloop does not show its default executor, and the run has to shut it down.
        if executor is None:
            if self._default_executor is None:
                self._default_executor = ThreadPoolExecutor()
            executor = self._default_executor
        return super().run_in_executor(executor, func, *args)

    # Time

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = super().call_later(delay, callback, *args, context=context)
        # With a delay of 0, uvloop returns an ordinary handle instead of a timer.
        if hasattr(handle, "when"):
            # uvloop does not list its timers, so this list is pruned now and then.
            if len(self._timers) > 100:
                self._timers = self._live_timers()
            self._timers.append(handle)
        return handle

    def _live_timers(self) -> list[Any]:
        now = self.time()
        return [timer for timer in self._timers if not timer.cancelled() and timer.when() > now]

    @property
    def is_finished(self) -> bool:
        return self._is_finished

    @is_finished.setter
    def is_finished(self, value: bool) -> None:
        self._is_finished = value
        self.stop()

    def run_until_finished(self) -> bool:
        """Run until `is_finished` is set; False if the run hangs."""
        seen, silence = -1, OwnSilence(self._outside.children)
        while not self._is_finished:
            self._run_for(min(self._hang_after / 4, _LOOK))
            if self.schedule.steps != seen:
                seen, silence = self.schedule.steps, OwnSilence(self._outside.children)
                continue
            limit = self._hang_after * (10 if self._live_timers() else 1)
            if silence.look() >= limit:
                if what := self._outside.at_work() or self._outside.connected():
                    self.passed_over = f"{what}, silent for {limit:g} s"
                return False
        return True

    def settle(self) -> None:
        """Run everything that can run without waiting."""
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            seen = self._callback_count
            # `run_forever` after `stop` runs one round.
            self.stop()
            self._run()
            quiet = quiet + 1 if self._callback_count == seen else 0
        self._ours = {lane for lane in self.schedule.lanes.all if lane.is_internal}

    def advance(self, seconds: float) -> None:
        """Give leftover tasks and timers up to `seconds` of real time, but never more than the grace."""
        leftover = self._leftover_lanes()
        is_short = all(lane.name in self._persistent for lane in leftover)
        seconds = min(seconds, _SHORT_GRACE if leftover and is_short else GRACE)
        silence, end_of_loop = OwnSilence(self._outside.children), self.time() + seconds
        while leftover or any(timer.when() <= end_of_loop for timer in self._live_timers()):
            pause = seconds - silence.look()
            if pause <= 0:
                break
            self._run_for(min(pause, 0.01))
            leftover = self._leftover_lanes()
        if not is_short:
            self._persistent.update(lane.name for lane in leftover)

    def _leftover_lanes(self) -> list[TaskRecord]:
        lanes = self.schedule.lanes.all
        return [
            lane
            for lane in lanes
            if lane.ended_at is None and lane.ref() is not None and lane not in self._ours
        ]

    def _run_for(self, seconds: float) -> None:
        timer = super().call_later(seconds, self.stop)
        try:
            self._run()
        finally:
            timer.cancel()

    def _run(self) -> None:
        # `run_forever` refuses to run while the thread has a running loop.
        events._set_running_loop(None)
        try:
            self.run_forever()
        finally:
            if not self._is_paused:
                events._set_running_loop(self)
        if self._error is not None:
            error, self._error = self._error, None
            if not isinstance(error, Endless):
                self.schedule.disarm()
            raise error


# Frames outside of this one belong to the loop.
_RUNNER = UvLoop._take.__code__
