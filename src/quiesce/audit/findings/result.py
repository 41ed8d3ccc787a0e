"""The result of an audit: verdict, findings, and one strip per stop and phase."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from quiesce.audit.model import Backend, Phase, Place, Point

from .findings import Finding

# BASELINE-BROKEN: the scenario fails without being stopped. NON-DETERMINISTIC: two undisturbed runs differ. UNRESOLVED:
# a replay token no longer fits the program, or a finding is in doubt.
Verdict: TypeAlias = Literal["CLEAN", "FINDINGS", "BASELINE-BROKEN", "NON-DETERMINISTIC", "UNRESOLVED"]
EXIT_CODES: dict[Verdict, int] = {
    "CLEAN": 0,
    "FINDINGS": 1,
    "BASELINE-BROKEN": 2,
    "NON-DETERMINISTIC": 2,
    "UNRESOLVED": 2,
}

# The outcome of one run. "warning": only warnings, known or ignored findings. "unresolved": a finding in doubt.
# "missed": the run did not reach its point. "skipped": it was not made.
Mark: TypeAlias = Literal["clean", "finding", "warning", "unresolved", "missed", "skipped"]
MARKS: dict[Mark, str] = {
    "clean": ".",
    "finding": "X",
    "warning": "w",
    "unresolved": "u",
    "missed": "?",
    "skipped": "-",
}


@dataclass(slots=True)
class Cell:
    """One point of a strip, and the findings of the run that was stopped there."""

    points: tuple[Point, ...]
    #: Outermost first.
    where: tuple[Place, ...]
    mark: Mark
    findings: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class Strip:
    """All runs of one stop in one phase."""

    stop: str
    says: str
    phase: Phase
    cells: list[Cell] = field(default_factory=list)
    depth: int = 1

    @property
    def name(self) -> str:
        """Stop, phase and depth, such as "cancel/early"."""
        return f"{self.stop}/{self.phase}" + ("" if self.depth == 1 else f"/depth {self.depth}")

    @property
    def marks(self) -> str:
        """One character per cell (see `MARKS`)."""
        return "".join(MARKS[cell.mark] for cell in self.cells)

    @property
    def runs(self) -> int:
        """How many of its cells have been run."""
        return sum(cell.mark != "skipped" for cell in self.cells)


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """A task in the timeline of a run. `end` is None if it never ended; `waits` are (first step, last step, place)."""

    label: str
    start: int
    end: int | None
    parent: str | None
    made_at: tuple[Place, ...]
    waits: tuple[tuple[int, int | None, str], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of one run, recorded for the example of a finding."""

    lanes: tuple[LaneSpan, ...]
    steps: int
    #: The step and the lane of each stop.
    stops: tuple[tuple[int, str], ...]
    #: The step at which the root ended.
    ended_at: int


@dataclass(slots=True)
class AuditResult:
    """The result of an audit: `verdict`, `findings`, and one `Strip` per stop and phase."""

    scenario: str
    #: The scenario as the command line names it.
    target: str
    world: str
    backend: Backend
    verdict: Verdict
    #: Why the verdict is neither CLEAN nor FINDINGS.
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    baseline: Cell | None = None
    #: Suspension points of the uninjected schedule.
    points: int = 0
    runs: int = 0
    seconds: float = 0.0
    seed: int | None = None
    deduped: bool = False
    is_complete: bool = True
    #: Ended by Ctrl-C: the verdict covers only the runs up to then.
    is_interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    #: By the token of the example.
    timelines: dict[str, Timeline] = field(default_factory=dict)
    stale_ignores: list[str] = field(default_factory=list)
    #: The options of a replay command that recreate the world.
    options: str = ""
    #: The replay command, without its token, if it is not `quiesce audit`.
    replay_with: str = ""

    @property
    def clean(self) -> bool:
        """Whether the verdict is CLEAN."""
        return self.verdict == "CLEAN"

    @property
    def exit_code(self) -> int:
        """The exit code of `quiesce audit` for this verdict."""
        return EXIT_CODES[self.verdict]

    @property
    def errors(self) -> list[Finding]:
        """The findings that decide the verdict."""
        return [finding for finding in self.findings if finding.counts]

    @property
    def unresolved(self) -> list[Finding]:
        """The findings that did not come back with more patience."""
        return [finding for finding in self.findings if finding.is_unresolved]

    @property
    def scope(self) -> str:
        """A sentence about what was covered, and how much of it."""
        what = f"{self.points} suspension point{'s' * (self.points != 1)} of this schedule"
        done = "all" if self.is_complete and not self.deduped else "some of the"
        if self.is_complete and self.deduped:
            done = "one per await chain of the"
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{done} {what} ({self.world}{seed}), {self.runs} runs"

    def replay_command(self, token: str) -> str:
        """The command that repeats exactly the run of this token."""
        if self.replay_with:
            return f"{self.replay_with} '{token}'"
        options = f" {self.options}" if self.options else ""
        return f"quiesce audit {shlex.quote(self.target)}{options} --at {shlex.quote(token)}"

    def assert_clean(self) -> None:
        """Raise `AssertionError` with the report unless the verdict is CLEAN."""
        if not self.clean:
            raise AssertionError(str(self))

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, for the JSON report."""
        return {
            "scenario": self.scenario,
            "target": self.target,
            "world": self.world,
            "verdict": self.verdict,
            "reason": self.reason,
            "scope": self.scope,
            "points": self.points,
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "complete": self.is_complete,
            "notes": list(self.notes),
            "strips": [
                {"stop": strip.stop, "phase": strip.phase, "depth": strip.depth, "marks": strip.marks}
                for strip in self.strips
            ],
            "findings": [finding.as_dict() for finding in self.findings],
            "stale_ignores": list(self.stale_ignores),
        }

    def __str__(self) -> str:
        from .text import report

        return report(self)
