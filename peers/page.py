"""Writes the table of `make peers` into docs/peers.md, below the text that is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .table import STOPS, Peer
from .verdict import Verdict
from .ways import Scenario

MARK = "<!-- from here on written by `make peers` -->"
Row = tuple[Verdict, Verdict]


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

    def counts(self) -> tuple[int, int, int]:
        """How many cells there are a side, how many are clean without and with."""
        rows = [row for row in self.rows.values() if not isinstance(row, str)]
        return len(rows), sum(row[0].is_clean for row in rows), sum(row[1].is_clean for row in rows)


def write(page: Path, sections: list[Section], left_out: list[str], minutes: float) -> None:
    """Keep what stands above the mark; write all that follows."""
    above = page.read_text().partition(MARK)[0].rstrip()
    page.write_text("\n".join([above, "", MARK, "", *_lines(sections, left_out, minutes)]) + "\n")


def _lines(sections: list[Section], left_out: list[str], minutes: float) -> Iterator[str]:
    yield "## Summary"
    yield ""
    yield "How many of the stops were clean."
    yield ""
    yield "| package | scenario | stops | without | with quiesce |"
    yield "|---|---|---|---|---|"
    total = [0, 0, 0]
    for section in sections:
        counts = section.counts()
        total = [sum(pair) for pair in zip(total, counts, strict=True)]
        stops, without, with_quiesce = counts
        name = f"{section.peer.package} {section.version}"
        yield f"| {name} | {section.scenario.title} | {stops} | {without} | {with_quiesce} |"
    yield f"| | in all | {total[0]} | {total[1]} | {total[2]} |"
    yield ""
    pythons = sorted({section.python for section in sections})
    yield f"Measured in {minutes:.0f} minutes, on Python {' and '.join(pythons)}, Linux, two cores."
    yield from left_out
    for section in sections:
        yield ""
        yield f"## {section.title}"
        yield ""
        yield "| stop | without | with quiesce |"
        yield "|---|---|---|"
        for stop, row in section.rows.items():
            if isinstance(row, str):
                yield f"| {STOPS[stop]} | n/a: {row} | |"
            else:
                yield f"| {STOPS[stop]} | {_cell(row[0])} | {_cell(row[1])}{_why(section, stop, row[1])} |"


def _cell(verdict: Verdict) -> str:
    text = str(verdict).replace("|", "\\|")
    return text if verdict.is_clean else f"**{text}**"


def _why(section: Section, stop: str, verdict: Verdict) -> str:
    reason = section.scenario.limits.get(stop, "")
    return f". {reason}" if reason and not verdict.is_clean else ""
