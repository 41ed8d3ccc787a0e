"""Results that no scenario of decent length gives: everything at once, too long, too many, and hostile."""

from __future__ import annotations

from quiesce.audit import AuditResult, Cell, Example, Finding, Point, Strip
from quiesce.audit.findings.result import LaneSpan, Mark, Timeline
from quiesce.audit.model.points import Phase
from quiesce.audit.model.run_record import KINDS
from quiesce.audit.model.source_places import Place

HOSTILE = "<img src=x onerror=alert(1)>&amp;\"'</title></style><script>alert(2)</script>"
LONG = "a_name_without_any_break_" * 12
UNICODE = "größe_測試_🜚_\u202eevil\u202c_\x1b[31m"


def place(line: int, function: str = "Pool.acquire", *, library: bool = False) -> Place:
    return Place("<frozen library>" if library else f"app/{LONG[:80]}/pool.py", line, function)


def extreme(cells: int = 400, findings: int = 60, lanes: int = 60, steps: int = 2000) -> AuditResult:
    """One strip of each phase with `cells` cells, and findings of every kind and standing."""
    found = [finding(number) for number in range(findings)]
    strips = []
    for stop, phase in (("cancel", "early"), ("cancel", "late"), ("shutdown", "unstarted")):
        strip = Strip(stop, f"{stop} it & {HOSTILE}", phase)  # type: ignore[arg-type]
        for number in range(cells):
            strip.cells.append(cell(number, phase, found))  # type: ignore[arg-type]
        strips.append(strip)
    result = AuditResult(
        f"{UNICODE}{HOSTILE}",
        f"{LONG}:{HOSTILE}",
        "asyncio",
        "asyncio",
        "FINDINGS",
        findings=found,
        strips=strips,
        baseline=Cell((), (), "finding", found[:1]),
        points=cells,
        runs=3 * cells + 2,
        seconds=123.4,
        seed=7,
        is_complete=False,
        notes=[f"a note with {HOSTILE}", LONG],
        stale_ignores=[HOSTILE, LONG],
    )
    for one in found[:20]:
        result.timelines[one.example.token] = timeline(lanes, steps)
    return result


def cell(number: int, phase: Phase, found: list[Finding]) -> Cell:
    marks: tuple[Mark, ...] = ("clean", "clean", "finding", "clean", "warning", "missed", "skipped")
    mark = marks[number % len(marks)]
    seen = [found[number % len(found)], found[0]] if mark in ("finding", "warning") else []
    return Cell((Point(f"lane{number % 9}{HOSTILE}", number, phase),), (place(number),), mark, seen)


def finding(number: int) -> Finding:
    kinds = [*KINDS, "a kind of tomorrow"]
    what = (HOSTILE, LONG, UNICODE, "Client._poll")[number % 4]
    points = (Point(f"main{number}{HOSTILE}", 3, "late"), Point("main", 4, "early"))
    return Finding(
        kinds[number % len(kinds)],
        what,
        tuple(place(n, library=n % 2 == 0) for n in range(1, 7)),
        "warning" if number % 5 == 4 else "error",
        Example(
            "cancel",
            points[: 1 + number % 2],
            f"cancel/late/main{number}:3@00000000{HOSTILE}",
            tuple(place(n, library=n > 2) for n in range(1, 5)),
            (place(9, HOSTILE, library=True),),
            17,
            f"{HOSTILE}\n{LONG}" if number % 3 == 0 else "",
        ),
        runs=number + 1,
        strips=["cancel/early", f"cancel/{HOSTILE}"],
        known=number % 7 == 6,
        ignored=f"because {HOSTILE}" if number % 11 == 10 else "",
    )


def timeline(lanes: int, steps: int) -> Timeline:
    spans = []
    for number in range(lanes):
        waits = tuple(
            (step, step + lanes, f"app/pool.py:{step} in {HOSTILE}")
            for step in range(number + 1, steps - lanes, lanes)
        )
        end = None if number % 10 == 3 else steps - lanes + number
        spans.append(
            LaneSpan(
                f"main{number}{HOSTILE}", number, end, "main" if number else None, (place(number),), waits
            )
        )
    return Timeline(tuple(spans), steps, ((40, "main3"), (900, "main4")), steps - 30)
