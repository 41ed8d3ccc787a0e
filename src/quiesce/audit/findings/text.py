"""The report as text: for a terminal, or as the message of a failed assertion.

The verdict comes first, then what was covered, then one strip per stop and phase with one character per point, then the
findings, worst first. Findings that do not count (warnings, known and ignored ones) get one line each at the end. The
same result always gives the same text, apart from width and colour.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Final

from quiesce._safe.printed import printed_line
from quiesce._safe.secrets import without_secrets
from quiesce.audit.model import ITEM, STOPS, Place, Point, makers

from .findings import Example, Finding
from .result import MARKS, AuditResult, Mark, Strip

WIDTH: Final = 100
# The most lines of one strip; a longer strip is shown as counts of equal marks.
_MOST_LINES = 3
_MOST_FRAMES = 4
_MEANS: dict[Mark, str] = {
    "clean": "clean",
    "finding": "finding",
    "warning": "only warnings, known or ignored",
    "unresolved": "not seen with more patience",
    "missed": "not reached",
    "skipped": "not run",
}
_COLORS: dict[str, str] = {".": "32", "X": "1;31", "w": "33", "u": "35", "?": "35", "-": "2"}


class Paint:
    """Colours for a terminal, or none.

    A line is first put together with a random mark in place of the escape character, then made safe as a whole, and
    only then coloured (`line`). Names and messages in the line may contain anything, but cannot guess the mark.
    """

    def __init__(self, wanted: bool) -> None:
        self._mark = secrets.token_hex(8) if wanted else ""

    def __call__(self, text: str, code: str) -> str:
        # Remove secrets before the marks are added: secrets are recognised by the text around them, so a mark next to
        # one would hide it, and the mark itself looks like a secret.
        return f"{self._mark}[{code}m{without_secrets(text)}{self._mark}[0m" if self._mark and text else text

    def line(self, text: str) -> str:
        """One line of the report, ready for the terminal."""
        safe = printed_line(text)
        return safe.replace(self._mark, "\x1b") if self._mark else safe

    def bold(self, text: str) -> str:
        return self(text, "1")

    def dim(self, text: str) -> str:
        return self(text, "2")

    def verdict(self, text: str) -> str:
        return self(text, {"CLEAN": "1;32", "FINDINGS": "1;31"}.get(text, "1;35"))

    def marks(self, marks: str) -> str:
        return "".join(self("".join(run), _COLORS.get(mark, "0")) for mark, run in groupby(marks))


def report(result: AuditResult, *, width: int = WIDTH, color: bool = False) -> str:
    """The whole report: verdict, strips, findings and notes."""
    paint = Paint(color)
    blocks = [[headline(result, paint), *_summary(result)], list(_strips(result, width, paint))]
    counting = [finding for finding in result.findings if finding.counts]
    blocks += [list(_finding(finding, number, result, paint)) for number, finding in enumerate(counting, 1)]
    blocks.append(list(_uncounted(result, paint)))
    blocks.append(list(_remarks(result, paint)))
    return "\n\n".join("\n".join(map(paint.line, lines)) for lines in blocks if lines)


def headline(result: AuditResult, paint: Paint) -> str:
    """The verdict in one line, for `paint.line`."""
    so_far = " so far" if result.is_interrupted else ""
    return f"{paint.verdict(result.verdict)}{so_far} {paint.bold(result.target)} on {result.world}"


def _summary(result: AuditResult) -> Iterator[str]:
    if result.reason:
        yield f"  {result.reason}"
    if result.strips:
        yield f"  {_count(len(result.errors), 'finding')}; {result.scope}"


# Strips


def _strips(result: AuditResult, width: int, paint: Paint) -> Iterator[str]:
    strips = [strip for strip in result.strips if strip.cells]
    if not strips:
        return
    indent = max(len(strip.name) for strip in strips) + 4
    used: set[str] = set()
    for strip in strips:
        used.update(strip.marks)
        for number, line in enumerate(_fold(strip, max(width - indent, 20), paint)):
            yield f"  {strip.name if number == 0 else '':<{indent - 4}}  {line}"
    if result.baseline is not None:
        mark = MARKS[result.baseline.mark]
        used.add(mark)
        yield f"  {'no stop':<{indent - 4}}  {paint.marks(mark)}"
    legend = [f"{mark} {_MEANS[name]}" for name, mark in MARKS.items() if mark in used]
    yield paint.dim(f"  {'':<{indent - 4}}  " + ", ".join(legend))


def _fold(strip: Strip, width: int, paint: Paint) -> list[str]:
    """The marks of a strip in lines; if there are too many, as counts of equal marks in a row."""
    marks = strip.marks
    if len(marks) <= width * _MOST_LINES:
        return [paint.marks(marks[start : start + width]) for start in range(0, len(marks), width)]
    lines: list[list[str]] = [[]]
    length = 0
    for mark, run in groupby(marks):
        count = len(list(run))
        word = f"{count}×{mark}" if count > 1 else mark
        if lines[-1] and length + len(word) + 1 > width:
            lines.append([])
            length = 0
        lines[-1].append(paint(word, _COLORS.get(mark, "0")))
        length += len(word) + 1
    if len(lines) > _MOST_LINES:
        hidden = sum(len(line) for line in lines[_MOST_LINES:])
        lines = [*lines[:_MOST_LINES], [f"... and {hidden} more stretches, of {len(marks)} points"]]
    return [" ".join(line) for line in lines]


# Findings


def _finding(finding: Finding, number: int, result: AuditResult, paint: Paint) -> Iterator[str]:
    example = finding.example
    title = paint(f"{number}. {finding.kind.upper()}", "1;31")
    yield f"{title} {paint.bold(finding.what)}: {finding.means}"
    rows = [("seen", f"in {finding.runs} of {_count(result.runs, 'run')}: {_by_phase(finding.strips)}")]
    if example.detail:
        rows.append(("says", " ".join(example.detail.split())))
    rows += _row("made at", finding.made_at)
    if example.stop:
        rows.append(("example", _in_words(example.stop, example.points)))
    else:
        rows.append(("example", "without a stop"))
    rows += _row("stopped at", example.stopped_at[::-1])
    rows += _row("stuck at", example.stuck_at[::-1])
    if example.token:
        if "<" not in result.target:
            rows.append(("replay", result.replay_command(example.token)))
        if not result.replay_with:
            rows.append(("in a test", call_in_a_test(result, example)))
    for name, text in rows:
        yield f"   {paint.dim(f'{name:<10}')}  {text}"


def _uncounted(result: AuditResult, paint: Paint) -> Iterator[str]:
    """One line for each finding that does not count."""
    for finding in result.findings:
        if finding.counts:
            continue
        status = "warning" if finding.severity == "warning" else "known"
        if finding.is_unresolved:
            status = "unresolved"
        if finding.ignored:
            status = f"ignored ({finding.ignored})"
        site = f", made at {finding.site}" if finding.site is not None else ""
        line = f"{paint(status, '33')}: {finding.kind} {finding.what}: {finding.means}"
        yield f"{line}; {_count(finding.runs, 'run')}{site}"
        if finding.fault:
            yield f"   Python's fault: {finding.fault}"
        if finding.is_unresolved:
            yield f"   It {finding.doubt}"
        if finding.severity == "warning" and finding.example.token and "<" not in result.target:
            yield paint.dim(f"   replay: {result.replay_command(finding.example.token)}")


def _remarks(result: AuditResult, paint: Paint) -> Iterator[str]:
    for note in result.notes:
        yield f"{paint('note', '36')}: {note}"
    for pattern in result.stale_ignores:
        yield f"{paint('stale', '1;31')}: the ignore {pattern!r} matches nothing any more: remove it"


def _in_words(stop: str, points: Iterable[Point]) -> str:
    says = STOPS[stop].says if stop in STOPS else stop
    return (
        f"{says}, " + ", then ".join(_moment(point) for point in points) if points else f"{says}, everywhere"
    )


def _moment(point: Point) -> str:
    if point.lane == ITEM:
        return f"after {_count(point.number, 'item')}" if point.number else "before the first item"
    if point.phase == "unstarted":
        return f"before {point.lane} took its first step"
    if point.phase == "early":
        return f"just after {point.lane} suspended for the {_ordinal(point.number)} time"
    return f"just before {point.lane} resumed from its {_ordinal(point.number)} suspension"


def _row(name: str, places: tuple[Place, ...]) -> list[tuple[str, str]]:
    """A row with the reader's own frames, innermost first, and of the libraries only the function that is waiting."""
    if not places:
        return []
    own = [place for place in places if not place.in_library]
    if name == "made at":
        own = list(makers(places))
    library = [place for place in places if place.in_library]
    if not own:
        own, library = library[:1], library[1:]
    frames = [str(place) for place in own[:_MOST_FRAMES]]
    if len(own) > _MOST_FRAMES:
        frames.append(f"and {len(own) - _MOST_FRAMES} more")
    text = " <- ".join(frames)
    if name != "made at" and library and places[0] is library[0]:
        text += f", waiting in {places[0].function}"
    return [(name, text)]


def where(title: str, places: tuple[Place, ...]) -> list[str]:
    """The line of a report with these places, innermost first; no line if there are none."""
    return [printed_line(f"    {name} {text}") for name, text in _row(title, places)]


def _by_phase(strips: Iterable[str]) -> str:
    """Group strips: "cancel/early", "cancel/late", "timeout/early" become "cancel (early, late); timeout (early)"."""
    phases: dict[str, list[str]] = {}
    for strip in strips:
        stop, _, phase = strip.partition("/")
        phases.setdefault(stop, []).append(phase)
    same_phases: dict[tuple[str, ...], list[str]] = {}
    for stop, names in phases.items():
        same_phases.setdefault(tuple(names), []).append("no stop" if stop == "baseline" else stop)
    parts = (
        ", ".join(stops) + (f" ({', '.join(names)})" if any(names) else "")
        for names, stops in same_phases.items()
    )
    return "; ".join(parts)


def call_in_a_test(result: AuditResult, example: Example) -> str:
    """A line of Python that fails now and passes once the finding is fixed.

    It audits the whole strip, not just the one run: the token of a run belongs to the code as it is, and the fix will
    change that.
    """
    words = shlex.split(result.options)
    phase = example.points[0].phase
    arguments = [_function(result), f"stops={example.stop!r}", f"phases={phase!r}"]
    if len(example.points) > 1:
        arguments.append(f"depth={len(example.points)}")
    for option, value in pairwise([*words, ""]):
        if option == "--backend":
            arguments.append(f"backend={value!r}")
        elif option in ("--seed", "--patience"):
            arguments.append(f"{option[2:]}={value}")
        elif option == "--check":
            arguments.append(f"check={value.rpartition(':')[2]}")
        elif option in ("--real-io", "--again"):
            arguments.append(f"{option[2:].replace('-', '_')}=True")
    return f"audit({', '.join(arguments)}).assert_clean()"


def _function(result: AuditResult) -> str:
    name = re.split(r"::?|<locals>\.", result.target)[-1]
    return name if name.replace(".", "").isidentifier() else "scenario"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}" if number else f"no {what}s"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
