"""How a subcommand parses its arguments: `--help` with examples and exit codes, and one line per error.

Options cannot be abbreviated. Otherwise a new option could make an abbreviation in somebody's script ambiguous.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """The argument parser of `quiesce NAME`."""

    def __init__(self, name: str, *, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=f"quiesce {name}",
            usage=f"quiesce {name} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print what is wrong in one line, instead of the whole usage, and exit with status 2."""
        from quiesce._safe.printed import printed_line  # not for a command that starts

        self.exit(2, f"{self.prog}: error: {printed_line(message)}\n({self.prog} --help lists the options)\n")


def one_of(what: str, known: Sequence[str]) -> Callable[[str], str]:
    """An argument type that accepts one of these names, and suggests the closest one for any other."""

    def read(text: str) -> str:
        if text not in known:
            from difflib import get_close_matches

            close = get_close_matches(text, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
            raise argparse.ArgumentTypeError(f"there is no {what} {text!r}; {hint}")
        return text

    return read


def split_command(words: Sequence[str], take_values: Collection[str]) -> tuple[list[str], list[str]]:
    """Split `[options] -- COMMAND ...` into the options and the command. The `--` may be left out.

    `take_values` are the options that are followed by a value.
    """
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-", "--"):
        place += 2 if words[place] in take_values else 1
    command = list(words[place:])
    return list(words[:place]), command[1:] if command[:1] == ["--"] else command
