"""What an audit came to."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from quiesce.audit.model import Backend, Phase, Place, Point

from .findings import Finding

# clean; findings; the scenario fails by itself; it does not do the same twice; a replay no longer fits the program, or nobody can
# say whether what was seen is a finding
Verdict: TypeAlias = Literal["CLEAN", "FINDINGS", "BASELINE-BROKEN", "NON-DETERMINISTIC", "UNRESOLVED"]
EXIT_CODES: dict[Verdict, int] = {
    "CLEAN": 0,
    "FINDINGS": 1,
    "BASELINE-BROKEN": 2,
    "NON-DETERMINISTIC": 2,
    "UNRESOLVED": 2,
}

# One run: clean, findings, warnings only (or known or ignored), nothing sure, it did not get to its point, it was not made
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
    """One point of a strip, and what stopping there showed."""

    points: tuple[Point, ...]
    where: tuple[Place, ...]  # outermost first
    mark: Mark
    findings: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class Strip:
    """All the runs of one stop in one phase."""

    stop: str
    says: str
    phase: Phase
    cells: list[Cell] = field(default_factory=list)
    depth: int = 1

    @property
    def name(self) -> str:
        return f"{self.stop}/{self.phase}" + ("" if self.depth == 1 else f"/depth {self.depth}")

    @property
    def marks(self) -> str:
        return "".join(MARKS[cell.mark] for cell in self.cells)

    @property
    def runs(self) -> int:
        return sum(cell.mark != "skipped" for cell in self.cells)


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """A task in the timeline of a run. `end` is None if it never ended; `waits` are (from step, to step, where)."""

    label: str
    start: int
    end: int | None
    parent: str | None
    made_at: tuple[Place, ...]
    waits: tuple[tuple[int, int | None, str], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One run, step by step: made anew for the example of a finding."""

    lanes: tuple[LaneSpan, ...]
    steps: int
    stops: tuple[tuple[int, str], ...]  # the step and the lane of each stop
    ended_at: int  # the step at which the root was over


@dataclass(slots=True)
class AuditResult:
    """What an audit came to: `verdict`, `findings`, and a `Strip` for each stop and phase."""

    scenario: str
    target: str  # what the command line would be given
    world: str
    backend: Backend
    verdict: Verdict
    reason: str = ""  # of a verdict that is neither CLEAN nor FINDINGS
    findings: list[Finding] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    baseline: Cell | None = None
    points: int = 0  # suspension points of the uninjected schedule
    runs: int = 0
    seconds: float = 0.0
    seed: int | None = None
    deduped: bool = False
    is_complete: bool = True
    is_interrupted: bool = False  # by Ctrl-C: the verdict is of what was done by then
    notes: list[str] = field(default_factory=list)
    timelines: dict[str, Timeline] = field(default_factory=dict)  # by the token of the example
    stale_ignores: list[str] = field(default_factory=list)
    options: str = ""  # the part of a replay command that says how the world was made
    replay_with: str = ""  # the command that takes the token last, where that is not `quiesce audit`

    @property
    def clean(self) -> bool:
        return self.verdict == "CLEAN"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def errors(self) -> list[Finding]:
        """The findings that make the verdict."""
        return [finding for finding in self.findings if finding.counts]

    @property
    def unresolved(self) -> list[Finding]:
        """What was seen, but not with more patience."""
        return [finding for finding in self.findings if finding.is_unresolved]

    @property
    def scope(self) -> str:
        """What was covered, said honestly."""
        what = f"{self.points} suspension point{'s' * (self.points != 1)} of this schedule"
        done = "all" if self.is_complete and not self.deduped else "some of the"
        if self.is_complete and self.deduped:
            done = "one for each await chain of the"
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{done} {what} ({self.world}{seed}), {self.runs} runs"

    def replay_command(self, token: str) -> str:
        """The command that makes exactly that run again."""
        if self.replay_with:
            return f"{self.replay_with} '{token}'"
        options = f" {self.options}" if self.options else ""
        return f"quiesce audit {shlex.quote(self.target)}{options} --at {shlex.quote(token)}"

    def assert_clean(self) -> None:
        """Raise `AssertionError` with the report unless the verdict is CLEAN."""
        if not self.clean:
            raise AssertionError(str(self))

    def as_dict(self) -> dict[str, Any]:
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
