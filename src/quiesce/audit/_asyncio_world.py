"""One run of a scenario on asyncio, from its first step to what is left of it.

The order of the looks matters:

1. The root is over when a task that awaited it would go on. What is pending then has *outlived* it or worse.
2. What is ready is run, without moving the clock: tasks that end now have merely *outlived* it.
3. The clock is moved as far as `horizon`: tasks that end now are *late*.
4. The collector runs. What is left has *leaked*, whether the collector destroyed it or not.
5. Only then is everything cancelled and closed, with the watch muted: what that shakes out is our doing.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
from collections.abc import Callable, Sequence
from typing import Any

from ._asyncio_stops import ASYNCIO_STOPS, AsyncioStop
from ._lanes import Lane
from ._closed import RefusedIO
from ._loops import PureLoop, RealLoop, SteppingLoop
from ._places import Chain, await_chain, name_of
from ._points import ITEM, Point
from ._run import Outcome, Run, Sighting
from ._scenario import Scenario
from ._schedule import IN_CLEAN_UP, Aim, Endless, Schedule
from ._stops import Backend, Stop
from ._watch import Watch
from ._world import Limits

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
        return _AsyncioRun(self._new_loop(), scenario, stop, points, self._watch, self._limits, record).go(
            check, seed=self._seed, eager=self._eager
        )

    def _new_loop(self) -> SteppingLoop:
        if self._real_io:
            return RealLoop(self._limits.patience, self._limits.hang_after)
        return PureLoop()


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
            aims += [IN_CLEAN_UP] * (stop.times - 1)
        self.loop = loop
        self.watch = watch
        self.limits = limits
        self.scenario = scenario
        self.stop = (AsyncioStop if stop is None else ASYNCIO_STOPS[stop.name])(scenario, item)
        self.schedule = Schedule(aims, self._fire, _is_cancelled, limit=limits.steps, record=record)
        self.over = False
        self.pending: list[tuple[Lane, Chain]] = []
        self.refused = ""

    def go(self, check: Check | None, *, seed: int | None, eager: bool) -> Run:
        loop, stop, watch, schedule = self.loop, self.stop, self.watch, self.schedule
        random.seed(seed or 0)
        loop.prepare(schedule, seed=seed, eager=eager, is_ours=self._is_ours)
        loop.set_exception_handler(self._on_error)
        watch.start()
        bystander = None
        with loop.running():
            try:
                # Made by hand: an eager loop would run it up to its first suspension right here.
                root = asyncio.Task(stop.main(), loop=loop, context=contextvars.copy_context())
                self._name_root(root)
                stop.root = root
                root.add_done_callback(self._on_done)
                if stop.holds_bystander:
                    innocent = loop.create_future()
                    bystander = asyncio.Task(_wait_for(innocent), loop=loop)
                outcome = self._run_to_end(root)
                run = self._judge(root, outcome)
                if bystander is not None and (bystander.cancelled() or bystander.cancelling()):
                    watch.see(Sighting("bystander", "a task of somebody else", detail="it was cancelled"))
                self._settle(outcome, check)
                watch.is_muted = True
                self._tear_down(bystander)
            finally:
                stop.root = None
        loop.close()
        watch.is_muted = False
        run.seen += watch.finish()
        watch.is_muted = True
        return run

    def _is_ours(self, coroutine: object) -> bool:
        return getattr(coroutine, "cr_code", None) in _OURS

    def _name_root(self, root: asyncio.Task[Any]) -> None:
        lane = self.schedule.lanes.find(root)
        assert lane is not None
        lane.name = lane.label = self.scenario.name
        lane.made_at = ()
        self.root_lane = lane

    def _fire(self, lane: Lane, task: Any, handle: Any) -> None:
        self.stop.fire(lane, task, handle, self._alive)
        if self.stop.asked:
            for waited in self.stop.waits_for()[1:]:
                waited.add_done_callback(self._on_done)
                self._waiting.add(id(waited))

    def _alive(self) -> list[asyncio.Task[Any]]:
        tasks = [lane.ref() for lane in self.schedule.lanes.all if not lane.is_ours]
        return [task for task in tasks if task is not None and not task.done()]

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._waiting.discard(id(task))
        if task is self.stop.root:
            self._waiting.discard(0)
        if not self._waiting and not self.over:
            self.over = True
            self.pending = self._pending()

    _waiting: set[int]

    def _run_to_end(self, root: asyncio.Task[Any]) -> Outcome:
        self._waiting = {0}
        loop = self.loop
        try:
            while not self.over:
                if not loop.spin(until=float("inf")):
                    break
        except Endless:
            self.pending = self._pending()
            return "endless"
        if not self.over:
            self.pending = self._pending()
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
            run.error = f"{type(error).__name__}: {error}"
            run.refused = _refusal(error)
            run.error_at = _where_raised(error)
        if outcome in ("hung", "endless"):
            stuck = await_chain(root.get_coro()) if not root.done() else ()
            detail = "it runs for ever" if outcome == "endless" else ""
            if root.done():
                detail = "tasks that were told to end do not"
            elif outcome == "hung" and (thread := self.watch.busy_thread()):
                run.refused = f"it waits for the thread {thread}"
            self.watch.see(Sighting("hang", self.scenario.name, stuck_at=stuck, detail=detail))
        else:
            run.seen += self.stop.judge(root)
        return run

    def _pending(self) -> list[tuple[Lane, Chain]]:
        found: list[tuple[Lane, Chain]] = []
        for lane in self.schedule.lanes.all:
            task = lane.ref()
            if task is not None and not lane.is_ours and lane is not self.root_lane and not task.done():
                found.append((lane, await_chain(task.get_coro())))
        return found

    def _settle(self, outcome: Outcome, check: Check | None) -> None:
        loop, watch = self.loop, self.watch
        self.schedule.disarm()
        self.schedule.allow(self.limits.settle_steps)
        outlived: set[Lane] = set()
        late: set[Lane] = set()
        if outcome != "endless":
            try:
                while loop.spin():
                    pass
                outlived = self._ended()
                horizon = loop.now + self.limits.horizon
                while (self.pending or loop._ready or loop._scheduled) and loop.spin(until=horizon):
                    pass
                late = self._ended() - outlived
                if check is not None and outcome != "hung":
                    self._check(check, horizon)
            except Endless:
                pass
        for name, chain in loop.dropped:
            if not (self.stop.asked and self._is_own_generator(name)):
                watch.see(Sighting("generator", name, stuck_at=chain, detail="dropped; the collector closed it"))
        if self.pending or self.schedule.lanes.all:
            gc.collect()
        left = False
        for lane, chain in self.pending:
            task = lane.ref()
            detail = ""
            if lane in outlived:
                kind = "outlived"
                if lane.label.endswith(".aclose"):
                    continue  # a dropped generator, told above
            elif lane in late:
                kind = "late"
            else:
                kind, left = "leaked", True
                if task is not None:
                    chain = await_chain(task.get_coro())
                else:
                    detail = "nobody held it, and the collector destroyed it"
            watch.see(Sighting(kind, lane.name, lane.made_at, chain, detail))
        if not left and outcome not in ("hung", "endless"):
            for name, chain in loop.unfinished_generators():
                watch.see(Sighting("generator", name, stuck_at=chain, detail="still held, and not closed"))

    def _is_own_generator(self, name: str) -> bool:
        return self.scenario.shape != "coroutine" and name.rpartition(".")[2] == self.scenario.name.rpartition(".")[2]

    def _ended(self) -> set[Lane]:
        return {lane for lane, _ in self.pending if lane.died is not None}

    def _check(self, check: Check, horizon: float) -> None:
        try:
            result = check()
            if hasattr(result, "__await__"):
                task = self.loop.create_task(_wait_for(result))
                while not task.done() and self.loop.spin(until=horizon):
                    pass
                if not task.done():
                    stuck = await_chain(task.get_coro())
                    self.watch.see(Sighting("check", name_of(check), stuck_at=stuck, detail="it never ends"))
                    return
                result = task.result()
            if result is not None and not result:
                self.watch.see(Sighting("check", name_of(check), detail=f"it said {result!r}"))
        except Exception as error:
            detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            self.watch.see(Sighting("check", name_of(check), detail=detail.strip() or "it failed"))

    def _tear_down(self, bystander: asyncio.Task[Any] | None) -> None:
        """Leave nothing of this run to the next."""
        loop = self.loop
        self.schedule.allow(self.limits.settle_steps)
        if bystander is not None:
            bystander.cancel()
        for _ in range(3):
            alive = self._alive()
            for task in alive:
                task.cancel()
            try:
                while loop.spin(until=loop.now + 60 if alive else None):
                    pass
            except Endless:
                self.schedule.allow(self.limits.settle_steps)
            if not self._alive():
                break
        for task in self._alive():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        executor = getattr(loop, "_default_executor", None)
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
            loop._default_executor = None  # type: ignore[attr-defined]

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message: str = context.get("message", "")
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        text = f"{type(error).__name__}: {error}" if error is not None else message
        if isinstance(task, asyncio.Task):
            lane = self.schedule.lanes.by_id.get(id(task))
            what, made_at = name_of(task.get_coro()), lane.made_at if lane is not None else ()
            if "destroyed" in message:
                if any(lane is pending for pending, _ in self.pending):
                    return  # told as leaked
                self.watch.see(Sighting("destroyed", what, made_at, await_chain(task.get_coro())))
            elif "never retrieved" in message:
                self.watch.see(Sighting("unretrieved", what, made_at, detail=text))
            else:
                self.watch.see(Sighting("callback", what, made_at, detail=f"{message}: {text}"))
        elif "never retrieved" in message:
            self.watch.see(Sighting("unretrieved", f"a future with {type(error).__name__}", detail=text))
        elif "asynchronous generator" in message:
            what = name_of(context.get("asyncgen"))
            self.watch.see(Sighting("generator", what, detail=f"closing it failed: {text}"))
        else:
            handle = context.get("handle")
            callback = getattr(handle, "_callback", None)
            what = name_of(callback) if callback is not None else message
            self.watch.see(Sighting("callback", what, detail=f"{message}: {text}"))


def _is_cancelled(task: asyncio.Task[Any]) -> bool:
    return task.cancelling() > 0


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


def _refusal(error: BaseException) -> str:
    """What of the outside world the scenario asked for, if that is why it failed."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, RefusedIO):
            return str(seen)
        if isinstance(seen, BaseExceptionGroup):
            return next((text for inner in seen.exceptions if (text := _refusal(inner))), "")
        seen = seen.__cause__ or seen.__context__
    return ""


def _where_raised(error: BaseException) -> Chain:
    chain = []
    trace = error.__traceback__
    while trace is not None:
        chain.append((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    return tuple(chain)


_OURS = frozenset({_wait_for.__code__})
