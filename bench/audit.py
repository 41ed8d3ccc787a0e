"""How many injected runs the audit makes in a second of CPU time, beside cancellens on the same points.

    make bench-audit
    python bench/audit.py

Both cancel the root task early, at each suspension of the root task: cancellens knows no others. The audit
does so with every check on; cancellens has none of its own, and its oracle here looks at nothing. Its sleeps
are real, so only CPU time is compared. Rounds are interleaved and the best of each is shown;
docs/performance.md holds a result.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version

from cancellens import Case, Completion, Limits, sweep

from quiesce.audit.findings.findings import Findings
from quiesce.audit.model.points import Point
from quiesce.audit.model.scenarios import Scenario
from quiesce.audit.model.stops import STOPS
from quiesce.audit.model.world import Limits as RunLimits
from quiesce.audit.sweep.auditing import make_world
from quiesce.audit.sweep.sweep import quiet_collector
from quiesce.audit.watch.no_io import closed_world
from quiesce.audit.watch.process_state import Watch

ROUNDS = 5
AsyncFunction = Callable[[], Awaitable[None]]


async def fetch(pages: int, seconds: float) -> None:
    for _ in range(pages):
        await asyncio.sleep(seconds)


async def small() -> None:
    """Two downloads, and their owner who looks in from time to time: 13 suspension points."""
    async with asyncio.TaskGroup() as group:
        group.create_task(fetch(4, 0.020))
        group.create_task(fetch(4, 0.022))
        for _ in range(4):
            await asyncio.sleep(0.010)


async def mid() -> None:
    """Sixteen downloads, two at a time, each with a time limit, and their owner: 136 suspension points."""
    places = asyncio.Semaphore(2)

    async def limited(seconds: float) -> None:
        await asyncio.sleep(0)
        async with places, asyncio.timeout(60):
            await fetch(6, seconds)

    async with asyncio.TaskGroup() as group:
        for number in range(16):
            group.create_task(limited(0.005 + number / 10_000))
        for _ in range(9):
            await asyncio.sleep(0.010)


def audit_rate(scenario: AsyncFunction) -> tuple[float, int, int]:
    """Runs per CPU second, the root's points, and all points."""
    checked, stop = Scenario(scenario), STOPS["cancel"]
    with Watch() as watch, closed_world(), quiet_collector():
        world = make_world("asyncio", watch, real_io=False, seed=None, limits=RunLimits())
        moments = world.run(checked, None, record=True).moments
        points = [Point(m.lane.label, m.number, "early") for m in moments if m.lane.label == checked.name]
        findings = Findings()
        runs, start = 0, time.process_time()
        while time.process_time() - start < 0.5:
            for point in points:
                run = world.run(checked, stop, (point,))
                assert run.fired
                findings.add(run, stop, "early", (point,))
                runs += 1
        rate = runs / (time.process_time() - start)
    assert not findings.sorted(), findings.sorted()
    return rate, len(points), len(moments)


def cancellens_rate(scenario: AsyncFunction) -> tuple[float, int]:
    """Runs per CPU second, and the points."""

    async def nothing(*_: object) -> None:
        pass

    async def oracle(_: None, completion: Completion) -> None:
        pass

    async def operation(_: None) -> None:
        await scenario()

    case = Case(factory=nothing, operation=operation, oracle=oracle, teardown=nothing)
    limits = Limits(max_points=1000, max_attempts=1000, max_depth=1, total_timeout=60)
    runs = points = 0
    start = time.process_time()
    while time.process_time() - start < 0.05:
        report = asyncio.run(sweep(case, limits=limits))
        report.assert_passed()
        runs += report.coverage.attempts_run
        points = report.coverage.baseline_points
    return runs / (time.process_time() - start), points


def main() -> None:
    print(f"CPython {platform.python_version()}, cancellens {version('cancellens')}, {platform.system()}")
    print("\n| scenario | root's points | all points | audit (runs/CPU s) | cancellens | ratio |")
    print("|---|---|---|---|---|---|")
    for scenario in (small, mid):
        ours = theirs = 0.0
        points = everything = their_points = 0
        for _ in range(ROUNDS):
            rate, points, everything = audit_rate(scenario)
            ours = max(ours, rate)
            rate, their_points = cancellens_rate(scenario)
            theirs = max(theirs, rate)
        assert points == their_points, (points, their_points)
        print(
            f"| {scenario.__name__} | {points} | {everything} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.1f} |"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
