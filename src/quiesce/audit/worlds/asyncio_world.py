"""One run of a scenario on asyncio, from its first step to its leftovers.

The order of the checks matters:

1. The root has ended when a task that awaited it would continue. Tasks that are pending then have *outlived* it or
   worse.
2. Everything that is ready runs, without moving the clock: tasks that end now have merely *outlived* the root.
3. The clock moves as far as `horizon`: tasks that end now are *late*.
4. The garbage collector runs. The remaining tasks have *leaked*, whether the collector destroyed them or not.
5. Only then the run cancels and closes everything, with the watch muted: what that causes is the audit's own doing.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from quiesce.audit.model import (
    IN_CLEAN_UP,
    ITEM,
    Aim,
    Backend,
    Chain,
    Endless,
    Limits,
    Outcome,
    Point,
    Run,
    Scenario,
    Schedule,
    Sighting,
    Stop,
    TaskRecord,
    await_chain,
    classify_complaint,
    name_of,
)
from quiesce.audit.watch import Clocks, Watch, refusal, text_of, where_raised

from .asyncio_stops import ASYNCIO_STOPS, AsyncioStop
from .interpreter_faults import InterpreterFaults
from .real_loop import RealLoop
from .stepping_loops import START, PureLoop, SteppingLoop

Check = Callable[[], Any]


class AsyncioWorld:
    """asyncio with the audit's own event loop."""

    backend: Backend = "asyncio"
    is_deterministic = True

    def __init__(self, watch: Watch, *, eager: bool, real_io: bool, seed: int | None, limits: Limits) -> None:
        self.name = "asyncio-eager" if eager else "asyncio"
        self.is_deterministic = not real_io
        self._watch = watch
        self._eager = eager
        self._real_io = real_io
        self._seed = seed
        self._limits = limits
        self._clocks = Clocks(is_real=real_io)

    def run(
        self,
        scenario: Scenario,
        stop: Stop | None,
        points: Sequence[Point] = (),
        *,
        check: Check | None = None,
        record: bool = False,
        patience: int = 1,
    ) -> Run:
        limits = self._limits.longer(patience)
        loop = self._new_loop(limits)
        run = _AsyncioRun(loop, scenario, stop, points, self._watch, limits, record)
        with self._time_of(loop):
            return run.execute(check, seed=self._seed, eager=self._eager)

    def _time_of(self, loop: SteppingLoop) -> AbstractContextManager[None]:
        return self._clocks.following(lambda: loop.now - START)

    def _new_loop(self, limits: Limits) -> SteppingLoop:
        return RealLoop(limits) if self._real_io else PureLoop()


class _AsyncioRun:
    def __init__(
        self,
        loop: SteppingLoop,
        scenario: Scenario,
        stop: Stop | None,
        points: Sequence[Point],
        watch: Watch,
        limits: Limits,
        record: bool,
    ) -> None:
        item = next((point.number for point in points if point.lane == ITEM), None)
        aims: list[Aim] = [point for point in points if point.lane != ITEM]
        if stop is not None and aims:
            aims.extend(IN_CLEAN_UP for _ in range(stop.times - 1))
        self.loop = loop
        self.watch = watch
        self.limits = limits
        self.scenario = scenario
        self.stop = (AsyncioStop if stop is None else ASYNCIO_STOPS[stop.name])(scenario, item)
        self.schedule = Schedule(
            aims,
            self._fire,
            _is_cancelled,
            root=scenario.name,
            code=scenario.code,
            limit=limits.steps,
            record=record,
        )
        self.faults = InterpreterFaults()
        self.pending: list[tuple[TaskRecord, Chain]] = []
        # The tasks that have to end before the run does: 0 stands for the root, the others are ids.
        self._waiting = {0}

    def execute(self, check: Check | None, *, seed: int | None, eager: bool) -> Run:
        """Run the scenario to its end, look for leftovers, and tear everything down."""
        loop, stop, watch, schedule = self.loop, self.stop, self.watch, self.schedule
        random.seed(seed or 0)
        loop.prepare(schedule, seed=seed, eager=eager)
        loop.set_exception_handler(self._on_error)
        watch.start(schedule)
        loop.enter()
        try:
            # Not `loop.create_task`: an eager loop would run the task up to its first suspension right here.
            root = asyncio.Task(stop.main(), loop=loop, context=contextvars.copy_context())
            root.add_done_callback(self._on_done)
            stop.root = root
            self.root_lane = schedule.lanes.all[0]
            self.root_lane.made_at = ()
            bystander = (
                asyncio.Task(_wait_for(loop.create_future()), loop=loop) if stop.holds_bystander else None
            )
            outcome = self._run_to_end(root)
            run = self._judge(root, outcome)
            if bystander is not None and bystander.cancelling():
                watch.see(Sighting("bystander", "a task of somebody else", detail="it was cancelled"))
            # The root's exception refers to its frames, and these to objects that the garbage collector is to find, so
            # drop the root now. A root that hangs is kept: the collector must not destroy it.
            self._kept_alive = [root] if outcome in ("hung", "endless") else []
            del root
            stop.forget()
            self._settle(outcome, check)
            run.passed_over = loop.passed_over
            # Tasks that end after this are ended by the tear-down, not by themselves.
            run.steps = schedule.steps
            run.lanes = [lane for lane in schedule.lanes.all if not lane.is_internal]
            watch.is_muted = True
            self._tear_down()
            self._kept_alive.clear()
        finally:
            stop.forget()
            loop.exit()
            loop.close()
        watch.is_muted = False
        run.sightings = self.faults.named([*run.sightings, *watch.finish()])
        watch.is_muted = True
        return run

    def _fire(self, lane: TaskRecord, task: Any, handle: Any) -> None:
        # A stopped run that takes ten times as many steps as it took up to the stop will not end. Without this limit it
        # would take as many steps as an undisturbed run may.
        self.schedule.allow(10 * self.schedule.steps + self.limits.settle_steps)
        self.faults.before_stop(self.stop.root, self.schedule.lanes.all)
        self.stop.fire(lane, task, handle, self._alive)
        if self.stop.stops_made:
            for waited in self.stop.waits_for()[1:]:
                waited.add_done_callback(self._on_done)
                self._waiting.add(id(waited))

    def _alive(self, *, with_internal: bool = False) -> list[asyncio.Task[Any]]:
        lanes = [lane for lane in self.schedule.lanes.all if lane.ended_at is None]
        tasks = [lane.ref() for lane in lanes if with_internal or not lane.is_internal]
        return [task for task in tasks if task is not None and not task.done()]

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._waiting.discard(id(task))
        if task is self.stop.root:
            self._waiting.discard(0)
        if not self._waiting and not self.loop.is_finished:
            self.loop.is_finished = True
            self.pending = self._pending_lanes()

    def _run_to_end(self, root: asyncio.Task[Any]) -> Outcome:
        try:
            is_finished = self.loop.run_until_finished()
        except Endless:
            self.pending = self._pending_lanes()
            return "endless"
        if not is_finished:
            self.pending = self._pending_lanes()
            return "hung"
        if root.cancelled():
            return "cancelled"
        return "returned" if root.exception() is None else "raised"

    def _judge(self, root: asyncio.Task[Any], outcome: Outcome) -> Run:
        schedule = self.schedule
        run = Run(
            outcome,
            steps=schedule.steps,
            ended_at=schedule.steps,
            fired=tuple((lane.label, step, chain) for lane, step, chain in schedule.fired),
            moments=schedule.recorded,
            items=self.stop.items,
        )
        if outcome == "raised":
            error = root.exception()
            assert error is not None
            run.error = text_of(error)
            run.refused = refusal(error)
            run.error_at = where_raised(error)
        if outcome in ("hung", "endless"):
            stuck = await_chain(root.get_coro()) if not root.done() else ()
            detail = "it runs forever" if outcome == "endless" else ""
            if root.done():
                detail = "tasks that were cancelled do not end"
            elif outcome == "hung" and (thread := self.watch.busy_thread()):
                if isinstance(self.loop, PureLoop):
                    run.refused = f"it waits for the thread {thread}"
                detail = f"it waits for the thread {thread}"
            self.watch.see(Sighting("hang", self.scenario.name, stuck_at=stuck, detail=detail))
        else:
            run.sightings += self.stop.judge(root)
        return run

    def _pending_lanes(self) -> list[tuple[TaskRecord, Chain]]:
        found: list[tuple[TaskRecord, Chain]] = []
        for lane in self.schedule.lanes.all:
            if lane.ended_at is not None or lane.is_internal or lane is self.root_lane:
                continue
            task = lane.ref()
            if task is not None and not task.done():
                found.append((lane, await_chain(task.get_coro())))
        return found

    def _settle(self, outcome: Outcome, check: Check | None) -> None:
        loop, watch = self.loop, self.watch
        self.schedule.disarm()
        self.schedule.allow(self.limits.settle_steps)
        outlived: set[TaskRecord] = set()
        late: set[TaskRecord] = set()
        if outcome != "endless":
            try:
                loop.settle()
                outlived = self._ended_lanes()
                loop.advance(self.limits.horizon)
                late = self._ended_lanes() - outlived
                if check is not None and outcome != "hung":
                    self._check(check)
            except Endless:
                pass
        for name, chain in loop.dropped:
            # A stop that drops or closes the scenario's own generator is not a leak of the scenario's.
            if not (self.stop.stops_made and self.scenario.owns_generator(name)):
                watch.see(
                    Sighting(
                        "generator", name, stuck_at=chain, detail="dropped; the garbage collector closed it"
                    )
                )
        gc.collect()
        has_leaked = False
        for lane, stood_at in self.pending:
            task, chain = lane.ref(), stood_at
            detail = ""
            if lane in outlived:
                kind = "outlived"
                if lane.label.endswith(".aclose"):
                    continue  # a dropped generator, reported above
            elif lane in late:
                kind = "late"
            else:
                kind, has_leaked = "leaked", True
                if task is not None:
                    chain = await_chain(task.get_coro())
                else:
                    detail = "nothing referenced it, and the garbage collector destroyed it"
            watch.see(Sighting(kind, lane.name, lane.made_at, chain, detail))
        if not has_leaked and outcome not in ("hung", "endless"):
            for name, chain in loop.unfinished_generators():
                watch.see(
                    Sighting("generator", name, stuck_at=chain, detail="still referenced, and not closed")
                )

    def _ended_lanes(self) -> set[TaskRecord]:
        return {lane for lane, _ in self.pending if lane.ended_at is not None}

    def _check(self, check: Check) -> None:
        try:
            result = check()
            if hasattr(result, "__await__"):
                task = self.loop.create_task(_wait_for(result))
                self.loop.advance(self.limits.horizon)
                if not task.done():
                    self._kept_alive.append(task)
                    stuck = await_chain(task.get_coro())
                    self.watch.see(Sighting("check", name_of(check), stuck_at=stuck, detail="it never ends"))
                    return
                result = task.result()
            if result is not None and not result:
                self.watch.see(Sighting("check", name_of(check), detail=f"it returned {result!r}"))
        except Exception as error:
            detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            self.watch.see(Sighting("check", name_of(check), detail=detail.strip() or "it failed"))

    def _tear_down(self) -> None:
        """Cancel and close everything, so that nothing of this run reaches the next one."""
        loop = self.loop
        alive = self._alive(with_internal=True)
        for _ in range(3):
            for task in alive:
                task.cancel()
            self.schedule.allow(self.limits.settle_steps)
            try:
                loop.settle()
                if alive := self._alive(with_internal=True):
                    loop.advance(60)
                    alive = self._alive(with_internal=True)
            except Endless:
                pass
            if not alive:
                break
        for task in alive:
            # It survived three cancels. Its destruction must not be reported in a later run.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        executor = getattr(loop, "_default_executor", None)
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
            loop._default_executor = None  # type: ignore[attr-defined]

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        sighting = classify_complaint(
            context, self.schedule.lanes, (lane for lane, _ in self.pending), sys._getframe(1)
        )
        if sighting is not None:
            self.watch.see(sighting)


def _is_cancelled(task: asyncio.Task[Any]) -> bool:
    return task.cancelling() > 0


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable
