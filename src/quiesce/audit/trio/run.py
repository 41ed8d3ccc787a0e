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
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Literal, TypeAlias

from quiesce.audit.model import (
    ITEM,
    Chain,
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
    name_of,
)
from quiesce.audit.watch import Watch, refusal, text_of, where_raised

from .crash import close_tasks, crash, root_cause, wants_out
from .generators import Generators
from .private_parts import CountedThreads, Task, has_callbacks, outcome, trio
from .steps import Steps
from .stops import TRIO_STOPS, CloseElsewhere, Held, TrioStop
from .virtual_time import Abandoned, VirtualTime

Check = Callable[[], Any]
Wake: TypeAlias = Literal["over", "rest", "endless"]


class TrioRun:
    """Made for one run, and to be forgotten after it: it holds what the collector is to find."""

    own_codes: frozenset[CodeType]  # of tasks that are the audit's

    def __init__(
        self,
        scenario: Scenario,
        stop: Stop | None,
        points: Sequence[Point],
        watch: Watch,
        limits: Limits,
        limit: int,
        record: bool,
        workers: CountedThreads | None,
    ) -> None:
        item = next((point.number for point in points if point.lane == ITEM), None)
        aims = [point for point in points if point.lane != ITEM]
        self.watch = watch
        self.limits = limits
        self.scenario = scenario
        self.stop = (TrioStop if stop is None else TRIO_STOPS[stop.name])(scenario, item)
        self.schedule = Schedule(
            aims, self._fire, _never, root=scenario.name, code=scenario.code, limit=limit, record=record
        )
        self.time = VirtualTime(self._on_rest, workers=workers, limits=limits)
        self.has_started = False
        self.root_lane: TaskRecord | None = None
        self.run: Run | None = None
        self.pending: list[tuple[TaskRecord, Chain]] = []
        self.generators = Generators(watch)
        self._is_hurt = False  # the conductor was cancelled by somebody
        self._is_ending = False
        self._conductor: Task | None = None  # while it waits
        self._news: Wake = "over"  # the last it was told
        self._failure: BaseException | None = None
        self._error: BaseException | None = None
        self.own_tasks: list[Task] = []  # trio's own, and the conductor

    def go(self, check: Check | None) -> Run:
        self.watch.start(self.schedule)
        ended_by: BaseException | None = None
        try:
            trio.run(self._conduct, check, clock=self.time.clock, instruments=[Steps(self)])
        except BaseException as error:
            if (reason := wants_out(error)) is not None:
                raise reason from None
            if not isinstance(root_cause(error), Abandoned):
                ended_by = error
        finally:
            self.watch.is_muted = True
        if self._failure is not None:
            raise self._failure
        if ended_by is not None and (self._is_hurt or not self._is_ending):
            self._crashed(ended_by)
        assert self.run is not None
        if self._is_hurt and ended_by is None:
            self.run.seen.append(Sighting("bystander", "a task of somebody else", detail="it was cancelled"))
        return self.run

    # The schedule

    def _fire(self, lane: TaskRecord, task: Any, handle: Any) -> None:
        self.stop.fire(lane, task)

    def root_exited(self) -> None:
        self.schedule.disarm()
        self.pending = self._pending()
        self.wake("over")

    def _on_rest(self) -> None:
        if self._conductor is None:
            raise Abandoned
        self.wake("rest")

    def wake(self, news: Wake) -> None:
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
        self._failure = error if self._failure is None else self._failure
        self.time.abandon()

    # The conductor

    async def _conduct(self, check: Check | None) -> None:
        self.generators.install()
        async with trio.open_nursery() as nursery:
            self.stop.nursery = nursery
            self.has_started = True
            nursery.start_soon(self._root, name=self.scenario.name)
            self.root_lane = self.schedule.lanes.all[0]
            self.root_lane.made_at = ()
            run = self._judge(await self._wait())
            gc.collect()
            await self._settle(run, check)
            if self.time.outside is not None:
                run.passed_over = self.time.outside.passed_over
            run.steps = self.schedule.steps
            run.lanes = [lane for lane in self.schedule.lanes.all if not lane.is_ours]
            # What comes from here on is our doing.
            self._is_ending = self.watch.is_muted = True
            self.schedule.allow(self.limits.settle_steps)
            self.time.allow(60)
            nursery.cancel_scope.cancel()

    async def _root(self) -> None:
        try:
            await self.stop.run()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A Cancelled may be kept: the task ends here.
            self._error = error

    async def _wait(self) -> Wake:
        self._conductor = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._on_cancel)
        return self._news

    def _on_cancel(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        reason: Any = outcome.capture(raise_cancel)
        if isinstance(reason.error, trio.Cancelled):
            self._is_hurt = self._is_hurt or not self._is_ending
            return trio.lowlevel.Abort.FAILED
        self._conductor = None
        return trio.lowlevel.Abort.SUCCEEDED

    # The looks

    def _judge(self, news: Wake) -> Run:
        error, self._error = self._error, None
        kind: Outcome = {"over": "returned", "rest": "hung", "endless": "endless"}[news]  # type: ignore[assignment]
        if kind == "returned":
            if isinstance(error, trio.Cancelled):
                kind = "cancelled"
            elif error is not None:
                kind = "raised"
            elif self.stop.is_caught or not self.stop.is_finished:
                kind = "cancelled"
        run = self.run = self._new_run(kind)
        if news == "over":
            if error is not None:
                run.error = text_of(error)
                run.refused = refusal(error)
                run.error_at = where_raised(error)
            run.seen += self.stop.judge(error)
            return run
        self.pending = self._pending()
        detail = "it runs for ever" if news == "endless" else ""
        if news == "rest" and (thread := self.watch.busy_thread()):
            detail = f"it waits for the thread {thread}"
            run.refused = "" if self.time.outside is not None else detail
        self.watch.see(Sighting("hang", self.scenario.name, stuck_at=self._stuck_at(), detail=detail))
        self.schedule.disarm()
        return run

    def _new_run(self, kind: Outcome) -> Run:
        schedule = self.schedule
        return Run(
            kind,
            steps=schedule.steps,
            ended_at=schedule.steps,
            fired=tuple((lane.label, step, chain) for lane, step, chain in schedule.fired),
            moments=schedule.recorded,
            items=self.stop.items,
        )

    def _stuck_at(self) -> Chain:
        assert self.root_lane is not None
        task = self.stop.closer or self.root_lane.ref()
        return await_chain(task.coro) if task is not None else ()

    def _pending(self) -> list[tuple[TaskRecord, Chain]]:
        found: list[tuple[TaskRecord, Chain]] = []
        for lane in self.schedule.lanes.all:
            if lane.died is None and not lane.is_ours and lane is not self.root_lane:
                task = lane.ref()
                found.append((lane, await_chain(task.coro) if task is not None else ()))
        return found

    async def _settle(self, run: Run, check: Check | None) -> None:
        watch, time = self.watch, self.time
        self.schedule.allow(self.limits.settle_steps)
        outlived: set[TaskRecord] = set()
        late: set[TaskRecord] = set()
        if run.outcome != "endless":
            is_busy = bool(self.pending) or has_callbacks()
            news: Wake | None = None
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
        for name, chain in self.generators.dropped:
            if not (self.stop.asked and self._is_own_generator(name)):
                watch.see(
                    Sighting("generator", name, stuck_at=chain, detail="dropped; the collector closed it")
                )
        left = False
        for lane, chain in self.pending:
            if lane.name.endswith(".aclose") and lane.died is not None:
                continue  # a dropped generator, told above
            kind = "outlived" if lane in outlived else "late" if lane in late else "leaked"
            task = lane.ref() if kind == "leaked" else None
            left = left or kind == "leaked"
            stuck = chain if task is None else await_chain(task.coro)
            watch.see(Sighting(kind, lane.name, lane.made_at, stuck))
        if not left and run.outcome not in ("hung", "endless"):
            for name, chain in self.generators.unfinished():
                watch.see(Sighting("generator", name, stuck_at=chain, detail="still held, and not closed"))

    def _ended(self) -> set[TaskRecord]:
        return {lane for lane, _ in self.pending if lane.died is not None}

    def _is_own_generator(self, name: str) -> bool:
        return (
            self.scenario.shape != "coroutine"
            and name.rpartition(".")[2] == self.scenario.name.rpartition(".")[2]
        )

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

    def _crashed(self, error: BaseException) -> None:
        error = root_cause(error)
        where = where_raised(error)
        if where and where[-1][0].co_filename == __file__:
            raise error  # not trio: the audit itself
        sighting = crash(self.scenario.name, error, is_closing=isinstance(self.stop, Held))
        if self.run is None:
            self.run = self._new_run("raised")
            self.run.error, self.run.error_at = sighting.detail, where
            self.run.lanes = [lane for lane in self.schedule.lanes.all if not lane.is_ours]
            self.run.seen += self.stop.seen
        # What was seen before it broke down is nearer to the cause.
        if not any(seen.kind in ("close", "bystander") for seen in self.run.seen):
            self.run.seen.append(sighting)

    def close_what_is_left(self) -> bool:
        """Of a run that was abandoned, so that nothing of it stays for the next. False: it was not."""
        return close_tasks(
            [*self.own_tasks, *(lane.ref() for lane in self.schedule.lanes.all if lane.died is None)]
        )


def _never(task: object) -> bool:
    return False


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


TrioRun.own_codes = frozenset({TrioRun._ask.__code__, CloseElsewhere.close.__code__})
