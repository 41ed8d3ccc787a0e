"""Findings: what was seen, grouped by what it is and where it was made, with the smallest run that shows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from quiesce.audit.model import (
    KINDS,
    Phase,
    Place,
    Point,
    Run,
    Sighting,
    Stop,
    Token,
    digest,
    makers,
    places,
    shorten,
)

Severity: TypeAlias = Literal["error", "warning"]
_ORDER = list(KINDS)
_TOLD = ("reported",)  # what the program does on purpose, and readers may want to know


@dataclass(frozen=True, slots=True)
class Example:
    """The smallest run that shows a finding."""

    stop: str  # "" for the run that nobody stopped
    points: tuple[Point, ...]
    token: str  # what `--at` takes; "" for the run that nobody stopped
    stopped_at: tuple[Place, ...]  # outermost first
    stuck_at: tuple[Place, ...]  # outermost first
    step: int
    detail: str


@dataclass(slots=True)
class Finding:
    """One thing that is wrong, however many runs showed it."""

    kind: str
    what: str
    made_at: tuple[Place, ...]  # innermost first; empty where nobody knows
    severity: Severity
    example: Example
    runs: int = 1
    strips: list[str] = field(default_factory=list)  # "cancel/early" and so on: where it was seen
    known: bool = False  # it is in the baseline file
    ignored: str = ""  # the reason, if an ignore matches
    fault: str = ""  # the interpreter's, if it is one; then it says which
    doubt: str = ""  # why it may not be so: it was not seen with more patience

    @property
    def site(self) -> Place | None:
        """Where it was made: the innermost place that is not the standard library's, nor anyio's or trio's."""
        return next(iter(makers(self.made_at)), None)

    @property
    def key(self) -> str:
        """The same in every run of an unchanged program, and not changed by lines that move."""
        site = self.site
        where = f"{_tail(site.file)}:{site.function}" if site is not None else ""
        return f"{self.kind} {self.what} {where}".strip()

    @property
    def means(self) -> str:
        return KINDS.get(self.kind, "")

    @property
    def counts(self) -> bool:
        """Whether it makes the verdict bad."""
        return self.severity == "error" and not self.known and not self.ignored

    @property
    def is_unresolved(self) -> bool:
        """Whether nobody can say if it is one."""
        return bool(self.doubt) and not self.known and not self.ignored

    def as_dict(self) -> dict[str, Any]:
        example = self.example
        return {
            "kind": self.kind,
            "what": self.what,
            "means": self.means,
            "severity": self.severity,
            "key": self.key,
            "made_at": [_place_dict(p) for p in self.made_at],
            "runs": self.runs,
            "strips": list(self.strips),
            "known": self.known,
            "ignored": self.ignored,
            "fault": self.fault,
            "doubt": self.doubt,
            "example": {
                "stop": example.stop,
                "token": example.token,
                "stopped_at": [_place_dict(p) for p in example.stopped_at],
                "stuck_at": [_place_dict(p) for p in example.stuck_at],
                "step": example.step,
                "detail": example.detail,
            },
        }


def _tail(file: str) -> str:
    """Enough of a path to know it by, and the same wherever the project is checked out."""
    return "/".join(shorten(file).replace("\\", "/").split("/")[-2:])


def _place_dict(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "function": place.function}


class Findings:
    """Collects what runs show."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, tuple[Place, ...], str, bool], Finding] = {}

    def add(
        self, run: Run, stop: Stop | None, phase: Phase | None, points: tuple[Point, ...]
    ) -> list[Finding]:
        """Add what a run showed; the findings it belongs to, each once."""
        if not run.sightings:
            return []
        strip = "baseline" if stop is None else f"{stop.name}/{phase}"
        touched: dict[int, Finding] = {}
        for sighting in run.sightings:
            made_at = places(sighting.made_at)
            severity = severity_of(sighting, stop)
            key = (sighting.kind, sighting.what, makers(made_at)[:3], severity, bool(sighting.doubt))
            example = _example(run, sighting, stop, points)
            finding = self._found.get(key)
            if finding is None:
                finding = self._found[key] = Finding(
                    sighting.kind,
                    sighting.what,
                    made_at,
                    severity,
                    example,
                    runs=0,
                    fault=sighting.fault,
                    doubt=sighting.doubt,
                )
            elif _size(example) < _size(finding.example):
                finding.example = example
            if id(finding) not in touched:
                finding.runs += 1
                touched[id(finding)] = finding
            if strip not in finding.strips:
                finding.strips.append(strip)
        return list(touched.values())

    def sorted(self) -> list[Finding]:
        """The worst first."""
        return sorted(
            self._found.values(),
            key=lambda f: (f.severity != "error", _rank(f.kind), -f.runs, f.what, str(f.site)),
        )


def severity_of(sighting: Sighting, stop: Stop | None) -> Severity:
    """Adversarial stops warn. So does what the program does on purpose, what is the interpreter's fault, and a doubt."""
    is_mild = (stop is not None and stop.warns) or sighting.kind in _TOLD or sighting.fault or sighting.doubt
    return "warning" if is_mild else "error"


def _rank(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _size(example: Example) -> tuple[int, int, bool]:
    return (len(example.points), example.step, any(p.phase == "late" for p in example.points))


def _example(run: Run, sighting: Sighting, stop: Stop | None, points: tuple[Point, ...]) -> Example:
    fired = run.fired[0] if run.fired else None
    token = ""
    if stop is not None and points:  # what is seen after a whole strip has no point of its own
        token = str(Token(stop.name, points, digest(fired[2]) if fired is not None else "item"))
    return Example(
        stop="" if stop is None else stop.name,
        points=points,
        token=token,
        stopped_at=places(fired[2]) if fired is not None else (),
        stuck_at=places(sighting.stuck_at),
        step=fired[1] if fired is not None else 0,
        detail=sighting.detail,
    )


def count_errors(findings: Iterable[Finding]) -> int:
    return sum(finding.counts for finding in findings)
