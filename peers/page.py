"""Writes the table of `make peers` into docs/peers.md, below the text that is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .table import STOPS, Peer
from .verdict import Verdict
from .ways import Scenario

MARK = "<!-- from here on written by `make peers` -->"
Row = tuple[Verdict, ...]  # one for each side of the scenario
HEADS = {"without": "without", "with": "with quiesce", "dropin": "drop-in"}


class Section:
    """One scenario of one release, with its cells."""

    def __init__(self, peer: Peer, version: str, python: str, scenario: Scenario) -> None:
        self.peer = peer
        self.version = version
        self.python = python
        self.scenario = scenario
        self.rows: dict[str, Row | str] = {}  # a stop: its cells, or why there are none

    @property
    def title(self) -> str:
        return f"{self.peer.package} {self.version}: {self.scenario.title}"

    def counts(self) -> list[int]:
        """How many cells there are a side, and how many of each side are clean."""
        rows = [row for row in self.rows.values() if not isinstance(row, str)]
        sides = range(len(self.scenario.sides))
        return [len(rows), *(sum(row[side].is_clean for row in rows) for side in sides)]


def write(page: Path, sections: list[Section], left_out: list[str], minutes: float) -> None:
    """Keep what stands above the mark; write all that follows."""
    above = page.read_text().partition(MARK)[0].rstrip()
    page.write_text("\n".join([above, "", MARK, "", *_lines(sections, left_out, minutes)]) + "\n")


def _lines(sections: list[Section], left_out: list[str], minutes: float) -> Iterator[str]:
    yield "## Summary"
    yield ""
    yield "How many of the stops were clean."
    yield ""
    yield "| package | scenario | stops | without | with quiesce | drop-in |"
    yield "|---|---|---|---|---|---|"
    total = [0, 0, 0]
    for section in sections:
        counts = section.counts()
        total = [sum(pair) for pair in zip(total, counts[:3], strict=True)]
        stops, without, with_quiesce, *dropin = counts
        name = f"{section.peer.package} {section.version}"
        last = dropin[0] if dropin else ""
        yield f"| {name} | {section.scenario.title} | {stops} | {without} | {with_quiesce} | {last} |"
    yield f"| | in all | {total[0]} | {total[1]} | {total[2]} | |"
    yield ""
    pythons = sorted({section.python for section in sections})
    yield f"Measured in {minutes:.0f} minutes, on Python {' and '.join(pythons)}, Linux, two cores."
    yield from left_out
    for section in sections:
        yield ""
        yield f"## {section.title}"
        yield ""
        heads = [HEADS[side] for side in section.scenario.sides]
        yield f"| stop | {' | '.join(heads)} |"
        yield "|---" * (len(heads) + 1) + "|"
        for stop, row in section.rows.items():
            if isinstance(row, str):
                yield f"| {STOPS[stop]} | n/a: {row} |{' |' * (len(heads) - 1)}"
            else:
                cells = [_cell(row[0]), *(_cell(one) + _why(section, stop, one) for one in row[1:])]
                yield f"| {STOPS[stop]} | {' | '.join(cells)} |"


def _cell(verdict: Verdict) -> str:
    text = str(verdict).replace("|", "\\|")
    return text if verdict.is_clean else f"**{text}**"


def _why(section: Section, stop: str, verdict: Verdict) -> str:
    reason = section.scenario.limits.get(stop, "")
    return f". {reason}" if reason and not verdict.is_clean else ""
