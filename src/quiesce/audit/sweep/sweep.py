"""The sweep: run the scenario, record its points, and stop it at each of them.

Two uninjected runs come first. If they differ, points do not identify anything, and the verdict says so. Then every
combination of stop, phase and point gets a fresh run of its own. A run that does not reach its point does not count as
covered.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from quiesce.audit.findings import AuditResult, Cell, Finding, Findings, LaneSpan, Mark, Strip, Timeline
from quiesce.audit.model import (
    ITEM,
    MORE_PATIENCE,
    STOPS,
    Moment,
    Phase,
    Place,
    Point,
    Run,
    Scenario,
    Sighting,
    Stop,
    TaskRecord,
    Token,
    World,
    digest,
    place,
    places,
)
from quiesce.audit.watch import RefusedIO

from .doubts import Doubts, impatience_hint, needs_patience, patience_note

# The stop `raise` skips waits in these files: in a real program the futures that they wait for cannot fail.
_NEVER_FAIL = ("asyncio/locks.py", "asyncio/queues.py", "asyncio/tasks.py", "asyncio/taskgroups.py")
# The kernel waits for its own futures, which never get an error either.
_NEVER_FAIL_IN = "/quiesce/kernel/"
_WAITING = ("/asyncio/", "/trio/", "/anyio/")
# Scenarios use `sleep` in place of real I/O, so it counts as able to fail.
_MAY_FAIL = ("sleep",)
# How many findings get a timeline.
TIMELINES = 20
# How many findings have their example run once more.
CONFIRMED = 50


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep has got."""

    done: int
    total: int
    strip: str
    findings: int


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for a big sweep."""

    #: Stop at only one point per await chain.
    dedupe: bool = False
    #: The most points per strip, chosen by `seed`.
    sample: int | None = None
    #: Real seconds for the whole sweep.
    time_limit: float | None = None
    seed: int = 0


_was_frozen_before = False


def _is_frozen() -> bool:
    """Whether other code has frozen the heap."""
    # `gc.get_freeze_count` only counts, and does not say who froze the objects. So a positive answer is remembered.
    global _was_frozen_before
    _was_frozen_before = _was_frozen_before or gc.get_freeze_count() > 0
    return _was_frozen_before


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Inside the block, collect garbage only when the audit asks for it, and only among objects that the runs created.

    The freeze takes every older object out of each collection, which makes it about a hundred times cheaper.
    """
    was_enabled, was_frozen = gc.isenabled(), _is_frozen()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        # Collect what the last run referred to while the watch is still installed and muted.
        gc.collect()
        # `unfreeze` would also release objects that other code froze before, so then everything stays frozen.
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()


class BrokenBaseline(Exception):
    """The scenario fails without being stopped."""


class NothingToDo(Exception):
    """None of the requested stops exists in any of the requested phases."""


class NotDeterministic(Exception):
    """Two uninjected runs of the scenario differ."""


class Unresolved(Exception):
    """A replay token whose run does not exist in the program any more."""


class Sweep:
    """One sweep: fills in `result` run by run."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        result: AuditResult,
        *,
        check: Callable[[], Any] | None,
        budget: Budget,
        again: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._world = world
        self._scenario = scenario
        self._check = check
        self._budget = budget
        self._again = again
        self._progress = progress
        self._result = result
        self._found = Findings()
        self._started = time.monotonic()
        self._moments: list[Moment] = []
        self._lanes: list[TaskRecord] = []
        self._items = 0
        # The factor for the real-time limits of every run.
        self._patience = 1
        # The run that made more patience necessary.
        self._hasty: Run | None = None
        self._doubts = Doubts()
        # One of the stops broke the scenario: it no longer runs even undisturbed.
        self._is_broken = False

    # The uninjected run

    def baseline(self) -> None:
        """Record the points of the uninjected scenario; raises if it fails, or if no two consecutive runs agree."""
        runs = [self._plain_run(), self._plain_run()]
        if self._world.is_deterministic and (difference := first_difference(runs[0], runs[1])):
            runs.append(self._plain_run())
            if first_difference(runs[1], runs[2]):
                raise NotDeterministic(difference)
            self._result.notes.append(f"the first run differed from the later ones ({difference})")
        if self._hasty is not None:
            self._result.notes.append(patience_note(self._hasty, self._patience))
        last = runs[-1]
        self._moments = last.moments
        self._lanes = [lane for lane in last.lanes if lane.created_at < last.ended_at]
        if not self._world.is_deterministic:
            common = {(m.lane.label, m.number) for m in runs[0].moments}
            self._moments = [m for m in last.moments if (m.lane.label, m.number) in common]
            if len(self._moments) < len(last.moments):
                self._result.notes.append(
                    "the order of events differs from run to run; points that not every run has were left out"
                )
        self._items = last.items
        self._result.points = len(self._moments)
        findings = self._found.add(last, None, None, ())
        self._result.baseline = Cell((), (), "finding" if findings else "clean", findings)

    def _run(
        self, stop: Stop | None, points: tuple[Point, ...] = (), *, record: bool = False, more: int = 1
    ) -> Run:
        """Run the scenario once, with `more` times the patience of the other runs."""
        self._result.runs += 1
        return self._world.run(
            self._scenario, stop, points, check=self._check, record=record, patience=self._patience * more
        )

    def _plain_run(self) -> Run:
        RefusedIO.refusals.clear()
        run = self._run(None, record=True)
        if (
            run.passed_over
            and (run.outcome != "returned" or run.sightings)
            and self._patience <= MORE_PATIENCE
        ):
            hasty, run = run, self._run(None, record=True, more=MORE_PATIENCE)
            if needs_patience(hasty, run):
                self._patience *= MORE_PATIENCE
                self._hasty = hasty
        refused = run.refused or next(iter(RefusedIO.refusals), "")
        if refused:
            raise BrokenBaseline(
                f"{refused}{_at(places(run.error_at))}, and the audit's world is closed: "
                "use the real-I/O mode (real_io=True, --real-io), or a stand-in"
            )
        if run.outcome == "raised":
            raise BrokenBaseline(f"it raised {run.error}{_at(places(run.error_at))}{impatience_hint(run)}")
        if run.outcome == "cancelled":
            raise BrokenBaseline("it cancelled itself")
        if run.outcome in ("hung", "endless"):
            hang = next(s for s in run.sightings if s.kind == "hang")
            how = "nothing can run any more" if run.outcome == "hung" else f"stopped after {run.steps} steps"
            if run.outcome == "hung" and hang.detail:
                how = hang.detail
            raise BrokenBaseline(f"it never ends: {how}{_at(places(hang.stuck_at))}{impatience_hint(run)}")
        if run.outcome == "blocked":
            hang = run.sightings[0]
            raise BrokenBaseline(f"it never ends: {hang.detail}{_at(places(hang.stuck_at))}")
        return run

    # The sweep

    def sweep(self, stops: Sequence[Stop], phases: Sequence[Phase], depth: int) -> None:
        """Make every stop at every point, then confirm the examples of the findings."""
        plans: list[tuple[Stop, Phase, list[tuple[Point, tuple[Place, ...]]]]] = [
            (stop, phase, self._choose(self.points(stop, phase)))
            for stop in stops
            for phase in stop.phases
            if phase in phases
        ]
        if not plans:
            names, wanted = ", ".join(stop.name for stop in stops), ", ".join(phases)
            raise NothingToDo(f"the stops {names} do not exist in the phases {wanted}: nothing was stopped")
        if not any(points for _, _, points in plans):
            self._result.notes.append("nothing was stopped: it has no point where these stops can be made")
        self._total = sum(len(points) for _, _, points in plans)
        self._done = 0
        for stop, phase, points in plans:
            if not points:
                continue
            strip = Strip(stop.name, stop.says, phase)
            self._result.strips.append(strip)
            for point, where in points:
                self._run_cell(strip, stop, phase, (point,), where)
            if depth > 1 and stop.deepens:
                self._second_stops(stop, phase, [point for point, _ in points])
            if self._run_again(stop, phase):
                break
        self._result.findings = self._found.sorted()
        self._confirm()

    def points(self, stop: Stop, phase: Phase) -> list[tuple[Point, tuple[Place, ...]]]:
        """Every point at which this stop can be made in this phase, and where the lane is suspended there."""
        if stop.aims_at == "items":
            return [(Point(ITEM, number, phase), ()) for number in range(self._items + 1)]
        root = self._scenario.name
        lanes = [
            lane
            for lane in self._lanes
            if stop.aims_at == "tree"
            or (stop.aims_at == "root" and (phase == "early" or lane.label == root))
            or (stop.aims_at == "others" and lane.label != root)
        ]
        # Tasks that never suspend have such a point too. Eager tasks have none: they start when they are created.
        if phase == "unstarted":
            return [(Point(lane.label, 0, phase), ()) for lane in lanes if not lane.is_eager]
        found: list[tuple[Point, tuple[Place, ...]]] = []
        for moment in self._moments:
            if moment.lane not in lanes or (phase == "late" and moment.resumed_at is None):
                continue
            if stop.name != "raise" or _could_fail(moment):
                found.append((Point(moment.lane.label, moment.number, phase), places(moment.chain)))
        return found

    def _choose(self, points: list[tuple[Point, tuple[Place, ...]]]) -> list[tuple[Point, tuple[Place, ...]]]:
        budget = self._budget
        if budget.dedupe:
            chains: dict[object, tuple[Point, tuple[Place, ...]]] = {}
            for point, where in points:
                chains.setdefault(where or point, (point, where))
            points = list(chains.values())
        if budget.sample is not None and len(points) > budget.sample:
            chosen = sorted(random.Random(budget.seed).sample(range(len(points)), budget.sample))
            points = [points[i] for i in chosen]
            self._result.is_complete = False
        return points

    def _run_cell(
        self, strip: Strip, stop: Stop, phase: Phase, points: tuple[Point, ...], where: tuple[Place, ...]
    ) -> Cell:
        cell = Cell(points, where, "skipped")
        strip.cells.append(cell)
        self._done += 1
        if self._is_out_of_time() or self._is_broken:
            self._result.is_complete = False
            return cell
        run = self._stopped_run(stop, points, where)
        if run is None:
            cell.mark = "missed"
            self._result.is_complete = False
            return cell
        self._resolve(run, stop, points, where)
        if self._again:
            run.sightings += self._again_sightings()
        cell.findings = self._found.add(run, stop, phase, points)
        cell.mark = mark_of(cell.findings)
        if self._progress is not None:
            self._progress(Progress(self._done, self._total, strip.name, len(self._found.sorted())))
        return cell

    def _stopped_run(
        self, stop: Stop, points: tuple[Point, ...], where: tuple[Place, ...], *, more: int = 1
    ) -> Run | None:
        """Run the scenario and stop it at these points; None if no run reaches them."""
        for _ in range(1 if self._world.is_deterministic else 3):
            run = self._run(stop, points, more=more)
            if self._reached_points(run, points, where):
                return run
        return None

    def _resolve(self, run: Run, stop: Stop, points: tuple[Point, ...], where: tuple[Place, ...]) -> None:
        """Mark the sightings that may only be due to a lack of patience with work outside the loop."""
        spot = stop, points[0].phase, where
        if doubtful := self._doubts.doubtful(run, spot):
            patient = self._stopped_run(stop, points, where, more=MORE_PATIENCE)
            self._doubts.resolve(run, spot, doubtful, patient)

    def _reached_points(self, run: Run, points: tuple[Point, ...], where: tuple[Place, ...]) -> bool:
        """Whether the run was stopped at all its points, and at the first one in the same code as in the baseline."""
        if points[0].lane == ITEM:
            return True
        if len(run.fired) < len(points):
            return False
        return points[0].phase == "unstarted" or not where or places(run.fired[0][2]) == where

    def _is_out_of_time(self) -> bool:
        limit = self._budget.time_limit
        return limit is not None and time.monotonic() - self._started > limit

    def _second_stops(self, stop: Stop, phase: Phase, firsts: list[Point]) -> None:
        """For each first stop, make a second one at every suspension that follows it."""
        strip = Strip(stop.name, f"{stop.says}, twice", phase, depth=2)
        for first in firsts:
            if self._is_out_of_time():
                self._result.is_complete = False
                return
            run = self._run(stop, (first,), record=True)
            if not run.fired:
                continue
            step = run.fired[0][1]
            later = [m for m in run.moments if m.step > step or (m.step == step and first.phase != "early")]
            self._total += len(later)
            for moment in later:
                second = Point(moment.lane.label, moment.number, "early")
                self._run_cell(strip, stop, phase, (first, second), places(run.fired[0][2]))
            if strip.cells and strip not in self._result.strips:
                self._result.strips.append(strip)

    # After a strip

    def _run_again(self, stop: Stop, phase: Phase) -> bool:
        """Check after a strip that the undisturbed scenario still works; True if the sweep has to end here.

        What a stop has broken in this process stays broken, so later stops would show nothing. With `again` the check
        has already been made after each run.
        """
        if self._is_broken:
            self._result.is_complete = False
            self._result.notes.append(
                f"the sweep ended after {stop.name}/{phase}: the scenario no longer runs in this process"
            )
            return True
        if self._again or self._is_out_of_time() or not (seen := self._again_sightings()):
            return False
        self._found.add(Run("returned", sightings=seen), stop, phase, ())
        self._result.is_complete = False
        self._result.notes.append(
            f"the sweep ended after {stop.name}/{phase}, one of whose stops broke the scenario for this process; "
            "again=True (--again) names it"
        )
        return True

    def _again_sightings(self) -> list[Sighting]:
        run = self._run(None)
        if run.outcome != "returned" and run.passed_over:
            run = self._run(None, more=MORE_PATIENCE)
        if run.outcome == "returned":
            return []
        self._is_broken = True
        detail = f"uninjected, it {run.outcome if run.outcome != 'raised' else 'raised ' + run.error}"
        return [Sighting("again", self._scenario.name, detail=detail)]

    def _confirm(self) -> None:
        """Run the examples once more, and add a note for each that does not show its finding again."""
        if self._is_broken:
            return
        for finding in self._result.findings[:CONFIRMED]:
            example = finding.example
            if not example.points or finding.kind == "again" or finding.doubt or self._is_out_of_time():
                continue
            for _ in range(1 if self._world.is_deterministic else 3):
                run = self._run(STOPS[example.stop], example.points)
                if any((s.kind, s.what) == (finding.kind, finding.what) for s in run.sightings):
                    break
            else:
                self._result.notes.append(
                    f"{finding.kind} {finding.what} did not appear again at {example.token}: it does not depend on the "
                    "point alone"
                )

    def replay(self, token: Token) -> None:
        """Repeat the run of a token; raises `Unresolved` if the program has no such run any more."""
        stop = STOPS[token.stop]
        first = token.points[0]
        where: tuple[Place, ...] = ()
        if first.lane == ITEM:
            if first.number > self._items:
                raise Unresolved(f"it has {self._items} items, and the token names item {first.number}")
        else:
            where = self._find(first)
        strip = Strip(stop.name, stop.says, first.phase, depth=len(token.points))
        self._result.strips.append(strip)
        self._done, self._total = 0, 1
        run = self._run(stop, token.points)
        if first.lane != ITEM and (
            len(run.fired) < len(token.points) or digest(run.fired[0][2]) != token.print
        ):
            raise Unresolved(f"the code suspended at {first} is not what it was when the token was written")
        self._resolve(run, stop, token.points, where)
        if self._again:
            run.sightings += self._again_sightings()
        findings = self._found.add(run, stop, first.phase, token.points)
        strip.cells.append(Cell(token.points, where, mark_of(findings), findings))
        self._result.findings = self._found.sorted()
        self._result.is_complete = False

    def _find(self, point: Point) -> tuple[Place, ...]:
        """Where the lane is suspended at a point of this program; raises `Unresolved` if there is no such point."""
        if point.number == 0 and any(lane.label == point.lane for lane in self._lanes):
            return ()
        for moment in self._moments:
            if (moment.lane.label, moment.number) == (point.lane, point.number):
                return places(moment.chain)
        raise Unresolved(f"there is no point {point} in this program any more")

    def cut_short(self) -> None:
        """Mark the sweep as interrupted, and make the findings so far its result."""
        self._result.findings = self._found.sorted()
        self._result.is_complete = False
        self._result.is_interrupted = True

    def draw_timelines(self) -> None:
        """Run the examples again and record their steps."""
        for finding in self._result.findings[:TIMELINES]:
            example = finding.example
            if example.token in self._result.timelines or (example.stop and not example.points):
                continue
            stop = STOPS[example.stop] if example.stop else None
            run = self._world.run(self._scenario, stop, example.points, record=True, patience=self._patience)
            self._result.timelines[example.token] = timeline(run)


def mark_of(findings: list[Finding]) -> Mark:
    """The mark of a cell with these findings."""
    if not findings:
        return "clean"
    if any(finding.severity == "error" for finding in findings):
        return "finding"
    return "unresolved" if any(finding.doubt for finding in findings) else "warning"


def _could_fail(moment: Moment) -> bool:
    """Whether the operation that a task waits for could fail in a real program."""
    if not moment.can_raise or not moment.chain:
        return False
    files = [code.co_filename.replace("\\", "/") for code, _ in moment.chain]
    if moment.chain[-1][0].co_name in _MAY_FAIL:
        return True
    # The innermost file outside of asyncio, trio and anyio: the code that decided to wait.
    waiter = next((file for file in reversed(files) if not any(part in file for part in _WAITING)), "")
    return not (files[-1].endswith(_NEVER_FAIL) or _NEVER_FAIL_IN in waiter)


def first_difference(one: Run, other: Run) -> str:
    """Describe the first difference between two uninjected runs; "" if there is none."""
    for a, b in zip(one.moments, other.moments, strict=False):
        if (a.lane.label, a.number, a.chain) != (b.lane.label, b.number, b.chain):
            return f"{_describe(a)} in one run, {_describe(b)} in the next"
    if len(one.moments) != len(other.moments):
        return f"{len(one.moments)} suspensions in one run, {len(other.moments)} in the next"
    return ""


def _describe(moment: Moment) -> str:
    where = places(moment.chain)
    return f"{moment.lane.label} suspended{_at(where)}"


def _at(where: tuple[Place, ...]) -> str:
    """The innermost place outside of libraries, with " at " in front; "" if no place is known."""
    if not where:
        return ""
    return f" at {next((p for p in reversed(where) if not p.in_library), where[-1])}"


def timeline(run: Run) -> Timeline:
    """The timeline of a recorded run."""
    waits: dict[str, list[tuple[int, int | None, str]]] = {}
    for moment in run.moments:
        inner = next((place(s) for s in reversed(moment.chain) if not place(s).in_library), None)
        waits.setdefault(moment.lane.label, []).append((moment.step, moment.resumed_at, str(inner or "")))
    spans = tuple(
        LaneSpan(
            lane.label,
            lane.created_at,
            lane.ended_at if lane.ended_at is not None and lane.ended_at <= run.steps else None,
            lane.parent.label if lane.parent is not None else None,
            places(lane.made_at),
            tuple(waits.get(lane.label, ())),
        )
        for lane in run.lanes
    )
    return Timeline(spans, run.steps, tuple((step, label) for label, step, _ in run.fired), run.ended_at)
