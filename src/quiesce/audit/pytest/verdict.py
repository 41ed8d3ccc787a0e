"""From what was seen to what the test's report says: findings, ignores, the baseline, and the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from quiesce._safe.printed import printed_line
from quiesce.audit.findings import AuditResult, Finding, Findings, where
from quiesce.audit.model import Run, Sighting

from .ledger import WORLD
from .settings import Ignore


def find(sightings: Sequence[Sighting]) -> list[Finding]:
    """Findings, the worst first. `runs` says how many of a kind there are."""
    found = Findings()
    for sighting in sightings:
        found.add(Run("returned", sightings=[sighting]), None, None, ())
    return found.sorted()


def weigh(findings: Iterable[Finding], ignores: Sequence[Ignore], known: Iterable[str]) -> list[Ignore]:
    """Mark what is known and what does not count; the ignores that matched."""
    keys, used = set(known), []
    for finding in findings:
        finding.known = finding.known or finding.key in keys
        for ignore in ignores:
            if matches(finding, ignore.pattern):
                finding.ignored = finding.ignored or ignore.reason
                used.append(ignore)
    return used


def matches(finding: Finding, pattern: str) -> bool:
    return fnmatchcase(finding.key, pattern) or fnmatchcase(f"{finding.kind} {finding.what}", pattern)


def stale(ignores: Iterable[Ignore], used: Sequence[Ignore]) -> str:
    """What to say of a test's own ignores that match nothing any more."""
    left = [ignore for ignore in ignores if ignore.is_own and ignore not in used]
    return "\n".join(
        f"the ignore {i.pattern!r} ({i.reason}) matches nothing any more: remove it" for i in left
    )


def describe(findings: Sequence[Finding], test: str) -> str:
    """The message of a test that left something, for people who see it for the first time."""
    counting = [finding for finding in findings if finding.counts]
    lines = [f"left behind by {test}: {', '.join(f'{f.kind} {f.what}' for f in counting)}"]
    for finding in [*counting, *(f for f in findings if not f.counts)]:
        status = f"ignored ({finding.ignored}): " if finding.ignored else "known: " if finding.known else ""
        times = f" × {finding.runs}" if finding.runs > 1 else ""
        lines.append(f"{status}{finding.kind.upper()} {finding.what}{times}: {finding.means}")
        if finding.example.detail:
            lines.append(f"    {finding.example.detail}")
        lines += where("made at", _without_plumbing(finding.made_at))
        lines += where("stuck at", finding.example.stuck_at[::-1])
    return "\n".join(map(printed_line, lines))


def _without_plumbing(places: tuple[Any, ...]) -> tuple[Any, ...]:
    """From the line that made it up to the test: what called the test is no news."""
    last = max((i for i, place in enumerate(places) if not place.in_library), default=-1)
    return places[: last + 1] if last >= 0 else places[:1]


def watched_result(nodeid: str, findings: list[Finding]) -> AuditResult:
    """A result of a test that nobody stopped, for the HTML report."""
    verdict = "FINDINGS" if any(finding.counts for finding in findings) else "CLEAN"
    return AuditResult(nodeid, nodeid, WORLD, "asyncio", verdict, findings=findings, runs=1)  # type: ignore[arg-type]
