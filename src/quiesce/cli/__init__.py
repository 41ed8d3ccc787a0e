"""The command `quiesce`. Each subcommand lives with what it runs, and is imported when it is asked for.

So that `quiesce --help` answers at once, this table is all that is known of a subcommand until then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

Subcommand: TypeAlias = Callable[[Sequence[str]], int]


def _audit() -> Subcommand:
    from quiesce.audit._command import main

    return main


def _acp() -> Subcommand:
    from quiesce.cli._acp import main

    return main


_SUBCOMMANDS: dict[str, tuple[str, Callable[[], Subcommand]]] = {
    "acp": ("serve an agent over the Agent Client Protocol", _acp),
    "audit": ("cancel any async code at every point where it can be, and show what is left", _audit),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `quiesce` with these arguments, those of the process if None; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and (found := _SUBCOMMANDS.get(words[0])) is not None:
        _, load = found
        return load()(words[1:])
    return _without_subcommand(words)


def _without_subcommand(words: list[str]) -> int:
    import argparse

    from quiesce import __version__

    commands = "\n".join(f"  {name:<10} {says}" for name, (says, _) in _SUBCOMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="quiesce",
        usage="quiesce COMMAND ...",
        description="Stop any agent, and know what is left.",
        epilog=f"commands:\n{commands}\n\nquiesce COMMAND --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"quiesce {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    try:
        asked, _ = parser.parse_known_args(words)
        if asked.command is None:
            parser.print_help()
            return 2
        from difflib import get_close_matches

        close = get_close_matches(asked.command, _SUBCOMMANDS)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(_SUBCOMMANDS)}"
        parser.error(f"there is no command {asked.command!r}; {hint}")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
