"""The strips of the HTML report: one cell per point at which the scenario was stopped.

The sign, the colour and the title of a cell all say the same, so that no reader depends on one of them. A cell with
findings is a link to the worst of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from quiesce.audit.findings import AuditResult, Cell, Mark, Strip
from quiesce.audit.model import ITEM, Phase, Point

from .text import code, esc, frame, plural, reader_place

# CSS class, sign and meaning.
SIGNS: dict[Mark, tuple[str, str, str]] = {
    "clean": ("ok", "·", "clean"),
    "finding": ("bad", "×", "finding"),
    "warning": ("warn", "!", "only warnings, known or ignored findings"),
    "unresolved": ("unsure", "u", "a finding that did not come back with more patience"),
    "missed": ("miss", "?", "not reached again, so not covered"),
    "skipped": ("skip", "–", "not run"),
}
PHASES: dict[Phase, str] = {
    "unstarted": "before its first step",
    "early": "just after it suspended",
    "late": "just before it resumed, when its result had arrived",
}
# The most cells of a strip that leave room for another strip next to it.
FEW = 24
# The id of each finding's element in the page, by `id(finding)`.
Anchors = Mapping[int, str]


def strips(result: AuditResult, anchors: Anchors) -> str:
    """All strips of a result, with their legend."""
    nonempty = [strip for strip in result.strips if strip.cells]
    if not nonempty:
        return ""
    blocks = "".join(
        _stop(name, list(group), result, anchors)
        for name, group in groupby(nonempty, lambda strip: strip.stop)
    )
    longest = max(len(strip.cells) for strip in nonempty)
    style = "few" if longest <= FEW else "many"
    return f'<h3>Every stop</h3>{_legend(nonempty, result)}<div class="{style}">{blocks}</div>{_points(nonempty)}'


def _stop(name: str, group: list[Strip], result: AuditResult, anchors: Anchors) -> str:
    rows = "".join(_row(strip, result, anchors) for strip in group)
    return f'<div class="stop-kind"><h4>{esc(name)} <small>{esc(group[0].says)}</small></h4>{rows}</div>'


def _row(strip: Strip, result: AuditResult, anchors: Anchors) -> str:
    bad = sum(cell.mark == "finding" for cell in strip.cells)
    depth = "" if strip.depth == 1 else ", then again"
    cells = "".join(_cell(cell, anchors) for cell in strip.cells)
    if result.baseline is not None:
        cells += _cell(result.baseline, anchors, is_baseline=True)
    summary = f"{bad} of {len(strip.cells)}" if bad else plural(len(strip.cells), "point")
    return (
        f'<div class="strip"><p title="{esc(PHASES[strip.phase])}">{esc(strip.phase)}{depth} '
        f'<small>{summary}</small></p><div class="cells">{cells}</div></div>'
    )


def _cell(cell: Cell, anchors: Anchors, *, is_baseline: bool = False) -> str:
    name, sign, meaning = SIGNS[cell.mark]
    if is_baseline:
        name += " base"
    found = [f"{finding.kind} {finding.what}" for finding in cell.findings]
    lines = ["without a stop" if is_baseline else " + ".join(_in_words(point) for point in cell.points)]
    where = reader_place(cell.where[::-1])
    if where is not None:
        lines.append(str(where))
    lines.append(
        "; ".join(found[:3]) + (f"; {len(found) - 3} more" if len(found) > 3 else "") if found else meaning
    )
    title = esc("\n".join(lines))
    target = next((anchors[id(finding)] for finding in cell.findings if id(finding) in anchors), None)
    if target is None:
        return f'<b class="{name}" title="{title}">{sign}</b>'
    return f'<a class="{name}" href="#{target}" title="{title}">{sign}</a>'


def _in_words(point: Point) -> str:
    if point.lane == ITEM:
        return f"after item {point.number}" if point.number else "before the first item"
    return str(point)


def _legend(nonempty: list[Strip], result: AuditResult) -> str:
    used = {cell.mark for strip in nonempty for cell in strip.cells}
    items = [
        f'<li><b class="{name}">{sign}</b> {meaning}</li>'
        for mark, (name, sign, meaning) in SIGNS.items()
        if mark in used
    ]
    if result.baseline is not None:
        name, sign, _ = SIGNS[result.baseline.mark]
        items.append(f'<li><b class="{name} base">{sign}</b> at the end: a run without a stop</li>')
    return (
        "<p>Each cell is one run, stopped at one point. Hover over a cell to read where.</p>"
        f'<ul class="legend">{"".join(items)}</ul>'
    )


def _points(nonempty: list[Strip]) -> str:
    """The places of all points as a list, for readers without a pointer: each place once, not once per stop."""
    numbered: dict[tuple[str, int], Cell] = {}
    for strip in nonempty:
        for cell in strip.cells:
            if len(cell.points) == 1 and cell.points[0].lane != ITEM and cell.points[0].number:
                numbered.setdefault((cell.points[0].lane, cell.points[0].number), cell)
    if not numbered:
        return ""
    rows = []
    for (lane, number), cell in numbered.items():
        where = reader_place(cell.where[::-1])
        rows.append(f"<li>{code(f'{lane}:{number}')} {frame(where) if where is not None else ''}</li>")
    return (
        f'<details class="points"><summary>Where the {plural(len(rows), "point")} '
        f"{'is' if len(rows) == 1 else 'are'}</summary><ul>{''.join(rows)}</ul></details>"
    )
