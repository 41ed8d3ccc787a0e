"""One run of a scenario on trio, from its first step to its leftovers.

The main task of `trio.run` is the conductor. It opens a nursery, starts the root in it and waits. It is woken when the
root has ended, when nothing can run any more, and when there were too many steps. The scenario has no right to cancel
it, so it also serves as the bystander. Its checks have the same order as in the asyncio world:

1. Tasks that are pending when the root exits have *outlived* it or worse. On trio these are system tasks, tasks that
   were started in a nursery outside of the root, and those of a nursery that was exited out of order.
2. Everything that can run does so, while the clock stands still: tasks that end now have merely *outlived* the root.
3. The clock moves as far as `horizon`: tasks that end now are *late*. The remaining tasks have *leaked*.
4. Only then the conductor cancels everything, with the watch muted. A run that does not end after that is abandoned:
   its scheduler is made to fail, and the coroutines are closed by hand.
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

from .crash import close_tasks, crash, exit_request, root_cause
from .generators import Generators
from .private_parts import CountedThreads, Task, has_callbacks, outcome, trio
from .steps import Steps
from .stops import TRIO_STOPS, CloseElsewhere, ReleaseItem, TrioStop
from .virtual_time import Abandoned, VirtualTime

Check = Callable[[], Any]
Wake: TypeAlias = Literal["ended", "rest", "endless"]


class TrioRun:
    """One run. Drop it afterwards: it refers to objects that the garbage collector is to find."""

    # The code of the tasks that belong to the audit itself.
    own_codes: frozenset[CodeType]

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
        # The scenario cancelled the conductor.
        self._conductor_was_cancelled = False
        # The conductor has begun to tear down the run.
        self._is_ending = False
        # The conductor's task while it waits.
        self._conductor: Task | None = None
        # Why the conductor was woken last.
        self._wake_reason: Wake = "ended"
        # A bug in the audit, to be raised after the run.
        self._failure: BaseException | None = None
        # The exception of the root.
        self._error: BaseException | None = None
        # trio's own tasks and the conductor.
        self.own_tasks: list[Task] = []

    def execute(self, check: Check | None) -> Run:
        """Run the scenario to its end, look for leftovers, and tear everything down."""
        self.watch.start(self.schedule)
        ended_by: BaseException | None = None
        try:
            trio.run(self._conduct, check, clock=self.time.clock, instruments=[Steps(self)])
        except BaseException as error:
            if (reason := exit_request(error)) is not None:
                raise reason from None
            if not isinstance(root_cause(error), Abandoned):
                ended_by = error
        finally:
            self.watch.is_muted = True
        if self._failure is not None:
            raise self._failure
        if ended_by is not None and (self._conductor_was_cancelled or not self._is_ending):
            self._record_crash(ended_by)
        assert self.run is not None
        if self._conductor_was_cancelled and ended_by is None:
            self.run.sightings.append(
                Sighting("bystander", "a task of somebody else", detail="it was cancelled")
            )
        return self.run

    # The schedule

    def _fire(self, lane: TaskRecord, task: Any, handle: Any) -> None:
        self.stop.fire(lane, task)

    def root_exited(self) -> None:
        self.schedule.disarm()
        self.pending = self._pending_lanes()
        self.wake("ended")

    def _on_rest(self) -> None:
        if self._conductor is None:
            raise Abandoned
        self.wake("rest")

    def wake(self, reason: Wake) -> None:
        """Wake the conductor. If it is not waiting and the tear-down takes too many steps, abandon the run."""
        if self._conductor is None:
            if reason == "endless" and self.watch.is_muted:
                self.time.abandon()
            return
        conductor, self._conductor = self._conductor, None
        self._wake_reason = reason
        trio.lowlevel.reschedule(conductor)

    def fail(self, error: BaseException) -> None:
        """Abandon the run because of a bug in the audit, and raise the error after it."""
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
            run.lanes = [lane for lane in self.schedule.lanes.all if not lane.is_internal]
            # From here on the audit itself is the cause of what happens.
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
            # A Cancelled normally has to reach its scope. It may be kept here because the task ends.
            self._error = error

    async def _wait(self) -> Wake:
        self._conductor = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._on_cancel)
        return self._wake_reason

    def _on_cancel(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        # Refuse to be cancelled, and remember it: the conductor must go on to judge the run. A KeyboardInterrupt is let
        # through.
        reason: Any = outcome.capture(raise_cancel)
        if isinstance(reason.error, trio.Cancelled):
            self._conductor_was_cancelled = self._conductor_was_cancelled or not self._is_ending
            return trio.lowlevel.Abort.FAILED
        self._conductor = None
        return trio.lowlevel.Abort.SUCCEEDED

    # The checks

    def _judge(self, reason: Wake) -> Run:
        error, self._error = self._error, None
        kind: Outcome = {"ended": "returned", "rest": "hung", "endless": "endless"}[reason]  # type: ignore[assignment]
        if kind == "returned":
            if isinstance(error, trio.Cancelled):
                kind = "cancelled"
            elif error is not None:
                kind = "raised"
            elif self.stop.is_caught or not self.stop.is_finished:
                kind = "cancelled"
        run = self.run = self._new_run(kind)
        if reason == "ended":
            if error is not None:
                run.error = text_of(error)
                run.refused = refusal(error)
                run.error_at = where_raised(error)
            run.sightings += self.stop.judge(error)
            return run
        self.pending = self._pending_lanes()
        detail = "it runs forever" if reason == "endless" else ""
        if reason == "rest" and (thread := self.watch.busy_thread()):
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

    def _pending_lanes(self) -> list[tuple[TaskRecord, Chain]]:
        found: list[tuple[TaskRecord, Chain]] = []
        for lane in self.schedule.lanes.all:
            if lane.ended_at is None and not lane.is_internal and lane is not self.root_lane:
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
            reason: Wake | None = None
            if is_busy:
                time.limit = None
                reason = await self._wait()
                outlived = self._ended_lanes()
            if is_busy and reason == "rest" and len(outlived) < len(self.pending):
                time.allow(self.limits.horizon)
                await self._wait()
                late = self._ended_lanes() - outlived
            if check is not None and run.outcome != "hung":
                await self._check(check)
        for name, chain in self.generators.dropped:
            if not (self.stop.stops_made and self.scenario.owns_generator(name)):
                watch.see(
                    Sighting(
                        "generator", name, stuck_at=chain, detail="dropped; the garbage collector closed it"
                    )
                )
        has_leaked = False
        for lane, chain in self.pending:
            if lane.name.endswith(".aclose") and lane.ended_at is not None:
                continue  # a dropped generator, reported above
            kind = "outlived" if lane in outlived else "late" if lane in late else "leaked"
            task = lane.ref() if kind == "leaked" else None
            has_leaked = has_leaked or kind == "leaked"
            stuck = chain if task is None else await_chain(task.coro)
            watch.see(Sighting(kind, lane.name, lane.made_at, stuck))
        if not has_leaked and run.outcome not in ("hung", "endless"):
            for name, chain in self.generators.unfinished():
                watch.see(
                    Sighting("generator", name, stuck_at=chain, detail="still referenced, and not closed")
                )

    def _ended_lanes(self) -> set[TaskRecord]:
        return {lane for lane, _ in self.pending if lane.ended_at is not None}

    async def _check(self, check: Check) -> None:
        try:
            result = check()
            if hasattr(result, "__await__"):
                result = await self._await_check(check, result)
            if result is not None and not result:
                self.watch.see(Sighting("check", name_of(check), detail=f"it returned {result!r}"))
        except Exception as error:
            detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            self.watch.see(Sighting("check", name_of(check), detail=detail.strip() or "it failed"))

    async def _await_check(self, check: Check, awaitable: Any) -> Any:
        """Await the user's check in a separate task, because it may hang."""
        outcomes: list[outcome.Outcome[Any]] = []
        assert self.stop.nursery is not None
        self.time.allow(self.limits.horizon)
        self.stop.nursery.start_soon(self._run_check, awaitable, outcomes)
        lane = self.schedule.lanes.all[-1]
        while not outcomes and await self._wait() == "ended":
            pass
        if not outcomes:
            task = lane.ref()
            stuck = await_chain(task.coro) if task is not None else ()
            self.watch.see(Sighting("check", name_of(check), stuck_at=stuck, detail="it never ends"))
            return None
        return outcomes[0].unwrap()

    async def _run_check(self, awaitable: Any, outcomes: list[outcome.Outcome[Any]]) -> None:
        answer = await outcome.acapture(_wait_for, awaitable)
        if isinstance(answer, outcome.Error) and not isinstance(answer.error, Exception):
            answer.unwrap()
        outcomes.append(answer)
        self.wake("ended")

    # The wreck

    def _record_crash(self, error: BaseException) -> None:
        error = root_cause(error)
        where = where_raised(error)
        if where and where[-1][0].co_filename == __file__:
            raise error  # a bug in the audit, not in trio or the scenario
        sighting = crash(self.scenario.name, error, is_closing=isinstance(self.stop, ReleaseItem))
        if self.run is None:
            self.run = self._new_run("raised")
            self.run.error, self.run.error_at = sighting.detail, where
            self.run.lanes = [lane for lane in self.schedule.lanes.all if not lane.is_internal]
            self.run.sightings += self.stop.sightings
        # A sighting from before the crash is nearer to the cause.
        if not any(earlier.kind in ("close", "bystander") for earlier in self.run.sightings):
            self.run.sightings.append(sighting)

    def close_leftover_tasks(self) -> bool:
        """Close the tasks of an abandoned run, so that nothing reaches the next one; False if there were none."""
        return close_tasks(
            [*self.own_tasks, *(lane.ref() for lane in self.schedule.lanes.all if lane.ended_at is None)]
        )


def _never(task: object) -> bool:
    return False


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


TrioRun.own_codes = frozenset({TrioRun._run_check.__code__, CloseElsewhere.close.__code__})
