"""Findings: sightings grouped by kind, name and origin, each with the smallest run that shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
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
# Kinds that the program causes on purpose: shown, because readers may want to know, but only as warnings.
_DELIBERATE = ("reported",)


@dataclass(frozen=True, slots=True)
class Example:
    """The smallest run that shows a finding."""

    #: "" for an undisturbed run.
    stop: str
    points: tuple[Point, ...]
    #: The value for `--at`; "" for an undisturbed run.
    token: str
    #: Outermost first.
    stopped_at: tuple[Place, ...]
    #: Outermost first.
    stuck_at: tuple[Place, ...]
    step: int
    detail: str


@dataclass(slots=True)
class Finding:
    """One thing that is wrong, no matter how many runs showed it."""

    kind: str
    what: str
    #: Innermost first; empty if unknown.
    made_at: tuple[Place, ...]
    severity: Severity
    example: Example
    #: How many runs showed it.
    runs: int = 1
    #: The strips that showed it, such as "cancel/early".
    strips: list[str] = field(default_factory=list)
    #: Whether it is in the baseline file.
    known: bool = False
    #: The reason of the ignore that matches it; "" if none does.
    ignored: str = ""
    #: The known fault of the interpreter that caused it; "" if the program did.
    fault: str = ""
    #: Why it may be wrong: it did not come back with more patience.
    doubt: str = ""

    @property
    def site(self) -> Place | None:
        """Where it was made: the innermost place outside of the standard library, anyio and trio."""
        return next(iter(makers(self.made_at)), None)

    @property
    def key(self) -> str:
        """Identifies the finding: the same in every run, and unchanged when lines move."""
        site = self.site
        where = f"{_tail(site.file)}:{site.function}" if site is not None else ""
        return f"{self.kind} {self.what} {where}".strip()

    @property
    def means(self) -> str:
        """The explanation of its kind."""
        return KINDS.get(self.kind, "")

    @property
    def counts(self) -> bool:
        """Whether it makes the verdict FINDINGS."""
        return self.severity == "error" and not self.known and not self.ignored

    @property
    def is_unresolved(self) -> bool:
        """Whether it is in doubt, so that the verdict is UNRESOLVED."""
        return bool(self.doubt) and not self.known and not self.ignored

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data, for the JSON report."""
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
    """The last two parts of a path: enough to recognise it, and the same wherever the project is checked out."""
    return "/".join(shorten(file).replace("\\", "/").split("/")[-2:])


def _place_dict(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "function": place.function}


class Findings:
    """Collects the sightings of runs and groups them into findings."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, tuple[Place, ...], str, bool], Finding] = {}

    def add(
        self, run: Run, stop: Stop | None, phase: Phase | None, points: tuple[Point, ...]
    ) -> list[Finding]:
        """Add the sightings of a run; returns the findings that they belong to, each once."""
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
        """The findings, worst first."""
        return sorted(
            self._found.values(),
            key=lambda f: (f.severity != "error", _rank(f.kind), -f.runs, f.what, str(f.site)),
        )


def severity_of(sighting: Sighting, stop: Stop | None) -> Severity:
    """Whether a sighting is an error or only a warning.

    It is a warning if the stop was adversarial, if the program did it on purpose, if the interpreter is to blame, or if
    it is in doubt.
    """
    is_mild = (
        (stop is not None and stop.warns) or sighting.kind in _DELIBERATE or sighting.fault or sighting.doubt
    )
    return "warning" if is_mild else "error"


def matches(finding: Finding, pattern: str) -> bool:
    """Whether the pattern of an ignore matches a finding: its key, or its kind and name."""
    return fnmatchcase(finding.key, pattern) or fnmatchcase(f"{finding.kind} {finding.what}", pattern)


def _rank(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _size(example: Example) -> tuple[int, int, bool]:
    return (len(example.points), example.step, any(p.phase == "late" for p in example.points))


def _example(run: Run, sighting: Sighting, stop: Stop | None, points: tuple[Point, ...]) -> Example:
    fired = run.fired[0] if run.fired else None
    token = ""
    # A sighting after a whole strip belongs to no single point, and has no token.
    if stop is not None and points:
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
