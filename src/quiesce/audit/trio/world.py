"""The trio world: one `trio.run` per run, each with its own clock and without anything of the previous run."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from quiesce.audit.model import Backend, Limits, Point, Run, Scenario, Stop
from quiesce.audit.watch import Clocks, Watch

from .private_parts import check_insides, counted_threads, fixed_order, no_threads, trio
from .run import TrioRun

Check = Callable[[], Any]


class TrioWorld:
    """trio with a virtual clock and with a seed that decides the order of steps."""

    backend: Backend = "trio"
    name = "trio"

    def __init__(self, watch: Watch, *, real_io: bool, seed: int | None, limits: Limits) -> None:
        check_insides()
        if trio.lowlevel.in_trio_run():
            raise RuntimeError(
                "audit() calls trio.run() and cannot be called inside it: call it from a plain function"
            )
        self.is_deterministic = not real_io
        self._watch = watch
        self._real_io = real_io
        self._seed = seed
        self._limits = limits
        self._clocks = Clocks(is_real=real_io)
        # The most steps that a run without a stop has taken.
        self._longest = 0

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
        with ExitStack() as stack:
            stack.enter_context(fixed_order(self._seed or 0))
            workers = None
            if self._real_io:
                workers = stack.enter_context(counted_threads())
            else:
                stack.enter_context(no_threads())
            random.seed(self._seed or 0)
            watch, limits = self._watch, self._limits.longer(patience)
            limit = limits.steps
            if stop is not None and self._longest:
                # A stopped run that takes twenty times as many steps as an undisturbed one will not end. Steps on trio
                # are slow, so waiting for the general limit would take long.
                limit = min(limit, 20 * self._longest + limits.settle_steps)
            trio_run = TrioRun(scenario, stop, points, watch, limits, limit, record, workers)
            try:
                with trio_run.generators.listening(), self._clocks.following(trio_run.time.elapsed):
                    run = trio_run.execute(check)
                    was_abandoned = trio_run.close_leftover_tasks()
            finally:
                del trio_run
            # Only here, not in `finally`: if the run raised, `GuardedWorld` reads the schedule to see how far it came.
            watch.schedule = None
            if was_abandoned:
                gc.collect()
            if stop is None:
                self._longest = max(self._longest, run.steps)
            watch.is_muted = False
            run.sightings += watch.finish()
            watch.is_muted = True
            return run
