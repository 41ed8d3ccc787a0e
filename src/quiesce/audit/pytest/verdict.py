"""Turns the sightings of a test into its report: findings, ignores, the baseline, and the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from quiesce._safe.printed import printed_line
from quiesce.audit.findings import AuditResult, Finding, Findings, matches, where
from quiesce.audit.model import Run, Sighting

from .ledger import WORLD
from .settings import Ignore


def find(sightings: Sequence[Sighting]) -> list[Finding]:
    """Group sightings into findings, worst first. `runs` of a finding is the number of its sightings."""
    found = Findings()
    # One run per sighting: `Findings` counts each finding once per run.
    for sighting in sightings:
        found.add(Run("returned", sightings=[sighting]), None, None, ())
    return found.sorted()


def apply_ignores(
    findings: Iterable[Finding], ignores: Sequence[Ignore], known: Iterable[str]
) -> list[Ignore]:
    """Mark findings as known or ignored; returns the ignores that matched."""
    keys, used = set(known), []
    for finding in findings:
        finding.known = finding.known or finding.key in keys
        for ignore in ignores:
            if matches(finding, ignore.pattern):
                finding.ignored = finding.ignored or ignore.reason
                used.append(ignore)
    return used


def stale(ignores: Iterable[Ignore], used: Sequence[Ignore]) -> str:
    """The message about a test's own ignores that match nothing any more; "" if all match."""
    unused = [ignore for ignore in ignores if ignore.is_own and ignore not in used]
    return "\n".join(
        f"the ignore {i.pattern!r} ({i.reason}) matches nothing any more: remove it" for i in unused
    )


def describe(findings: Sequence[Finding], test: str) -> str:
    """The message of a test that left something behind, for readers who have never seen one."""
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
    """The places from the innermost up to the test; the frames that called the test say nothing."""
    last = max((i for i, place in enumerate(places) if not place.in_library), default=-1)
    return places[: last + 1] if last >= 0 else places[:1]


def watched_result(nodeid: str, findings: list[Finding]) -> AuditResult:
    """The result of a test that was only watched, for the HTML report."""
    verdict = "FINDINGS" if any(finding.counts for finding in findings) else "CLEAN"
    return AuditResult(nodeid, nodeid, WORLD, "asyncio", verdict, findings=findings, runs=1)  # type: ignore[arg-type]
