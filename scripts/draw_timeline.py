"""Draws what `quiesce tour --json` has measured, as an SVG: one situation, the ordinary way above, with quiesce below.

quiesce tour --only guardrail --json | python scripts/draw_timeline.py > docs/pictures/guardrail.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT, ROW = 760, 150, 24, 30
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.quiet { fill: #6e7781; font-size: 12px }
.card { fill: #ffffff; stroke: #d0d7de }
.run { fill: #57606a } .late { fill: #cf222e } .tidy { fill: #bf8700 }
.back { stroke: #0969da; stroke-width: 2; stroke-dasharray: 4 3 } .note { fill: #0969da; font-size: 12px }
.bad { fill: #cf222e; font-weight: 600 } .good { fill: #1a7f37; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #8d96a0 } .card { fill: #161b22; stroke: #30363d }
  .run { fill: #8d96a0 } .late { fill: #ff7b72 } .tidy { fill: #d29922 }
  .back { stroke: #58a6ff } .note { fill: #58a6ff } .bad { fill: #ff7b72 } .good { fill: #3fb950 }
}
"""


def draw(situation: dict[str, Any]) -> Iterator[str]:
    """The lines of the picture."""
    sides = [("the ordinary way", situation["ordinary"]), ("with quiesce", situation["quiesce"])]
    longest = max(side["lasted"] for _, side in sides)
    heights = [64 + ROW * len(side["lanes"]) for _, side in sides]
    height = 46 + sum(heights) + 12 * len(sides)
    title = f"{situation['title']}: before and after"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    yield f"<title>{escape(title)}</title><style>{STYLE}</style>"
    yield f'<text x="0" y="22" font-weight="600">{escape(situation["title"])}</text>'
    top = 40
    for (name, side), tall in zip(sides, heights, strict=True):
        yield f'<rect class="card" x="0.5" y="{top + 0.5}" width="{WIDTH - 1}" height="{tall}" rx="6"/>'
        yield from _side(name, side, top, tall, longest)
        top += tall + 12
    yield "</svg>"


def _side(name: str, side: dict[str, Any], top: int, tall: int, longest: float) -> Iterator[str]:
    def at(second: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * second / longest, 1)

    back = side["control_is_back"]
    yield f'<text x="14" y="{top + 24}">{escape(name)}</text>'
    left = len(side["left"])
    told = f"{left} left" if left else "nothing left"
    yield f'<text class="{"bad" if left else "good"}" x="{WIDTH - 14}" y="{top + 24}" text-anchor="end">{told}</text>'
    for number, lane in enumerate(side["lanes"]):
        middle = top + 50 + number * ROW
        start = lane["started"]
        end = lane["ended"] if lane["ended"] is not None else side["lasted"]
        yield f'<text x="14" y="{middle + 5}">{escape(lane["name"])}</text>'
        stopping = lane["told_to_stop"] if lane["told_to_stop"] is not None else end
        parts = [
            ("run", start, min(stopping, back, end)),
            ("tidy", min(stopping, back), min(end, back)),
            ("late", back, end),
        ]
        for kind, begin, finish in parts:
            if finish > begin + 0.001:
                yield (
                    f'<rect class="{kind}" x="{at(max(begin, start))}" y="{middle - 6}" '
                    f'width="{round(at(finish) - at(max(begin, start)), 1)}" height="12" rx="2"/>'
                )
        how = "still runs" if lane["ended"] is None else lane["how"]
        beside = at(end) + 8
        fits = beside < WIDTH - 90
        yield f'<text class="quiet" x="{beside if fits else at(end) - 8}" y="{middle + (4 if fits else -10)}" text-anchor="{"start" if fits else "end"}">{escape(how)}</text>'
    line = at(back)
    yield f'<line class="back" x1="{line}" x2="{line}" y1="{top + 34}" y2="{top + tall - 20}"/>'
    yield f'<text class="note" x="{line}" y="{top + tall - 7}" text-anchor="middle">control is back</text>'


def main() -> None:
    """From standard input to standard output."""
    for situation in json.load(sys.stdin)["situations"]:
        print("\n".join(draw(situation)))


if __name__ == "__main__":
    main()
