"""uvloop, with its steps shown to the schedule.

uvloop's queue and clock are its own, in C, and cannot be driven from here. But every step of a task still comes through
`call_soon`, as a callback whose `__self__` is the task, so that it can be wrapped. Time is real:

- *hung* is a run in which no task has taken a step for `hang_after` seconds and no timer is set; with a timer set, for
  ten times as long. A busy machine is given longer.
- What outlives the root gets `GRACE` seconds to end by itself, likewise, or less once its like has been seen to stay.
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
    is_ours,
    name_of,
)
from quiesce.audit.watch import OutsideWork, SilenceOfOurs, open_descriptors

from .stepping_loops import is_step

try:
    import uvloop
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "uvloop is not installed; it comes with an extra: pip install 'quiesce[uvloop]'", name="uvloop"
    ) from None

GRACE = 0.2  # real seconds for what outlives the root
_SHORT_GRACE = 0.03
_LOOK = 0.1  # real seconds between two looks at whether it is hung
_QUIET_ROUNDS = 3  # without any new callback, and nothing more will come without time going by


class _Step:
    """A step that waits for its turn; looks like a handle, as far as a stop is concerned."""

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
    """Has the methods of `SteppingLoop`, as far as the asyncio world uses them."""

    schedule: Schedule
    _is_paused = True  # or has not been entered

    def __init__(self, limits: Limits, stays: set[str]) -> None:
        super().__init__()
        self._hang_after = max(limits.hang_after, limits.patience)
        self._descriptors_before = open_descriptors()
        self._outside = OutsideWork(self._new_descriptors, bool)
        self.passed_over = ""
        self._stays = stays  # the names of tasks that were given all their time and did not end

    def _new_descriptors(self) -> list[int]:
        return sorted(open_descriptors() - self._descriptors_before)

    def prepare(self, schedule: Schedule, *, seed: int | None, eager: bool) -> None:
        self.schedule = schedule
        self.dropped: list[tuple[str, Chain]] = []
        self._lanes = schedule.lanes.by_id
        self._random = None if seed is None else random.Random(seed)
        self._round: list[_Step] = []  # the steps of this round, of the next
        self._next_round: list[_Step] = []
        self._soon = 0  # callbacks so far
        self._timers: list[Any] = []
        self._generators: WeakSet[AsyncGeneratorType[Any, Any]] = WeakSet()
        self._ours: set[TaskRecord] = set()
        self._error: BaseException | None = None
        self._is_over = False
        self._default_executor: ThreadPoolExecutor | None = None

    # Being the running loop. uvloop is so by itself, but only while it runs.

    def enter(self) -> None:
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        events._set_running_loop(self)
        self._is_paused = False

    def leave(self) -> None:
        self._is_paused = True
        events._set_running_loop(None)
        sys.set_asyncgen_hooks(*self._hooks)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """As between two runs of the loop, which is when `asyncio.run` cancels all tasks."""
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
        self._soon += 1
        if not is_step(callback):
            return super().call_soon(callback, *args, context=context)
        task = callback.__self__
        lane = self._lanes.get(id(task))
        if lane is None or lane.ref() is not task:
            if type(callback) is BuiltinMethodType:  # the wake-up of a task that is being destroyed
                return super().call_soon(callback, *args, context=context)
            lane = self._made(task)
        step = _Step(lane, task, callback, args, copy_context() if context is None else context)
        if self._random is None:
            return super().call_soon(self._take, step)
        self._next_round.append(step)
        return super().call_soon(self._take_any)

    def _made(self, task: Any) -> TaskRecord:
        coroutine = task.get_coro()
        code = getattr(coroutine, "cr_code", None)
        is_ours_too = code is not None and is_ours(code) and bool(self._lanes)  # the first is the root
        return self.schedule.made(task, coroutine, callers(2, until=_RUNNER), is_ours=is_ours_too)

    def _take_any(self) -> None:
        """Take any step of this round. Each has a place in the queue, but no right to its own."""
        if not self._round:
            self._round, self._next_round = self._next_round, []
        assert self._random is not None
        self._take(self._round.pop(self._random.randrange(len(self._round))))

    def _take(self, step: _Step) -> None:
        schedule, lane, task = self.schedule, step.lane, step.task
        schedule.steps += 1
        is_shown = lane is schedule.target or (schedule.sees_all and not lane.is_ours)
        try:
            schedule.check_limit()
            if is_shown:
                schedule.resuming(lane, task, step)
        except BaseException as error:
            self._fail(
                error
            )  # the step is taken all the same: a task that loses one cannot even be cancelled
        schedule.current = lane
        step.context.run(step.callback, *step._args)
        try:
            if is_shown and not task.done():
                schedule.suspended(lane, task, task.get_coro())
                return
            if task.done():
                schedule.ended(lane)
            else:
                schedule.current = None
                lane.number += 1
            if schedule.is_due:
                schedule.hit_at_birth()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Too many steps, or a mistake of the audit's: to be raised where the loop is run."""
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
        """Those that were started, are still held by somebody and have not ended."""
        return [
            (name_of(agen), await_chain(agen))
            for agen in sorted(self._generators, key=name_of)
            if agen.ag_frame is not None and not agen.ag_running
        ]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
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
        if hasattr(handle, "when"):  # one for now is an ordinary handle
            if len(self._timers) > 100:
                self._timers = self._live_timers()
            self._timers.append(handle)
        return handle

    def _live_timers(self) -> list[Any]:
        now = self.time()
        return [timer for timer in self._timers if not timer.cancelled() and timer.when() > now]

    @property
    def is_over(self) -> bool:
        return self._is_over

    @is_over.setter
    def is_over(self, value: bool) -> None:
        self._is_over = value
        self.stop()

    def run_until_over(self) -> bool:
        """Run until `is_over` is set. False: it is hung."""
        seen, silence = -1, SilenceOfOurs(self._outside.children)
        while not self._is_over:
            self._run_for(min(self._hang_after / 4, _LOOK))
            if self.schedule.steps != seen:
                seen, silence = self.schedule.steps, SilenceOfOurs(self._outside.children)
                continue
            limit = self._hang_after * (10 if self._live_timers() else 1)
            if silence.look() >= limit:
                if what := self._outside.at_work() or self._outside.connected():
                    self.passed_over = f"{what}, silent for {limit:g} s"
                return False
        return True

    def settle(self) -> None:
        """Run what can run without time going by."""
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            seen = self._soon
            self.stop()
            self._run()
            quiet = quiet + 1 if self._soon == seen else 0
        self._ours = {lane for lane in self.schedule.lanes.all if lane.is_ours}

    def advance(self, seconds: float) -> None:
        """Give what is left its time. There is not much of it, as it is real."""
        left = self._left()
        is_short = all(lane.name in self._stays for lane in left)
        seconds = min(seconds, _SHORT_GRACE if left and is_short else GRACE)
        silence, end_of_loop = SilenceOfOurs(self._outside.children), self.time() + seconds
        while left or any(timer.when() <= end_of_loop for timer in self._live_timers()):
            pause = seconds - silence.look()
            if pause <= 0:
                break
            self._run_for(min(pause, 0.01))
            left = self._left()
        if not is_short:
            self._stays.update(lane.name for lane in left)

    def _left(self) -> list[TaskRecord]:
        lanes = self.schedule.lanes.all
        return [
            lane for lane in lanes if lane.died is None and lane.ref() is not None and lane not in self._ours
        ]

    def _run_for(self, seconds: float) -> None:
        timer = super().call_later(seconds, self.stop)
        try:
            self._run()
        finally:
            timer.cancel()

    def _run(self) -> None:
        events._set_running_loop(None)  # uvloop insists
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


_RUNNER = UvLoop._take.__code__  # below it there is only the loop
