"""The command `quiesce`. Each subcommand is a module with a `main`, imported only when it is run. The chat is in a
distribution of its own, `quiesce-chat`, which the extra `cli` installs.

Until then, the table below is all that is known about a subcommand, so that `quiesce --help` answers at once. Every
subcommand keeps to this:

- `main(words)` returns the exit code: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
- An error is one line on standard error, `quiesce COMMAND: what is wrong, and what to do`. A missing extra is such an
  error, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

Main: TypeAlias = Callable[[Sequence[str]], int]

INTERRUPTED = 130


class _Subcommand(NamedTuple):
    summary: str
    module: str


_GROUPS: dict[str, dict[str, _Subcommand]] = {
    "see it": {
        "tour": _Subcommand(
            "see how programs and agents leak, live, and the same with quiesce", "quiesce.cli.tour"
        ),
    },
    "stop a program": {
        "stoptest": _Subcommand(
            "stop a program in every way, and show what it leaves", "quiesce.cli.stoptest"
        ),
        "exec": _Subcommand("run any program so that all of its processes end with it", "quiesce.cli.exec"),
    },
    "talk to an agent": {
        "chat": _Subcommand("an agent with tools that you can stop at any moment", "quiesce_chat.chat"),
        "ask": _Subcommand("ask it one question and print the answer", "quiesce_chat.ask"),
    },
    "work with your own": {
        "audit": _Subcommand(
            "cancel any async code at every point, and show what is left", "quiesce.audit.command.command"
        ),
        "acp": _Subcommand("serve an agent to editors, over the Agent Client Protocol", "quiesce.cli.acp"),
    },
}
_SUBCOMMANDS = {name: subcommand for group in _GROUPS.values() for name, subcommand in group.items()}

_EXAMPLES = """\
examples:
  quiesce tour                           half a minute, nothing to download
  quiesce stoptest -- python my_app.py   unchanged, and under quiesce exec
  quiesce exec -- npm run dev            nothing of it outlives it
  quiesce chat                           Esc stops what is running
  quiesce ask "What is in this folder?"
  quiesce audit my_package.jobs:nightly
  quiesce acp my_agents:coder

For more about a command: quiesce COMMAND --help"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `quiesce` with these arguments, or with those of the process, and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and (found := _SUBCOMMANDS.get(words[0])) is not None:
        return _run(words[0], found, words[1:])
    return _without_subcommand(words)


def _run(name: str, subcommand: _Subcommand, words: list[str]) -> int:
    from importlib import import_module

    from quiesce._extras import MissingExtra, require

    try:
        require(subcommand.module.partition(".")[0], "cli", "this command")
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
        description=f"Stop any agent, and know what is left.\n\n{_command_list()}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"quiesce {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    try:
        parsed, _ = parser.parse_known_args(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    if parsed.command is None:
        if words:
            _print_error(
                f"there is no option {words[0]!r} without a command", "quiesce --help lists the options"
            )
        else:
            parser.print_help()
        return 2
    from difflib import get_close_matches

    close = get_close_matches(parsed.command, _SUBCOMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(_SUBCOMMANDS)}"
    _print_error(f"there is no command {parsed.command!r}; {hint}", "quiesce --help says what each does")
    return 2


def _command_list() -> str:
    lines: list[str] = []
    for title, group in _GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<10} {subcommand.summary}" for name, subcommand in group.items())]
    return "\n".join(lines)


def _print_error(problem: str, hint: str) -> None:
    _say(f"quiesce: error: {problem}\n({hint})")


def _say(text: str) -> None:
    # Imported here, because `quiesce --help` should not wait for it.
    from quiesce.cli.base import say

    say(text)
