"""How the tour is shown: live and in colour at a terminal, as plain lines elsewhere, and not at all with `--json`."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quiesce.cli.base import Terminal
from quiesce.cli.tour.situations import SITUATIONS, Side, Situation

from .stage import ASCII, UNICODE, Line, Played, Span, Style, Watcher, draw, legend, plain

if TYPE_CHECKING:
    from rich.text import Text

_STYLES: dict[Style, str] = {
    "title": "bold",
    "dim": "dim",
    "good": "bold green",
    "bad": "bold red",
    "stopping": "yellow",
    "lane": "cyan",
    "code": "dim",
}
_HEADS: dict[Side, str] = {"ordinary": "the ordinary way", "quiesce": "with quiesce"}
_WIDEST = 120
_LABEL = 8


class Show:
    """Writes the tour to one stream, which need not be a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._console: Any = terminal.console() if terminal.is_terminal or terminal.color else None
        self._width = min(terminal.width, _WIDEST)
        self._glyphs = UNICODE if terminal.unicode else ASCII

    # The parts of the tour, in order

    def open(self) -> None:
        """The title."""
        self._paragraph("quiesce: stop any agent, and know what is left", "title")

    def whole_program(self, argv: Sequence[str]) -> None:
        """The head of what `quiesce stoptest` prints."""
        self._say()
        self._paragraph("First: does a whole program stop?", "title")
        what = (
            f"Your program, {shlex.join(argv)}, stopped in eight ways, which takes about a minute."
            if argv
            else "A program that starts a server, and stops it when it ends, if it can. (For one of yours: "
            "quiesce tour -- COMMAND.)"
        )
        self._paragraph(
            f"{what} Each stop twice: the program as it is, and started by quiesce exec.", "", indent=4
        )
        self._say()
        self._terminal.stream.flush()

    def gap(self) -> None:
        """Empty lines between two parts."""
        self._say()
        self._say()

    def situations(self) -> None:
        """What is played, and what its signs mean."""
        self._paragraph(
            "Five situations in which agents leak, as users reported them. Everything is measured while it happens.",
            "",
        )
        self._say()
        line: Line = []
        for text, style in legend(self._glyphs):
            if line and len(plain(line)) + 3 + len(text) > self._width:
                self._say(line)
                line = []
            line.append(("   " if line else "", ""))
            line.append((text, style))
        self._say(line)

    def situation(self, situation: Situation, number: int) -> None:
        self._say()
        self._say()
        self._paragraph(f"{number}/{len(SITUATIONS)} {situation.title}", "title", hanging=4)
        self._paragraph(situation.story, "", indent=4)
        self._paragraph(f"{situation.seed}: {situation.thread}", "dim", indent=4)

    def side(self, situation: Situation, side: Side) -> None:
        self._say()
        head = f"  {_HEADS[side]}"
        if len(head) + 2 + len(situation.how[side]) <= self._width:
            self._say([(head, "title"), (f": {situation.how[side]}", "")])
        else:
            self._say([(head, "title")])
            self._paragraph(situation.how[side], "", indent=4)

    def code(self, text: str) -> None:
        self._say()
        for line in text.splitlines():
            self._say([(f"    {line}", "code")])
        self._say()

    @contextmanager
    def playing(self, situation: Situation, speed: float) -> Iterator[Watcher | None]:
        """Draw a growing timeline while a program plays, if the stream can be redrawn."""
        if self._console is None or not self._terminal.is_terminal or self._terminal.stream.encoding is None:
            yield None
            return
        from rich.live import Live

        with Live(console=self._console, auto_refresh=False, transient=True) as live:

            def watch(played: Played) -> None:
                live.update(self._rich(self._timeline(situation, played, speed)), refresh=True)

            yield watch

    def played(self, situation: Situation, side: Side, played: Played, speed: float) -> None:
        for spans in self._timeline(situation, played, speed):
            self._say(spans)
        if played.raised:
            self._fact("raised", played.raised)
        if played.report is not None:
            style: Style = "good" if played.report.clean else "bad"
            for number, line in enumerate(str(played.report).splitlines()):
                self._fact("report" if number == 0 else "", line.strip(), style)
        for left in played.left:
            self._fact("left", str(left), "bad")
        if not played.left:
            self._fact("left", "nothing", "good" if played.is_clean else "")
        for lane in played.harmed:
            self._fact("harmed", f"{lane.name!r} was cancelled, though no code of yours cancelled it", "bad")
        for complaint in played.complaints:
            self._fact("loop", complaint, "bad")
        for fact in played.facts:
            self._fact("since", fact)

    def close(self, results: list[tuple[Situation, dict[Side, Played]]], seconds: float) -> None:
        self._say()
        self._say()
        rows = [
            (situation.name, _verdict(sides["ordinary"]), _verdict(sides["quiesce"]))
            for situation, sides in results
        ]
        heads = ("", "the ordinary way", "with quiesce")
        first = max(len(row[0]) for row in rows)
        second = max(len(row[1]) for row in [heads, *rows])
        if first + second + 4 + max(len(row[2]) for row in [heads, *rows]) <= self._width:
            self._say([(f"{'':<{first}}  {heads[1]:<{second}}  {heads[2]}", "title")])
            for (name, ordinary, ours), (_, sides) in zip(rows, results, strict=True):
                spans: list[Span] = [(f"{name:<{first}}  ", "")]
                spans.append((f"{ordinary:<{second}}  ", _good_or_bad(sides["ordinary"])))
                self._say([*spans, (ours, _good_or_bad(sides["quiesce"]))])
        else:
            for (name, ordinary, ours), (_, sides) in zip(rows, results, strict=True):
                self._paragraph(f"{name}: {ordinary}", _good_or_bad(sides["ordinary"]), hanging=2)
                self._paragraph(f"  with quiesce: {ours}", _good_or_bad(sides["quiesce"]), hanging=4)
        self._say()
        self._paragraph(
            f"That took {seconds:.0f} s. To see the code of these programs: quiesce tour --code", ""
        )
        for command, summary in (
            ("quiesce stoptest", "stop a program of your own in every way, and see what it leaves"),
            ("quiesce chat", "talk to an agent, and press Esc while it works"),
            ("quiesce audit", "find such leaks in your own code"),
        ):
            self._paragraph(f"  {command:<17} {summary}", "", hanging=20)

    # Writing

    def _timeline(self, situation: Situation, played: Played, speed: float) -> list[Line]:
        return draw(played, span=situation.lasts / speed, width=self._width, glyphs=self._glyphs)

    def _fact(self, label: str, text: str, style: Style = "") -> None:
        room = max(self._width - 4 - _LABEL, 16)
        for number, line in enumerate(_wrapped(text, room)):
            head: Span = (f"    {label if number == 0 else '':<{_LABEL}}", "dim")
            self._say([head, (line, style)])

    def _paragraph(self, text: str, style: Style, *, indent: int = 0, hanging: int = 0) -> None:
        for line in _wrapped(text, self._width - indent, hanging):
            self._say([(" " * indent, ""), (line, style)])

    def _say(self, line: Line | None = None) -> None:
        line = line or []
        if self._console is not None:
            self._console.print(self._rich([line]), soft_wrap=True)
        else:
            self._terminal.stream.write(self._terminal.writable(plain(line)) + "\n")
        self._terminal.stream.flush()

    def _rich(self, lines: list[Line]) -> Text:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="crop")
        for number, line in enumerate(lines):
            text.append("\n" if number else "")
            for part, style in line:
                text.append(self._terminal.writable(part), style=_STYLES.get(style, ""))
        return text


class Silence(Show):
    """Shows nothing, for `--json`."""

    def _say(self, line: Line | None = None) -> None:
        pass

    @contextmanager
    def playing(self, situation: Situation, speed: float) -> Iterator[Watcher | None]:
        yield None


def _wrapped(text: str, width: int, hanging: int = 0) -> list[str]:
    start = len(text) - len(text.lstrip())
    lines = textwrap.wrap(
        text.strip(),
        max(width, 10),
        initial_indent=" " * start,
        subsequent_indent=" " * hanging,
        break_on_hyphens=False,
    )
    return lines or [""]


def _verdict(played: Played) -> str:
    """What a program left, in a few words."""
    findings = []
    for kind, plural in (("task", "tasks"), ("thread", "threads"), ("process", "processes")):
        if count := sum(left.kind == kind for left in played.left):
            findings.append(f"{count} {plural if count > 1 else kind} left")
    if played.harmed:
        findings.append("an innocent task cancelled")
    if played.complaints and not findings:
        findings.append("errors in the event loop")
    if findings:
        return ", ".join(findings)
    took = "" if played.report is None else f", in {played.report.elapsed:.3f} s"
    return f"nothing left{took}"


def _good_or_bad(played: Played) -> Style:
    return "good" if played.is_clean else "bad"
