"""Lanes as lines of text: what ran from when to when, and what continued after the stop had returned.

A line is a list of spans, and a span is a text with the name of its style, so that the same drawing serves a coloured
terminal and a plain file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from .lanes import Lane
from .stage import Played

Style: TypeAlias = Literal["", "title", "dim", "good", "bad", "stopping", "lane", "code"]
Span: TypeAlias = tuple[str, Style]
Line: TypeAlias = list[Span]

_LEAST_CELLS: Final = 12
_INDENT: Final = 4
#: From this width on, there is room for a column that says task, thread or process.
_KIND_FITS: Final = 60


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that lanes are drawn with."""

    started: str
    runs: str
    leaked: str
    stop_seen: str
    cleans_up: str
    stopped: str
    ended: str
    failed: str
    still_running: str
    wall: str
    back: str


UNICODE: Final = Glyphs("●", "─", "━", "◇", "╌", "◆", "■", "✗", "▶", "│", "▲")
ASCII: Final = Glyphs("o", "-", "=", "?", "~", "!", "#", "x", ">", "|", "^")


def legend(glyphs: Glyphs) -> list[Span]:
    """What each glyph means."""
    return [
        (f"{glyphs.started} started", "lane"),
        (f"{glyphs.stop_seen} told to stop", "stopping"),
        (f"{glyphs.stopped} stopped", "lane"),
        (f"{glyphs.ended} ended", "lane"),
        (f"{glyphs.failed} failed", "stopping"),
        (f"{glyphs.leaked}{glyphs.leaked} continues though control is back", "bad"),
        (f"{glyphs.still_running} still running", "bad"),
    ]


def draw(played: Played, *, span: float, width: int, glyphs: Glyphs) -> list[Line]:
    """Draw the lanes so far, above an axis of `span` seconds, or longer if the program took longer."""
    lanes = [lane for lane in played.lanes if lane.started is not None]
    if not lanes:
        return []
    span = max(span, played.lasted)
    names = max(len(lane.name) for lane in lanes)
    with_kind = width >= _KIND_FITS
    indent = _INDENT + names + (10 if with_kind else 2)
    cells = max(width - indent - 1, _LEAST_CELLS)
    scale = _Scale(span, cells)
    lines: list[Line] = []
    for lane in lanes:
        kind = f"{lane.kind:<8}" if with_kind else ""
        label: Line = [(" " * _INDENT, ""), (f"{lane.name:<{names}}  ", ""), (kind, "dim")]
        lines.append(label + _merged(_cells(lane, played, scale, glyphs)))
    lines.append([(" " * indent, ""), *_back(played, scale, glyphs)])
    lines.append([(" " * indent, ""), (_axis(span, cells), "dim")])
    return lines


class _Scale:
    def __init__(self, span: float, cells: int) -> None:
        self.cells = cells
        self._per_cell = span / cells

    def __call__(self, seconds: float) -> int:
        return min(int(seconds / self._per_cell), self.cells - 1)


def _cells(lane: Lane, played: Played, scale: _Scale, glyphs: Glyphs) -> Iterator[Span]:
    assert lane.started is not None
    start = scale(lane.started)
    last = scale(played.lasted if lane.ended is None else lane.ended)
    stop_cell = None if lane.stop_seen is None else scale(lane.stop_seen)
    back = None if played.back is None else scale(played.back)
    # The order of these tests decides which event is drawn where several fall into one cell: the end is the most
    # important, then the start, then the request to stop.
    for cell in range(scale.cells):
        is_leaked = back is not None and cell > back and not lane.innocent
        if cell < start or cell > last:
            yield (glyphs.wall, "dim") if cell == back else (" ", "")
        elif cell == last:
            yield _end(lane, glyphs, is_leaked)
        elif cell == start:
            yield glyphs.started, "lane"
        elif cell == stop_cell:
            yield glyphs.stop_seen, "stopping"
        elif is_leaked:
            yield glyphs.leaked, "bad"
        elif stop_cell is not None and cell > stop_cell:
            yield glyphs.cleans_up, "stopping"
        else:
            yield glyphs.runs, "lane"


def _end(lane: Lane, glyphs: Glyphs, is_leaked: bool) -> Span:
    if lane.ended is None:
        return glyphs.still_running, "bad" if is_leaked else "lane"
    if lane.how in ("failed", "destroyed"):
        return glyphs.failed, "bad" if is_leaked else "stopping"
    if lane.stop_seen is not None:
        return glyphs.stopped, "bad" if is_leaked or lane.innocent else "lane"
    return glyphs.ended, "lane"


def _back(played: Played, scale: _Scale, glyphs: Glyphs) -> list[Span]:
    if played.back is None:
        return [("", "")]
    column = scale(played.back)
    # The longest label that fits, to the right of its mark or else to the left.
    for label in (f"control is back after {played.back:.2f} s", "control is back", "back"):
        if column + 2 + len(label) <= scale.cells:
            return [(f"{' ' * column}{glyphs.back} {label}", "dim")]
        if len(label) + 1 <= column:
            return [(f"{' ' * (column - len(label) - 1)}{label} {glyphs.back}", "dim")]
    return [(f"{' ' * column}{glyphs.back}", "dim")]


def _axis(span: float, cells: int) -> str:
    """The axis: each number stands in its exact column, with enough room to read it, and the unit after the last."""
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 1e9) if step / span * cells >= 8)
    text, number = "", 0
    while (column := round(number * step / span * cells)) + 5 <= cells:
        text = f"{text:<{column}}" + ("0" if number == 0 else f"{number * step:.2f}".rstrip("0").rstrip("."))
        number += 1
    return f"{text} s"


def _merged(spans: Iterator[Span]) -> Line:
    line: Line = []
    for text, style in spans:
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + text, style)
        else:
            line.append((text, style))
    return line


def plain(line: Sequence[Span]) -> str:
    """The text of a line, without styles."""
    return "".join(text for text, _ in line).rstrip()
