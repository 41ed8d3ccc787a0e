"""What a stream can show: whether somebody watches, in colour or not, how wide, in which letters.

One answer for every command. Colour is for a terminal, unless NO_COLOR is set or TERM is dumb. The width is that of the terminal, or COLUMNS,
which also holds where there is none. `rich` is used if it is there, and nothing needs it.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TextIO, TypeAlias

from quiesce._safe.printed import printed

if TYPE_CHECKING:
    from rich.console import Console

ColorChoice: TypeAlias = Literal["auto", "always", "never"]
COLOR_CHOICES: Final[tuple[ColorChoice, ...]] = ("auto", "always", "never")

WIDTH: Final = 80  # where nobody says how wide it is
_NARROWEST: Final = 20  # below that, lines may run over
_DRAWN_WITH: Final = "●○─━╌◇■✗▶│▲·…✓"


@dataclass(frozen=True, slots=True)
class Terminal:
    """A stream, and what it can show."""

    stream: TextIO
    is_terminal: bool
    color: bool
    width: int
    unicode: bool

    def console(self) -> Console | None:
        """A rich console that writes here; None if rich is not installed."""
        try:
            from rich.console import Console
        except ImportError:
            return None
        return Console(
            file=self.stream,
            force_terminal=self.is_terminal or self.color,
            no_color=not self.color,
            width=self.width,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def writable(self, text: str) -> str:
        """The text, with whatever the stream's encoding does not have replaced."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)


def detect_terminal(
    stream: TextIO | None = None,
    *,
    color: ColorChoice = "auto",
    environment: Mapping[str, str] | None = None,
) -> Terminal:
    """What this stream can show; standard output if None. A stream that is closed shows nothing, and takes everything."""
    environment = os.environ if environment is None else environment
    stream = stream if stream is not None else sys.stdout
    if stream is None or stream.closed:  # the program was started without one
        stream = io.StringIO()
    is_terminal = stream.isatty()
    plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
    return Terminal(
        stream,
        is_terminal,
        color == "always" or (color == "auto" and is_terminal and not plain),
        _width(stream, is_terminal, environment),
        _can_encode(stream),
    )


def is_interactive() -> bool:
    """Whether a person can be asked: both standard input and standard output are terminals."""
    return all(
        stream is not None and not stream.closed and stream.isatty() for stream in (sys.stdin, sys.stdout)
    )


def _width(stream: TextIO, is_terminal: bool, environment: Mapping[str, str]) -> int:
    said = environment.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return max(int(said), _NARROWEST)
    if is_terminal:
        try:
            return max(os.get_terminal_size(stream.fileno()).columns or WIDTH, _NARROWEST)
        except (OSError, ValueError):
            pass
    return WIDTH


def _can_encode(stream: TextIO) -> bool:
    try:
        _DRAWN_WITH.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def say(text: object, *, end: str = "\n") -> None:
    """Print a message of a command to standard error. Parts of it may come from others: it is made safe here."""
    print(printed(text), end=end, file=sys.stderr, flush=True)


def error_text(error: BaseException) -> str:
    """What an error says, to stand behind words of ours. Lines after its first are indented: they do not look like ours."""
    return str(error).replace("\n", "\n  ")


def print_json(told: object) -> None:
    """For a machine, in letters that standard output has: others, and halves of them, are spelled as JSON does."""
    text = json.dumps(told, indent=2, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(told, indent=2)
    print(text, flush=True)


def fill_closed_descriptors() -> None:
    """Give a program that was started without standard input, output or error something harmless in their place.

    What is opened next would be taken for them otherwise, also by its child processes; and what is printed to a stream that is
    None goes to standard output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # to the end
