"""What a terminal shows of a chat, as coloured text: answers in Markdown, tools and their output, messages.

An answer is shown block by block. A complete block is rendered as Markdown and printed, never to be touched again;
the block that the model is still writing is shown below it, unrendered.
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

from quiesce.cli.inner import detect_terminal
from quiesce.inner import one_line, shortened, shown
from quiesce_chat.session import Approval, Call, outcome_in_words, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Lines shown of a program's output: at its beginning, and at its end.
HEAD, TAIL = 12, 4
#: Characters shown of each of these lines.
LONGEST = 2000
GOES_ON = " … the line goes on"
#: A change of more lines is shown without colours, which would take too long.
COLOURED = 2000
#: A block of more characters is not prose, and is not rendered as Markdown.
LARGEST = 50_000
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Blocks:
    """Cuts Markdown that arrives in pieces into blocks. `rest` is the block that is not complete yet."""

    def __init__(self) -> None:
        self.rest = ""
        #: The opening fence of the code block that `rest` is in. An empty line does not end a block there.
        self._fence = ""
        #: How many characters of `rest` are in complete lines, which are not examined again.
        self._examined = 0

    def feed(self, piece: str) -> list[str]:
        """Add a piece, and return the blocks that it completes."""
        self.rest += piece
        complete = list[str]()
        while (end := self.rest.find("\n", self._examined)) >= 0:
            line, self._examined = self.rest[self._examined : end], end + 1
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
        block, self.rest, self._examined = self.rest[: self._examined], self.rest[self._examined :], 0
        return block

    def finish(self) -> str:
        """Return the incomplete block, and start again."""
        rest, self.rest, self._fence, self._examined = self.rest, "", "", 0
        return rest


class Excerpt:
    """Shortens a program's output: its beginning is shown as it arrives, and its end when the program has ended."""

    def __init__(self) -> None:
        #: The line that has no end yet, at most `LONGEST` characters of it.
        self._partial = ""
        #: The line was longer than that.
        self._goes_on = False
        self._shown = 0
        self._tail: list[str] = []
        self._hidden = 0

    def feed(self, text: str) -> list[str]:
        """Add output, and return the lines to show now."""
        first, *more = text.replace("\r\n", "\n").split("\n")
        self._add(first)
        lines = list[str]()
        for begun in more:
            lines.append(self._partial + (GOES_ON if self._goes_on else ""))
            self._partial, self._goes_on = "", False
            self._add(begun)
        return [line for line in lines if self._is_shown_now(line)]

    def _add(self, text: str) -> None:
        """Add to the line that has no end yet, shortened to `LONGEST` characters."""
        # Text before a carriage return is overwritten by what follows, as progress bars do. A carriage return at
        # the end does not count yet: the next piece decides whether something overwrites the line or a line feed
        # ends it.
        over = text.rstrip("\r").rfind("\r") + 1
        if over or (text and self._partial.endswith("\r")):
            self._partial, self._goes_on = "", False
        if not self._goes_on:
            line = self._partial + text[over:]
            self._goes_on = len(line) > LONGEST
            self._partial = line[:LONGEST]

    def _is_shown_now(self, line: str) -> bool:
        """Whether the line belongs to the beginning; if not, it is kept as a candidate for the end."""
        if self._shown < HEAD:
            self._shown += 1
            return True
        self._tail.append(line)
        if len(self._tail) > TAIL:
            del self._tail[0]
            self._hidden += 1
        return False

    def finish(self) -> list[str]:
        """The lines to show when the program has ended."""
        last = self.feed("\n") if self._partial else []
        hidden = [f"… {self._hidden} more lines …"] if self._hidden else []
        return last + hidden + self._tail


# Markdown, with few decorations: no centred headings, no boxes around code, no background colours


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


class _PlainMarkdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }


class _Sanitised:
    """Makes text safe after it was rendered. Before is too early: Markdown turns `&#27;` into an escape character."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._part, options):
            if not segment.control:
                yield Segment(shown(segment.text), segment.style)


def rendered(*parts: RenderableType) -> str:
    """Render parts to text for the terminal, at its current width."""
    terminal, lines = detect_terminal(), list[str]()
    for part in parts:
        console = replace(terminal, stream=(stream := io.StringIO())).console()
        assert console is not None
        try:
            # Text that users may copy is wrapped by the terminal, which then does not copy line breaks of ours.
            console.print(_Sanitised(part), soft_wrap=isinstance(part, Text) and part.no_wrap is True)
        except Exception:
            # Rich or its parsers may fail on unusual Markdown. The answer is then shown as it was written.
            if not isinstance(part, Markdown):
                raise
            stream.write(shown(part.markup))
        shown_lines = stream.getvalue().removesuffix("\n").split("\n")
        lines += _without_margins(shown_lines) if isinstance(part, Markdown) else shown_lines
    return "".join(f"{line.rstrip(' ')}\n" for line in lines)


def _without_margins(lines: list[str]) -> list[str]:
    """The lines without empty ones at the beginning and the end, even if those contain colour sequences."""
    full = [place for place, line in enumerate(lines) if shown(line).strip()]
    return lines[full[0] : full[-1] + 1] if full else []


def markdown(block: str) -> RenderableType:
    """A block of an answer, as Markdown unless it is very long."""
    if len(block) > LARGEST:
        return Text(shown(block).strip("\n"))
    return _PlainMarkdown(shown(block).strip("\n"), hyperlinks=False)


# Lines


def user_line(text: str) -> Text:
    """A message of the user."""
    lines = shown(text).split("\n")
    marked = "\n".join(f"{'› ' if place == 0 else '  '}{line}" for place, line in enumerate(lines))
    return Text(marked, style="bold cyan", no_wrap=True)


def call_line(call: Call, width: int) -> Text:
    """The line for a tool call, with the beginning of its arguments."""
    first, *more = call.title.split("\n")
    title = one_line(first, max(width - len(call.name) - 4, 20)) + (f" (+{len(more)} lines)" if more else "")
    return Text.assemble(("● ", "yellow"), (call.name, "bold"), f" {title}" if title else "")


def output_line(line: str, name: str = "") -> Text:
    """A line of a program's output."""
    return Text(f"  {name}│ {shown(line)}", style="dim", no_wrap=True)


def result_line(call: Call, outcome: str, elapsed: float | None, output: str, width: int) -> Text | None:
    """How a call ended; None if that is not worth a line."""
    how = outcome_in_words(outcome)
    if outcome == "rejected":  # the decision was just printed
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


def question_text(approval: Approval) -> Text:
    """The question for an approval, with the whole preview."""
    text = Text(no_wrap=True).append(f"allow {approval.call.name}?", style="bold yellow")
    lines = [f"\n  {line}" for line in approval.preview.split("\n")]
    if approval.call.name != "write_file" or len(lines) > COLOURED:
        return text.append("".join(lines))
    for line in lines:
        text.append(line, style={"+": "green", "-": "red", "@": "cyan"}.get(line[3:4], ""))
    return text


def tail_of(text: str, width: int, height: int) -> str:
    """The last `height` lines of a text, wrapped to `width` columns."""
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
