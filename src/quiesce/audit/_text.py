"""The report as text."""

from __future__ import annotations

from ._findings import Finding
from ._places import Place
from ._result import AuditResult


def report(result: AuditResult) -> str:
    """Verdict, strips and findings, for a terminal or an assertion message."""
    lines = [f"{result.verdict} {result.target}: {result.scope}"]
    if result.reason:
        lines.append(f"  {result.reason}")
    width = max((len(strip.name) for strip in result.strips), default=0)
    end = "" if result.baseline is None else "|" + ("X" if result.baseline.findings else ".")
    lines += [f"  {strip.name:<{width}} {strip.marks}{end}" for strip in result.strips]
    for finding in result.findings:
        lines += ["", *describe(finding, result)]
    lines += [f"  note: {note}" for note in result.notes]
    lines += [f"  the ignore {pattern!r} matches nothing any more: remove it" for pattern in result.stale_ignores]
    return "\n".join(lines)


def describe(finding: Finding, result: AuditResult) -> list[str]:
    example = finding.example
    status = "warning: " if finding.severity == "warning" else ""
    if finding.known:
        status = "known: "
    if finding.ignored:
        status = f"ignored ({finding.ignored}): "
    lines = [f"{status}{finding.kind.upper()} {finding.what}: {finding.means} ({finding.runs} of {result.runs} runs)"]
    if example.detail:
        lines.append(f"    {example.detail}")
    lines += _where("made at", finding.made_at)
    if example.stop:
        point = example.points[0] if example.points else None
        lines.append(f"  smallest example: {example.stop}" + (f" at {point}" if point is not None else ""))
        lines += _where("stopped at", example.stopped_at[::-1])
    else:
        lines.append("  seen with nobody stopping it")
    lines += _where("stuck at", example.stuck_at[::-1])
    if example.token:
        lines.append(f"    replay: {result.replay_command(example.token)}")
    return lines


def _where(title: str, places: tuple[Place, ...]) -> list[str]:
    """Innermost first; runs of library frames folded to their number."""
    if not places:
        return []
    shown: list[str] = []
    folded = 0
    for place in places:
        if place.in_library and any(not p.in_library for p in places):
            folded += 1
            continue
        if folded:
            shown.append(f"({folded} in libraries)")
            folded = 0
        shown.append(str(place))
    if folded:
        shown.append(f"({folded} in libraries)")
    return [f"    {title} " + " <- ".join(shown)]
