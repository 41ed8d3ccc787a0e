"""What a terminal shows of a chat, as text with colours: answers in Markdown, tools and their output, words of the chat.

An answer is shown block by block. A block that is complete is set as Markdown and goes up into the terminal's own memory, never to be touched again; the
one that is still being said stands below, as it comes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from prompt_toolkit.utils import get_cwidth
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text

from quiesce._safe.text import one_line, shortened, shown
from quiesce.cli.base import look_at
from quiesce.cli.chat.session import Approval, Call, outcome_in_words, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

HEAD, TAIL = 12, 4  # lines of a program's output: of the beginning, and of the end
LONGEST = 2000  # characters of each
GOES_ON = " … the line goes on"
COLOURED = 2000  # lines of a change; with more of them, colours would take too long
LARGEST = 50_000  # characters of a block that is set as Markdown; whatever is longer is no prose
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Blocks:
    """Cuts Markdown that comes in pieces into blocks."""

    def __init__(self) -> None:
        self.rest = ""
        self._fence = ""
        self._done = 0  # how much of `rest` is in lines that were looked at

    def feed(self, piece: str) -> list[str]:
        """The blocks that are complete with this piece."""
        self.rest += piece
        complete = list[str]()
        while (end := self.rest.find("\n", self._done)) >= 0:
            line, self._done = self.rest[self._done : end], end + 1
            found = _FENCE.match(line)
            if self._fence:
                if found and found[1].startswith(self._fence) and not line.strip().strip("`~"):
                    self._fence = ""
                    complete.append(self._cut())
            elif found:
                self._fence = found[1]
            elif not line.strip():
                complete.append(self._cut())
        return [block for block in complete if block.strip()]

    def _cut(self) -> str:
        block, self.rest, self._done = self.rest[: self._done], self.rest[self._done :], 0
        return block

    def finish(self) -> str:
        """What is left."""
        rest, self.rest, self._fence, self._done = self.rest, "", "", 0
        return rest


class Excerpt:
    """The beginning of a program's output as it comes; its end when it is known."""

    def __init__(self) -> None:
        self._partial = ""
        self._goes_on = False  # it was longer than what is kept of it
        self._shown = 0
        self._tail: list[str] = []
        self._hidden = 0

    def feed(self, text: str) -> list[str]:
        """The lines to show now."""
        first, *more = text.replace("\r\n", "\n").split("\n")
        self._add(first)
        lines = list[str]()
        for begun in more:
            lines.append(self._partial + (GOES_ON if self._goes_on else ""))
            self._partial, self._goes_on = "", False
            self._add(begun)
        return [line for line in lines if self._is_of_the_beginning(line)]

    def _add(self, text: str) -> None:
        """More of the line that has no end yet. What is written over does not count, what is too long is cut."""
        over = text.rstrip("\r").rfind("\r") + 1
        if over or (text and self._partial.endswith("\r")):
            self._partial, self._goes_on = "", False
        if not self._goes_on:
            line = self._partial + text[over:]
            self._goes_on = len(line) > LONGEST
            self._partial = line[:LONGEST]

    def _is_of_the_beginning(self, line: str) -> bool:
        if self._shown < HEAD:
            self._shown += 1
            return True
        self._tail.append(line)
        if len(self._tail) > TAIL:
            del self._tail[0]
            self._hidden += 1
        return False

    def finish(self) -> list[str]:
        """The lines to show at the end."""
        last = self.feed("\n") if self._partial else []
        hidden = [f"… {self._hidden} more lines …"] if self._hidden else []
        return last + hidden + self._tail


# Markdown, soberly


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield text


class _PlainCode(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code,
            self.lexer_name,
            theme="ansi_dark",
            background_color="default",
            word_wrap=True,
            padding=(0, 2),
        )


class _Sober(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }


class _Clean:
    """What is shown, made safe after it was set: Markdown makes characters of `&#27;`, which nobody could see before."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._part, options):
            if not segment.control:
                yield Segment(shown(segment.text), segment.style)


def rendered(*parts: RenderableType) -> str:
    """As the terminal takes it, for its width of now."""
    terminal, lines = look_at(), list[str]()
    for part in parts:
        console = replace(terminal, stream=(stream := io.StringIO())).console()
        assert console is not None
        try:
            # What may be copied is left to the terminal to wrap.
            console.print(_Clean(part), soft_wrap=isinstance(part, Text) and part.no_wrap is True)
        except Exception:  # some Markdown that cannot be set: it is shown as it was written
            if not isinstance(part, Markdown):
                raise
            stream.write(shown(part.markup))
        shown_lines = stream.getvalue().removesuffix("\n").split("\n")
        lines += _without_margins(shown_lines) if isinstance(part, Markdown) else shown_lines
    return "".join(f"{line.rstrip(' ')}\n" for line in lines)


def _without_margins(lines: list[str]) -> list[str]:
    """Without empty lines at the beginning and the end, whatever colour they have."""
    full = [place for place, line in enumerate(lines) if shown(line).strip()]
    return lines[full[0] : full[-1] + 1] if full else []


def markdown(block: str) -> RenderableType:
    """A block of an answer."""
    if len(block) > LARGEST:
        return Text(shown(block).strip("\n"))
    return _Sober(shown(block).strip("\n"), hyperlinks=False)


# Lines


def user_line(text: str) -> Text:
    """What the user has sent."""
    lines = shown(text).split("\n")
    said = "\n".join(f"{'› ' if place == 0 else '  '}{line}" for place, line in enumerate(lines))
    return Text(said, style="bold cyan", no_wrap=True)


def call_line(call: Call, width: int) -> Text:
    """A tool that was asked for."""
    first, *more = call.title.split("\n")
    title = one_line(first, max(width - len(call.name) - 4, 20)) + (f" (+{len(more)} lines)" if more else "")
    return Text.assemble(("● ", "yellow"), (call.name, "bold"), f" {title}" if title else "")


def output_line(line: str, name: str = "") -> Text:
    """A line that a program has printed."""
    return Text(f"  {name}│ {shown(line)}", style="dim", no_wrap=True)


def result_line(call: Call, outcome: str, elapsed: float | None, output: str, width: int) -> Text | None:
    """How a call has ended, if that is worth a line."""
    how = outcome_in_words(outcome)
    if outcome == "rejected":  # it was just said, by who has decided
        return None
    took = seconds(elapsed) if elapsed is not None else ""
    if how:
        why = f": {shortened(shown(output), max(width - 30, 20))}" if outcome == "failed" else ""
        return Text(
            f"  └ {how}{why}" + (f" after {took}" if took and not why else ""),
            style="red" if outcome == "failed" else "yellow",
        )
    if elapsed is not None and elapsed >= 1:
        return Text(f"  └ {took}", style="dim")
    return None


def question(approval: Approval) -> Text:
    """What somebody is to decide on, all of it."""
    text = Text(no_wrap=True).append(f"allow {approval.call.name}?", style="bold yellow")
    lines = [f"\n  {line}" for line in approval.preview.split("\n")]
    if approval.call.name != "write_file" or len(lines) > COLOURED:
        return text.append("".join(lines))
    for line in lines:
        text.append(line, style={"+": "green", "-": "red", "@": "cyan"}.get(line[3:4], ""))
    return text


def tail_of(text: str, width: int, height: int) -> str:
    """The last lines of a text, wrapped to a width."""
    wrapped = list[str]()
    for line in text.split("\n")[-height:]:
        wrapped += _wrapped(line, max(width, 2))
    return "\n".join(wrapped[-height:])


def _wrapped(line: str, width: int) -> Iterator[str]:
    piece, used = "", 0
    for character in line:
        cells = get_cwidth(character)
        if used + cells > width:
            head, space, word = piece.rpartition(" ")  # at a space, if there is one
            yield head if space else piece
            piece = word if space else ""
            used = sum(map(get_cwidth, piece))
        piece += character
        used += cells
    yield piece
