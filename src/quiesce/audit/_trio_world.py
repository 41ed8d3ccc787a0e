"""One run of a scenario on trio, from its first step to what is left of it.

The main task of `trio.run` is the conductor. It opens a nursery, starts the root in it and waits. It is woken when the
root is over, when nothing can run any more, and when there were too many steps; nobody may cancel it, so that it is
the bystander too. Then it looks, in the order in which the asyncio world does:

1. What is pending when the root exits has *outlived* it or worse. On trio these are system tasks, tasks put into somebody
   else's nursery, and those of a nursery that was torn out of its place.
2. What can run is run, with the clock standing still: tasks that end now have merely *outlived* it.
3. The clock moves as far as `horizon`: tasks that end now are *late*. What is left has *leaked*.
4. Only then is everything cancelled, with the watch muted. A run that does not end for that is abandoned: the scheduler is
   made to fail, and the coroutines are closed by hand.
"""

from __future__ import annotations

import gc
import logging
import random
import re
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import AsyncGeneratorType
from typing import Any, Literal

from ._asyncio_world import _refusal, _where_raised
from ._lanes import Lane
from ._places import Chain, await_chain, callers, name_of
from ._points import ITEM, Point
from ._run import Outcome, Run, Sighting
from ._scenario import Scenario
from ._schedule import Endless, Schedule
from ._stops import Backend, Stop
from ._trio_insides import (
    Task,
    check_insides,
    could_fail,
    fixed_order,
    has_callbacks,
    no_threads,
    outcome,
    trio,
)
from ._trio_stops import TRIO_STOPS, CloseElsewhere, Held, TrioStop
from ._trio_time import Abandoned, VirtualTime
from ._watch import Watch
from ._world import Limits

Check = Callable[[], Any]
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DROPPED = "AsyncGenerators._finalize_one"  # trio's own task that closes a dropped generator
_GENERATOR_ERRORS = logging.getLogger("trio.async_generator_errors")


class TrioWorld:
    """trio with a virtual clock, and the order of steps decided by the seed."""

    backend: Backend = "trio"
    name = "trio"

    def __init__(self, watch: Watch, *, real_io: bool, seed: int | None, limits: Limits) -> None:
        check_insides()
        if trio.lowlevel.in_trio_run():
            raise RuntimeError("audit() calls trio.run() and cannot be called inside it: call it from a plain function")
        self.is_deterministic = not real_io
        self._watch = watch
        self._real_io = real_io
        self._seed = seed
        self._limits = limits

    def run(
        self,
        scenario: Scenario,
        stop: Stop | None,
        points: Sequence[Point] = (),
        *,
        check: Check | None = None,
        record: bool = False,
    ) -> Run:
        """Run it once, stopped at `points`."""
        with ExitStack() as stack:
            stack.enter_context(fixed_order(self._seed or 0))
            if not self._real_io:
                stack.enter_context(no_threads())
            random.seed(self._seed or 0)
            watch = self._watch
            try:
                made = _TrioRun(scenario, stop, points, watch, self._limits, record, self._real_io)
                run = made.go(check)
                is_wreck = made.close_what_is_left()
            finally:
                made = watch.schedule = None
            if is_wreck:
                gc.collect()
            watch.is_muted = False
            run.seen += watch.finish()
            watch.is_muted = True
            return run


class _Steps(trio.abc.Instrument):
    """Shows every step to the schedule. An instrument that raises would be taken out by trio: nothing here may."""

    def __init__(self, run: _TrioRun) -> None:
        self._run = run
        self._schedule = run.schedule
        self._lanes = run.schedule.lanes.by_id

    def task_spawned(self, task: Task) -> None:
        if not self._run.has_started:
            self._run.own_tasks.append(task)
        else:
            code = getattr(task.coro, "cr_code", None)
            self._schedule.made(task, task.coro, callers(3), is_ours=code in _OURS)

    def before_task_step(self, task: Task) -> None:
        lane = self._lanes.get(id(task))
        if lane is None:
            return
        schedule = self._schedule
        schedule.steps += 1
        try:
            schedule.check_limit()
            if lane.label == self._run.root_label and self._run.stop.asked:
                self._run.stop.root_resumes(task)
            if lane is schedule.target or (schedule.sees_all and not lane.is_ours):
                schedule.resuming(lane, task, self._resumption(task))
        except Endless:
            self._run.wake("endless")
        except BaseException as error:
            self._run.fail(error)
        schedule.current = lane

    def _resumption(self, task: Task) -> _Resumption:
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


class _Resumption:
    """Stands where an event loop has a handle. With arguments: what comes in could have been an error."""

    def __init__(self, *args: object) -> None:
        self._args = args


_RESUMES, _CAN_FAIL = _Resumption(), _Resumption(True)
_Wake = Literal["over", "rest", "endless"]


class _TrioRun:
    def __init__(
        self,
        scenario: Scenario,
        stop: Stop | None,
        points: Sequence[Point],
        watch: Watch,
        limits: Limits,
        record: bool,
        real_io: bool,
    ) -> None:
        item = next((point.number for point in points if point.lane == ITEM), None)
        aims = [point for point in points if point.lane != ITEM]
        self.watch = watch
        self.limits = limits
        self.scenario = scenario
        self.stop = (TrioStop if stop is None else TRIO_STOPS[stop.name])(scenario, item)
        self.schedule = Schedule(
            aims, self._fire, _never, root=scenario.name, limit=limits.steps, record=record
        )
        self.time = VirtualTime(self._on_rest, real_io=real_io, limits=limits)
        self.has_started = False
        self.root_lane: Lane | None = None
        self.root_label = scenario.name
        self.run: Run | None = None
        self.pending: list[tuple[Lane, Chain]] = []
        self.dropped: list[tuple[str, Chain]] = []
        self.was_cancelled = False
        self._conductor: Task | None = None  # while it waits
        self._news: _Wake | None = None
        self._failure: BaseException | None = None
        self._error: BaseException | None = None
        self.own_tasks: list[Task] = []  # trio's own, and the conductor
        self._generators: list[weakref.ref[AsyncGeneratorType[Any, Any]]] = []

    def go(self, check: Check | None) -> Run:
        watch = self.watch
        watch.start(self.schedule)
        _GENERATOR_ERRORS.addFilter(self._on_generator_error)
        try:
            trio.run(self._conduct, check, clock=self.time.clock, instruments=[_Steps(self)])
        except trio.TrioInternalError as error:
            if self._failure is None and not watch.is_muted:
                self._see_crash(error)
        except BaseException as error:
            if (reason := _wants_out(error)) is not None:
                raise reason from None
            if not watch.is_muted:
                self._see_crash(error)
        finally:
            _GENERATOR_ERRORS.removeFilter(self._on_generator_error)
            watch.is_muted = True
        if self._failure is not None:
            raise self._failure
        assert self.run is not None
        return self.run

    # The schedule

    def _fire(self, lane: Lane, task: Any, handle: Any) -> None:
        self.stop.fire(lane, task)

    def root_exited(self) -> None:
        self.schedule.disarm()
        self.pending = self._pending()
        self.wake("over")

    def _on_rest(self) -> None:
        if self._conductor is None:
            raise Abandoned
        self.wake("rest")

    def wake(self, news: _Wake) -> None:
        """Tell the conductor. If it waits no more, there is nobody left who could end this run."""
        if self._conductor is None:
            if news == "endless" and self.watch.is_muted:
                self.time.abandon()
            return
        conductor, self._conductor = self._conductor, None
        self._news = news
        trio.lowlevel.reschedule(conductor)

    def fail(self, error: BaseException) -> None:
        """Something is wrong with the audit itself."""
        self._failure = self._failure or error
        self.time.abandon()

    # The conductor

    async def _conduct(self, check: Check | None) -> None:
        self._watch_generators()
        try:
            async with trio.open_nursery() as nursery:
                self.stop.nursery = nursery
                self.has_started = True
                nursery.start_soon(self._root)
                self.root_lane = self.schedule.lanes.all[0]
                self.root_lane.made_at = ()
                run = self._judge(await self._wait())
                gc.collect()
                await self._settle(run, check)
                run.steps = self.schedule.steps
                run.lanes = [lane for lane in self.schedule.lanes.all if not lane.is_ours]
                was_cancelled = self.was_cancelled
                if not was_cancelled:
                    self._end()
                nursery.cancel_scope.cancel()
        except GeneratorExit:
            raise  # the run was abandoned
        except BaseException as error:
            if _wants_out(error) is not None:
                raise
            if not self.watch.is_muted:
                self._see_crash(error)
        else:
            if not self.watch.is_muted:
                self.watch.see(Sighting("bystander", "a task of somebody else", detail="it was cancelled"))
        self._end()

    def _end(self) -> None:
        """What comes from here on is our doing."""
        self.watch.is_muted = True
        self.schedule.allow(self.limits.settle_steps)
        self.time.allow(60)

    async def _root(self) -> None:
        try:
            await self.stop.run()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A Cancelled may be kept: the task ends here.
            self._error = error

    async def _wait(self) -> _Wake:
        self._news = None
        self._conductor = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._on_cancel)
        assert self._news is not None
        return self._news

    def _on_cancel(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        if isinstance(outcome.capture(raise_cancel).error, trio.Cancelled):  # type: ignore[union-attr]
            self.was_cancelled = True
            return trio.lowlevel.Abort.FAILED
        self._conductor = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _watch_generators(self) -> None:
        hooks = sys.get_asyncgen_hooks()
        first, last = hooks.firstiter, hooks.finalizer
        assert first is not None
        assert last is not None

        def on_first_step(agen: AsyncGeneratorType[Any, Any]) -> None:
            self._generators.append(weakref.ref(agen))
            first(agen)

        def on_drop(agen: AsyncGeneratorType[Any, Any]) -> None:
            self.dropped.append((name_of(agen), await_chain(agen)))
            was_muted, self.watch.is_muted = self.watch.is_muted, True
            try:
                last(agen)  # warns too, which has been told now
            finally:
                self.watch.is_muted = was_muted

        sys.set_asyncgen_hooks(on_first_step, on_drop)

    def _on_generator_error(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        name = str(record.args[0]) if isinstance(record.args, tuple) and record.args else "an async generator"
        detail = f"closing it failed: {_text(error)}" if error is not None else "closing it failed"
        self.watch.see(Sighting("generator", name.rpartition(".<locals>.")[2], detail=detail))
        return False

    # The looks

    def _judge(self, news: _Wake) -> Run:
        schedule, error = self.schedule, self._error
        self._error = None
        kind: Outcome = {"over": "returned", "rest": "hung", "endless": "endless"}[news]  # type: ignore[assignment]
        if kind == "returned":
            if isinstance(error, trio.Cancelled):
                kind = "cancelled"
            elif error is not None:
                kind = "raised"
            elif self.stop.is_caught or not self.stop.is_finished:
                kind = "cancelled"
        run = self.run = Run(
            kind,
            steps=schedule.steps,
            ended_at=schedule.steps,
            fired=tuple((lane.label, step, chain) for lane, step, chain in schedule.fired),
            moments=schedule.recorded,
            items=self.stop.items,
        )
        if news == "over":
            if error is not None:
                run.error = f"{type(error).__name__}: {error}"
                run.refused = _refusal(error)
                run.error_at = _where_raised(error)
            run.seen += self.stop.judge(error)
            return run
        self.pending = self._pending()
        detail = "it runs for ever" if news == "endless" else ""
        if news == "rest" and (thread := self.watch.busy_thread()):
            run.refused = f"it waits for the thread {thread}"
        self.watch.see(Sighting("hang", self.scenario.name, stuck_at=self._stuck_at(), detail=detail))
        schedule.disarm()
        return run

    def _stuck_at(self) -> Chain:
        assert self.root_lane is not None
        task = self.stop.closer or self.root_lane.ref()
        return await_chain(task.coro) if task is not None else ()

    def _pending(self) -> list[tuple[Lane, Chain]]:
        found: list[tuple[Lane, Chain]] = []
        for lane in self.schedule.lanes.all:
            if lane.died is None and not lane.is_ours and lane is not self.root_lane:
                task = lane.ref()
                found.append((lane, await_chain(task.coro) if task is not None else ()))
        return found

    async def _settle(self, run: Run, check: Check | None) -> None:
        watch, time = self.watch, self.time
        self.schedule.allow(self.limits.settle_steps)
        outlived: set[Lane] = set()
        late: set[Lane] = set()
        if run.outcome != "endless":
            is_busy = bool(self.pending) or has_callbacks()
            news: _Wake | None = None
            if is_busy:
                time.limit = None
                news = await self._wait()
                outlived = self._ended()
            if is_busy and news == "rest" and len(outlived) < len(self.pending):
                time.allow(self.limits.horizon)
                await self._wait()
                late = self._ended() - outlived
            if check is not None and run.outcome != "hung":
                await self._check(check)
        for name, chain in self.dropped:
            if not (self.stop.asked and self._is_own_generator(name)):
                watch.see(Sighting("generator", name, stuck_at=chain, detail="dropped; the collector closed it"))
        left = False
        for lane, chain in self.pending:
            task = lane.ref()
            if lane.name == _DROPPED and lane in outlived:
                continue  # told above
            kind = "outlived" if lane in outlived else "late" if lane in late else "leaked"
            if kind == "leaked":
                left = True
                chain = await_chain(task.coro) if task is not None else chain
            watch.see(Sighting(kind, lane.name, lane.made_at, chain))
        if not left and run.outcome not in ("hung", "endless"):
            for name, chain in self._unfinished_generators():
                watch.see(Sighting("generator", name, stuck_at=chain, detail="still held, and not closed"))

    def _ended(self) -> set[Lane]:
        return {lane for lane, _ in self.pending if lane.died is not None}

    def _is_own_generator(self, name: str) -> bool:
        return self.scenario.shape != "coroutine" and name.rpartition(".")[2] == self.scenario.name.rpartition(".")[2]

    def _unfinished_generators(self) -> list[tuple[str, Chain]]:
        alive = [agen for ref in self._generators if (agen := ref()) is not None]
        return [
            (name_of(agen), await_chain(agen))
            for agen in sorted(alive, key=name_of)
            if agen.ag_frame is not None and not agen.ag_running
        ]

    async def _check(self, check: Check) -> None:
        try:
            result = check()
            if hasattr(result, "__await__"):
                result = await self._answer(check, result)
            if result is not None and not result:
                self.watch.see(Sighting("check", name_of(check), detail=f"it said {result!r}"))
        except Exception as error:
            detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            self.watch.see(Sighting("check", name_of(check), detail=detail.strip() or "it failed"))

    async def _answer(self, check: Check, awaitable: Any) -> Any:
        """Await the user's check, in a task of its own, which may hang."""
        answers: list[outcome.Outcome[Any]] = []
        assert self.stop.nursery is not None
        self.time.allow(self.limits.horizon)
        self.stop.nursery.start_soon(self._ask, awaitable, answers)
        lane = self.schedule.lanes.all[-1]
        while not answers and await self._wait() == "over":
            pass
        if not answers:
            task = lane.ref()
            stuck = await_chain(task.coro) if task is not None else ()
            self.watch.see(Sighting("check", name_of(check), stuck_at=stuck, detail="it never ends"))
            return None
        return answers[0].unwrap()

    async def _ask(self, awaitable: Any, answers: list[outcome.Outcome[Any]]) -> None:
        answer = await outcome.acapture(_wait_for, awaitable)
        if isinstance(answer, outcome.Error) and not isinstance(answer.error, Exception):
            answer.unwrap()
        answers.append(answer)
        self.wake("over")

    # The wreck

    def _see_crash(self, error: BaseException) -> None:
        """trio itself, or something in a place from where only trio can report it, has failed."""
        while error.__cause__ is not None or isinstance(error, BaseExceptionGroup):
            error = error.__cause__ or error.exceptions[0]  # type: ignore[attr-defined]
        kind = "close" if isinstance(self.stop, Held) and "corrupted" in str(error) else "crash"
        self.watch.see(
            Sighting(kind, self.scenario.name, stuck_at=_where_raised(error), detail=_text(error))
        )
        if self.run is None:
            fired = tuple((lane.label, step, chain) for lane, step, chain in self.schedule.fired)
            steps = self.schedule.steps
            self.run = Run("raised", error=_text(error), error_at=_where_raised(error), fired=fired, steps=steps)

    def close_what_is_left(self) -> bool:
        """Close the coroutines of a run that was abandoned, so that nothing of it stays for the next."""
        tasks = [*self.own_tasks, *(lane.ref() for lane in self.schedule.lanes.all if lane.died is None)]
        left = [task.coro for task in tasks if task is not None and getattr(task.coro, "cr_frame", None) is not None]
        is_wreck = bool(left)
        while left:
            try:
                left.pop().close()  # the newest first, as trio would have ended them
            except BaseException:
                pass
        return is_wreck


def _never(task: object) -> bool:
    return False


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {_ADDRESS.sub('', str(error).partition(chr(10))[0])}".removesuffix(": ")


def _wants_out(error: BaseException) -> BaseException | None:
    """The interrupt or the exit in it, which is not ours to keep."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _wants_out(inner)) is not None), None)
    return None


_OURS = frozenset({_TrioRun._ask.__code__, CloseElsewhere.close.__code__})
