"""The options of `quiesce chat` and `quiesce ask`."""

from __future__ import annotations

import argparse

from quiesce.cli.base import Parser

_SAFETY = """\
Nothing is sandboxed: shell commands and Python run as you, with all your
rights, wherever they like. You are asked before each one, and before each
write: look at what you allow. The file tools themselves stay in the folder."""

_CHAT_EXAMPLES = """\
examples:
  quiesce chat                                 in this folder; Esc interrupts what it does
  quiesce chat --folder ~/src/app --model openai:gpt-5
  quiesce chat --resume                        go on with the last conversation
  quiesce chat --list                          which conversations are kept
  quiesce chat < prompts.txt                   one a line; answers in plain text

exit codes: 0 well, 1 something failed, 2 bad usage, 130 interrupted"""

_ASK_EXAMPLES = """\
examples:
  quiesce ask "What does this project do?"
  git diff | quiesce ask "Is that sound?" -    and then what comes from standard input
  quiesce ask - --json < prompt.txt            all of it comes from there
  quiesce ask --yes "Run the tests, and say what fails."

exit codes: 0 well, 1 something failed, 2 bad usage, 130 interrupted"""


def chat_parser() -> argparse.ArgumentParser:
    """Of `quiesce chat`."""
    parser = Parser(
        "chat",
        usage="[options]",
        description=f"An agent with tools that can be interrupted at any moment.\n\n{_SAFETY}",
        epilog=_CHAT_EXAMPLES,
    )
    _add_common(parser)
    parser.add_argument("--list", action="store_true", help="show the conversations that are kept, and end")
    parser.add_argument("--json", action="store_true", help="with --list: for a machine to read")
    return parser


def ask_parser() -> argparse.ArgumentParser:
    """Of `quiesce ask`."""
    parser = Parser(
        "ask",
        usage="PROMPT [-] [options]",
        description=f"Ask the agent one thing, and print its answer.\n\n{_SAFETY}",
        epilog=_ASK_EXAMPLES,
    )
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="*",
        help='what to ask; "-", in its place or after it, is what comes from standard input',
    )
    _add_common(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: answer, status (finished, error, interrupted), error, tools, usage, model, conversation",
    )
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="SPEC",
        help="who answers: openai:NAME, anthropic:NAME, http://HOST/v1#NAME for any server that speaks OpenAI's wire, embedded, scripted "
        "(default: by the key in the environment, else embedded)",
    )
    parser.add_argument(
        "--script", metavar="FILE", help="with --model scripted: the turns that it gives, as JSON"
    )
    parser.add_argument("--folder", metavar="DIR", default=".", help="where the tools work (default: here)")
    parser.add_argument("--yes", action="store_true", help="allow every call without asking")
    parser.add_argument(
        "--fetch",
        action="store_true",
        help="fetch the weights of the embedded model (93 MB) without asking, if it is the one that answers",
    )
    parser.add_argument(
        "--store",
        metavar="FILE",
        help='the SQLite file that keeps conversations; "none" keeps nothing (default: chat: in your data directory; ask: none)',
    )
    parser.add_argument(
        "--resume",
        metavar="ID",
        nargs="?",
        const="",
        help="go on with a conversation, by the beginning of its id; without ID: the last one",
    )
