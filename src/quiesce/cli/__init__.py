"""The command `quiesce`. Each subcommand lives with what it runs, and is imported when it is asked for.

So that `quiesce --help` answers at once, the table below is all that is known of a subcommand until then. What holds for every one of them:
`main(words)` returns the exit code (0 well, 1 failed, 2 wrong usage, 130 interrupted); what goes wrong is said in one line on standard error,
`quiesce COMMAND: what, and what to do`; a missing extra is such a line too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

Main: TypeAlias = Callable[[Sequence[str]], int]

INTERRUPTED = 130


class _Subcommand(NamedTuple):
    says: str
    module: str  # its `main`


_GROUPS: dict[str, dict[str, _Subcommand]] = {
    "see it": {
        "tour": _Subcommand(
            "five ways in which agents leak, live, and the same with quiesce", "quiesce.cli.tour"
        ),
    },
    "talk to an agent": {
        "chat": _Subcommand("an agent with tools that can be interrupted at any moment", "quiesce.cli.chat"),
        "ask": _Subcommand("ask it one thing, and print the answer", "quiesce.cli.chat.ask"),
    },
    "work with your own": {
        "audit": _Subcommand(
            "cancel any async code at every point, and show what is left", "quiesce.audit.command.command"
        ),
        "acp": _Subcommand("serve an agent to editors, over the Agent Client Protocol", "quiesce.cli.acp"),
    },
}
_SUBCOMMANDS = {name: found for group in _GROUPS.values() for name, found in group.items()}

_EXAMPLES = """\
examples:
  quiesce tour                           under a minute, nothing to download
  quiesce chat                           Esc interrupts what it does
  quiesce ask "What is in this folder?"
  quiesce audit my_package.jobs:nightly
  quiesce acp my_agents:coder

quiesce COMMAND --help says more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `quiesce` with these arguments, those of the process if None; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and (found := _SUBCOMMANDS.get(words[0])) is not None:
        return _run(words[0], found, words[1:])
    return _without_subcommand(words)


def _run(name: str, subcommand: _Subcommand, words: list[str]) -> int:
    from importlib import import_module

    from quiesce._extras import MissingExtra

    try:
        run: Main = import_module(subcommand.module).main
        return run(words)
    except MissingExtra as missing:
        _say(f"quiesce {name}: {missing}")
        return 1
    except KeyboardInterrupt:
        _say(f"quiesce {name}: interrupted")
        return INTERRUPTED


def _without_subcommand(words: list[str]) -> int:
    import argparse

    from quiesce import __version__

    parser = argparse.ArgumentParser(
        prog="quiesce",
        usage="quiesce COMMAND ...",
        description=f"Stop any agent, and know what is left.\n\n{_listed()}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"quiesce {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    try:
        asked, _ = parser.parse_known_args(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    if asked.command is None:
        if words:
            _complain(
                f"there is no option {words[0]!r} without a command", "quiesce --help lists what there is"
            )
        else:
            parser.print_help()
        return 2
    from difflib import get_close_matches

    close = get_close_matches(asked.command, _SUBCOMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(_SUBCOMMANDS)}"
    _complain(f"there is no command {asked.command!r}; {hint}", "quiesce --help says what each does")
    return 2


def _listed() -> str:
    lines: list[str] = []
    for title, group in _GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<10} {subcommand.says}" for name, subcommand in group.items())]
    return "\n".join(lines)


def _complain(problem: str, hint: str) -> None:
    _say(f"quiesce: error: {problem}\n({hint})")


def _say(text: str) -> None:
    from quiesce.cli.base import say

    say(text)
