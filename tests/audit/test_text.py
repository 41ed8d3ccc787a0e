"""The report that people read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from quiesce.audit import AuditResult, audit
from quiesce.audit.findings.findings import Example, Finding
from quiesce.audit.findings.result import Cell, Mark, Strip
from quiesce.audit.findings.text import report
from quiesce.audit.model.points import ITEM, Point
from quiesce.audit.model.source_places import Place

OWN = Place("app/jobs.py", 12, "start")
LIBRARY = Place(asyncio.sleep.__code__.co_filename, 639, "sleep")


def strip_of(marks: str) -> Strip:
    names: dict[str, Mark] = {".": "clean", "X": "finding", "w": "warning", "?": "missed", "-": "skipped"}
    cells = [Cell((Point("main", n, "early"),), (), names[mark]) for n, mark in enumerate(marks)]
    return Strip("cancel", "cancel the root", "early", cells)


def result_of(*findings: Finding, marks: str = "X.", **more: Any) -> AuditResult:
    return AuditResult(
        "main", "app.jobs:main", "asyncio", "asyncio", "FINDINGS",
        findings=list(findings), strips=[strip_of(marks)], points=len(marks), runs=len(marks) + 2, **more,
    )  # fmt: skip


def finding_of(kind: str = "leaked", what: str = "poll", **more: Any) -> Finding:
    example = Example(
        "cancel", (Point("main", 2, "early"),), "cancel/early/main:2@ab", (OWN, LIBRARY), (), 3, ""
    )
    fields: dict[str, Any] = {"severity": "error", "example": example, "strips": ["cancel/early"], **more}
    return Finding(kind, what, (LIBRARY, OWN), **fields)


def test_a_report_reads_as_a_whole() -> None:
    assert report(result_of(finding_of(), marks="X..w")) == (
        "FINDINGS app.jobs:main on asyncio\n"
        "  1 finding; all 4 suspension points of this schedule (asyncio), 6 runs\n"
        "\n"
        "  cancel/early  X..w\n"
        "                . clean, X finding, w only warnings, known or ignored\n"
        "\n"
        "1. LEAKED poll: a task that never ends\n"
        "   seen        in 1 of 6 runs: cancel (early)\n"
        "   made at     app/jobs.py:12 in start\n"
        "   example     cancel the root, just after main suspended for the 2nd time\n"
        "   stopped at  app/jobs.py:12 in start, waiting in sleep\n"
        "   replay      quiesce audit app.jobs:main --at cancel/early/main:2@ab\n"
        "   in a test   audit(main, stops='cancel', phases='early').assert_clean()"
    )


def test_the_same_result_gives_the_same_text() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().call_later(60, print)
        for _ in range(3):
            asyncio.create_task(asyncio.sleep(100))
        await asyncio.sleep(1)

    texts = {str(audit(scenario)) for _ in range(3)}
    assert len(texts) == 1
    assert "1. LATE sleep" in texts.pop()


def test_what_does_not_count_is_a_line_at_the_end() -> None:
    text = report(
        result_of(
            finding_of("leaked", "one", severity="warning"),
            finding_of("leaked", "two", known=True),
            finding_of("leaked", "three", ignored="upstream 12"),
            finding_of("hang", "four"),
        )
    )
    assert text.index("1. HANG four") < text.index("warning: leaked one")
    assert "known: leaked two: a task that never ends; 1 run, made at app/jobs.py:12 in start" in text
    assert "ignored (upstream 12): leaked three" in text
    assert "2." not in text
    assert "1 finding;" in text


def test_a_long_strip_is_wrapped_to_the_width() -> None:
    text = report(result_of(marks="." * 150), width=80)
    rows = [line for line in text.splitlines() if set(line.split()[-1:]) and set(line.split()[-1]) == {"."}]
    assert sum(row.count(".") for row in rows) == 150
    assert max(len(line) for line in rows) <= 80


def test_a_very_long_strip_is_counted_out() -> None:
    text = report(result_of(marks="." * 1000 + "XX" + "." * 500 + "w"), width=80)
    assert "cancel/early  1000×. 2×X 500×. w\n" in text


def test_a_strip_of_many_short_stretches_is_cut_and_says_so() -> None:
    text = report(result_of(marks="..X" * 400), width=80)
    assert re.search(r"\.\.\. and \d+ more stretches, of 1200 points", text)
    assert len(text.splitlines()) < 12


def test_only_marks_that_occur_are_explained() -> None:
    assert ". clean\n" in report(result_of(marks="..")) + "\n"
    assert "? not reached, - not run" in report(result_of(marks="?-"))


def test_colour_changes_nothing_but_the_colour() -> None:
    result = result_of(
        finding_of(), finding_of("late", "x", severity="warning"), marks="X.w?-" * 3, notes=["n"]
    )
    coloured = report(result, color=True)
    assert "\x1b[1;31mX" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == report(result)


POINTS = {
    (Point("main", 0, "unstarted"),): "before main took its first step",
    (Point("main", 1, "early"),): "just after main suspended for the 1st time",
    (Point("main", 11, "early"),): "just after main suspended for the 11th time",
    (Point("main", 23, "late"),): "just before main resumed from its 23rd suspension",
    (Point(ITEM, 0, "early"),): "before the first item",
    (Point(ITEM, 2, "early"),): "after 2 items",
    (Point("a", 1, "late"), Point("b", 2, "early")): (
        "just before a resumed from its 1st suspension, then just after b suspended for the 2nd time"
    ),
    (): "everywhere",
}


@pytest.mark.parametrize("points", POINTS, ids=str)
def test_a_point_is_said_in_words(points: tuple[Point, ...]) -> None:
    finding = finding_of(example=Example("cancel", points, "", (), (), 0, ""))
    assert f"example     cancel the root, {POINTS[points]}\n" in report(result_of(finding)) + "\n"


def test_what_nobody_stopped_is_said_to_be_so() -> None:
    finding = finding_of(example=Example("", (), "", (), (OWN,), 0, "5 left"), strips=["baseline"])
    text = report(result_of(finding))
    assert "seen        in 1 of 4 runs: no stop" in text
    assert "example     without a stop" in text
    assert "stuck at    app/jobs.py:12 in start" in text
    assert "says        5 left" in text
    assert "replay" not in text


def test_many_frames_of_ones_own_are_cut() -> None:
    frames = tuple(Place("app/deep.py", n, f"f{n}") for n in range(9))
    text = report(result_of(finding_of(example=Example("cancel", (), "", frames, (), 0, ""))))
    assert "stopped at  app/deep.py:8 in f8 <- app/deep.py:7 in f7 <- " in text
    assert text.endswith("app/deep.py:5 in f5 <- and 5 more")


def test_a_place_that_is_all_library_is_still_shown() -> None:
    text = report(result_of(finding_of(example=Example("cancel", (), "", (LIBRARY,), (), 0, ""))))
    assert "stopped at  asyncio/tasks.py:639 in sleep" in text


def test_where_it_was_seen_is_grouped_by_phases() -> None:
    strips = ["cancel/early", "cancel/late", "timeout/early", "timeout/late", "scope/early"]
    assert "runs: cancel, timeout (early, late); scope (early)" in report(
        result_of(finding_of(strips=strips))
    )


def test_the_call_for_a_test_has_the_options_of_the_world() -> None:
    text = report(
        result_of(
            finding_of(), options="--backend asyncio-eager --real-io --seed 3 --check a.b:whole --again"
        )
    )
    assert (
        "audit(main, stops='cancel', phases='early', backend='asyncio-eager', real_io=True, seed=3, check=whole, again=True)"
        in text
    )


def test_a_scenario_that_no_command_can_name_has_only_the_call_for_a_test() -> None:
    async def eats() -> None:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass

    text = str(audit(eats, stops="cancel", phases="early"))
    assert "audit(eats, stops='cancel', phases='" in text
    assert "quiesce audit" not in text


@pytest.mark.parametrize("make", [lambda: asyncio.sleep(1)])
def test_a_scenario_without_a_name_is_called_scenario(make: Callable[[], Any]) -> None:
    result = result_of(finding_of())
    result.target = "tests.some:test.<locals>.<lambda>"
    assert "audit(scenario, stops=" in report(result)


def test_notes_and_stale_ignores_come_last() -> None:
    text = report(result_of(finding_of(), notes=["something odd"], stale_ignores=["leaked x*"]))
    assert text.endswith(
        "note: something odd\nstale: the ignore 'leaked x*' matches nothing any more: remove it"
    )


def test_an_interrupted_audit_says_so_far() -> None:
    result = result_of(is_interrupted=True, is_complete=False)
    result.verdict = "CLEAN"
    assert report(result).startswith(
        "CLEAN so far app.jobs:main on asyncio\n  no findings; some of the 2 suspension"
    )


def test_a_broken_baseline_is_two_lines() -> None:
    result = AuditResult(
        "main", "app:main", "asyncio", "asyncio", "BASELINE-BROKEN", reason="it raised KeyError: 1"
    )
    assert report(result) == "BASELINE-BROKEN app:main on asyncio\n  it raised KeyError: 1"
