"""The timeline of one run as SVG: one lane per task, the steps of the run from left to right.

Every x is a share of the width and every y a number of pixels, so that the picture fits any window without scaling its
text. A step is a thick mark at its number, and a wait is the thin line to the next one. A stop is drawn half a step
after the suspension that it followed, or half a step before the resumption that it preceded.

A lane that never ended extends to the right edge, which no other lane reaches: the picture is wider than the run.
Leftover tasks may take steps long after the root; only the beginning of that is drawn, or the run itself would become
too small to see.
"""

from __future__ import annotations

from quiesce.audit.findings import Finding, LaneSpan, Timeline
from quiesce.audit.model import makers

from .text import clip, esc, local_name, plural

# Lanes beyond this number are counted, not drawn.
LANES = 24
# If there are more waits in all lanes together, most are too thin to point at, and only the last one of each lane is
# drawn.
WAITS = 200
# Steps closer than this share of the width become one mark.
COLUMNS = 250
# The most characters of a label, which fit on a phone.
LABEL = 38

TOP, BOTTOM = 22, 22
# A leaked lane has a line of text below it.
ROW, LEAKED_ROW = 38, 52


def draw(timeline: Timeline, finding: Finding, root: str) -> str:
    """The picture with its caption; "" if the timeline has no lanes."""
    if not timeline.lanes:
        return ""
    return _Drawing(timeline, finding, root).figure()


def belongs(lane: LaneSpan, finding: Finding) -> bool:
    """Whether the finding is about this lane."""
    name, numbered, number = lane.label.rpartition("#")
    if not (numbered and number.isdigit()):
        name = lane.label
    if name != finding.what:
        return False
    return not finding.made_at or lane.made_at[:3] == finding.made_at[:3]


class _Drawing:
    def __init__(self, timeline: Timeline, finding: Finding, root: str) -> None:
        self.timeline = timeline
        self.finding = finding
        self.root = root
        ends = [lane.end or lane.start for lane in timeline.lanes]
        last = max(1, timeline.steps, timeline.ended_at, *ends)
        self.last = min(last, self._end_of_interest())
        self.undrawn = last - self.last
        self.width = self.last + 0.5 + max(1.0, self.last * 0.12)
        # The width of a step's mark, in steps.
        self.thick = min(0.7, self.width * 0.025)
        self.lanes = self._choose()
        self.tells_every_wait = sum(len(lane.waits) for lane in self.lanes) <= WAITS

    def _end_of_interest(self) -> int:
        """The last step to draw: somewhat after the end of the root, or after the last stop if it never ends."""
        root = next((lane for lane in self.timeline.lanes if lane.label == self.root), None)
        at = self.timeline.ended_at
        if root is not None and root.end is None:
            at = max((step for step, _ in self.timeline.stops), default=at)
        return at + max(8, at // 2)

    def _choose(self) -> list[LaneSpan]:
        """The lanes to draw: the root and stopped ones, then those of the finding, then those that never ended."""
        lanes = self.timeline.lanes
        if len(lanes) <= LANES:
            return list(lanes)
        stopped = {label for _, label in self.timeline.stops}
        ranked = sorted(
            range(len(lanes)),
            key=lambda i: (
                lanes[i].label != self.root and lanes[i].label not in stopped,
                not belongs(lanes[i], self.finding),
                lanes[i].end is not None,
                i,
            ),
        )
        return [lanes[i] for i in sorted(ranked[:LANES])]

    def figure(self) -> str:
        """The picture as an HTML figure."""
        y = TOP
        # Drawn first, so that the lines of the stops and the lanes cover them.
        rows: list[str] = []
        lanes: list[str] = []
        for lane in self.lanes:
            high = LEAKED_ROW if lane.end is None else ROW
            if belongs(lane, self.finding):
                rows.append(f'<rect class="row" y="{y}" width="100%" height="{high - 2}"/>')
            lanes.append(f'<g transform="translate(0 {y})">{self._lane(lane)}</g>')
            y += high
        height = y + BOTTOM
        parts = [*rows, *self._stops(y), *self._root_end(y), *lanes]
        hidden = len(self.timeline.lanes) - len(self.lanes)
        more = f" {plural(hidden, 'more task')} not drawn." if hidden else ""
        if self.undrawn:
            verb = "is" if self.undrawn == 1 else "are"
            more += f" The last {plural(self.undrawn, 'step')} of leftover tasks {verb} not drawn."
        return (
            f'<figure><svg class="t" role="img" aria-label="{esc(self._in_words())}" width="100%" height="{height}">'
            f"{''.join(parts)}</svg><figcaption>The example, a run of {plural(self.timeline.steps, 'step')}: "
            f"a thick mark is a step, a thin line a wait.{more}</figcaption></figure>"
        )

    def _x(self, step: float) -> str:
        return f"{round(100 * max(0.0, min(step, self.width)) / self.width, 2):g}%"

    def _bar(self, name: str, start: float, end: float, title: str = "") -> str:
        tooltip = f"<title>{esc(title)}</title>" if title else ""
        return f'<rect class="{name}" x="{self._x(start)}" width="{self._x(end - start)}">{tooltip}</rect>'

    def _lane(self, lane: LaneSpan) -> str:
        is_leaked = lane.end is None
        is_about = belongs(lane, self.finding)
        end = self.width if lane.end is None else min(lane.end, self.last + 0.5)
        made = next(iter(makers(lane.made_at)), None)
        made_at = f"made at {made}" if made is not None else ""
        by = f", by {lane.parent}" if lane.parent else ""
        label = clip(local_name(lane.label), LABEL)
        is_root = " (root)" if lane.label == self.root else ""
        title = f"{lane.label}{is_root}\n{made_at}{by}".strip()
        state = (" leak" if is_leaked else "") + (" about" if is_about else "")
        parts = [
            f'<g class="lane{state}">',
            f'<text x="4" y="13">{esc(label)}{is_root}<tspan class="m" dx="8">{esc(clip(made_at, 60))}</tspan>'
            f"<title>{esc(title)}</title></text>",
            self._bar("b", lane.start, end),
            *self._waits(lane, end),
            *self._steps(lane),
            '<text class="p" x="100%" dx="-4" y="46">still pending</text>' if is_leaked else "",
            "</g>",
        ]
        return "".join(parts)

    def _waits(self, lane: LaneSpan, end: float) -> list[str]:
        waits = lane.waits if self.tells_every_wait else lane.waits[-1:]
        drawn = []
        for start, resumed, where in waits:
            # After the end of the root, only the end of a lane is recorded, not its steps.
            until = "on" if resumed is None else f"to step {resumed}"
            at = f" at {where}" if where else ""
            stop = end if resumed is None else min(resumed, end)
            if start < stop:
                drawn.append(self._bar("w", start, stop, f"waits{at}, from step {start} {until}"))
        return drawn

    def _steps(self, lane: LaneSpan) -> list[str]:
        steps = {start for start, _, _ in lane.waits} | {to for _, to, _ in lane.waits if to is not None}
        if lane.end is not None and lane.end > lane.start:
            steps.add(lane.end)
        steps = {step for step in steps if step <= self.last}
        drawn: list[str] = []
        near = max(1 if self.thick > 0.69 else 0, self.width / COLUMNS)
        first = last = -1
        for step in [*sorted(steps), self.width + 9]:
            if first >= 0 and step - last > near:
                title = f"step {first}" if first == last else f"steps {first} to {last}"
                drawn.append(self._bar("s", first - self.thick / 2, last + self.thick / 2, title))
                first = -1
            first, last = (int(step) if first < 0 else first), int(step)
        return drawn

    def _stop_at(self, number: int, step: int) -> float:
        points = self.finding.example.points
        phase = points[number].phase if number < len(points) else "early"
        return step + 0.5 if phase == "early" else step - 0.5

    def _stops(self, y: int) -> list[str]:
        drawn = []
        for number, (step, label) in enumerate(self.timeline.stops):
            at = self._stop_at(number, step)
            x = self._x(at)
            words = "stopped here" if len(self.timeline.stops) == 1 else f"stop {number + 1}"
            drawn.append(
                f'<g class="stop"><line x1="{x}" x2="{x}" y1="{16}" y2="{y}"/>{self._flag(at, 12, words)}'
                f"<title>{esc(f'stopped at step {step}, at a point of {label}')}</title></g>"
            )
        return drawn

    def _root_end(self, y: int) -> list[str]:
        root = next((lane for lane in self.timeline.lanes if lane.label == self.root), None)
        if root is not None and root.end is None:
            return []
        at = self.timeline.ended_at + 0.5
        x = self._x(at)
        return [
            f'<g class="end"><line x1="{x}" x2="{x}" y1="{TOP}" y2="{y + 4}"/>'
            f"{self._flag(at, y + 16, 'the root ended')}"
            f"<title>the root ended at step {self.timeline.ended_at}</title></g>"
        ]

    def _flag(self, at: float, y: int, words: str) -> str:
        """A text next to a vertical line, on the side that has room for it."""
        side = ' dx="5"' if at < self.width / 2 else ' dx="-5" text-anchor="end"'
        return f'<text x="{self._x(at)}" y="{y}"{side}>{words}</text>'

    def _in_words(self) -> str:
        """A description of the picture for screen readers."""
        leaked = [lane.label for lane in self.timeline.lanes if lane.end is None]
        stops = ", ".join(f"at step {step} in {label}" for step, label in self.timeline.stops)
        return (
            f"Timeline of {plural(len(self.timeline.lanes), 'task')}. "
            + (f"Stopped {stops}. " if stops else "Not stopped. ")
            + (f"Still pending at the end: {', '.join(leaked)}." if leaked else "Every task ended.")
        )
