"""What a stream can show: whether it is a terminal, with or without colours, how wide, and in which characters.

Every command uses the same rules. Colour is for terminals, unless NO_COLOR is set or TERM is dumb. The width is
COLUMNS if that is set, else the width of the terminal. `rich` is used if it is installed, but it is not required.
"""

from __future__ import annotations

import io
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

#: The width where it is unknown.
WIDTH: Final = 80
#: Layouts are never narrower than this. On a narrower terminal, lines wrap.
_NARROWEST: Final = 20
_DRAWING_CHARACTERS: Final = "●○─━╌◇■✗▶│▲·…✓"


@dataclass(frozen=True, slots=True)
class Terminal:
    """An output stream, and what it can show."""

    stream: TextIO
    is_terminal: bool
    color: bool
    width: int
    unicode: bool

    def console(self) -> Console | None:
        """A rich console that writes to this stream; None if rich is not installed."""
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
        """The text with every character that the stream cannot encode replaced."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)


def detect_terminal(
    stream: TextIO | None = None,
    *,
    color: ColorChoice = "auto",
    environment: Mapping[str, str] | None = None,
) -> Terminal:
    """Find out what a stream can show; standard output if None. A closed stream is replaced by one in memory."""
    environment = os.environ if environment is None else environment
    stream = stream if stream is not None else sys.stdout
    # `sys.stdout` is None if the program was started without standard output.
    if stream is None or stream.closed:
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


def _width(stream: TextIO, is_terminal: bool, environment: Mapping[str, str]) -> int:
    columns = environment.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return max(int(columns), _NARROWEST)
    if is_terminal:
        try:
            # Some pseudo-terminals, in containers and CI, report a width of 0.
            return max(os.get_terminal_size(stream.fileno()).columns or WIDTH, _NARROWEST)
        except (OSError, ValueError):
            pass
    return WIDTH


def _can_encode(stream: TextIO) -> bool:
    try:
        _DRAWING_CHARACTERS.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def say(text: object, *, end: str = "\n") -> None:
    """Print a message of a command to standard error, made safe: parts of it may come from models or files."""
    print(printed(text), end=end, file=sys.stderr, flush=True)


def error_text(error: BaseException) -> str:
    """The message of an error, to be put after a text of ours.

    Every line after the first is indented, so that none of them can pass for a message of the command.
    """
    return str(error).replace("\n", "\n  ")


def fill_closed_descriptors() -> None:
    """Replace missing standard streams of this process by the null device.

    If a program is started without one, the next file that it opens gets the free descriptor, and is taken for a
    standard stream by everything that writes to one, child processes included. And `print(file=None)` writes to
    standard output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # `open` returns the lowest free descriptor, which is `number`: those below it are open by now.
            os.open(os.devnull, os.O_RDWR)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            # It stays open until the process exits, so there is no `with`.
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
