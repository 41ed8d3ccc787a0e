"""The options of `quiesce chat` and `quiesce ask`."""

from __future__ import annotations

import argparse

from quiesce.cli.inner import Parser

_SAFETY = """\
Nothing is sandboxed: shell commands and Python run as you, with all your
permissions, anywhere on this machine. You are asked before each one, and
before each write: read what you approve. The file tools stay in the folder."""

_CHAT_EXAMPLES = """\
examples:
  quiesce chat                                 in this folder; Esc stops what is running
  quiesce chat --folder ~/src/app --model openai:gpt-5
  quiesce chat --resume                        continue the last conversation
  quiesce chat --list                          list the stored conversations
  quiesce chat < prompts.txt                   one prompt per line; plain text answers

exit codes: 0 success, 1 something failed, 2 bad usage, 130 interrupted"""

_ASK_EXAMPLES = """\
examples:
  quiesce ask "What does this project do?"
  git diff | quiesce ask "Is that sound?" -    the prompt, then standard input
  quiesce ask - --json < prompt.txt            the whole prompt from standard input
  quiesce ask --yes "Run the tests, and say what fails."

exit codes: 0 success, 1 something failed, 2 bad usage, 130 interrupted"""


def chat_parser() -> argparse.ArgumentParser:
    """The parser of `quiesce chat`."""
    parser = Parser(
        "chat",
        usage="[options]",
        description=f"An agent with tools that can be interrupted at any moment.\n\n{_SAFETY}",
        epilog=_CHAT_EXAMPLES,
    )
    _add_common(parser)
    parser.add_argument("--list", action="store_true", help="list the stored conversations and exit")
    parser.add_argument("--json", action="store_true", help="with --list: print JSON")
    return parser


def ask_parser() -> argparse.ArgumentParser:
    """The parser of `quiesce ask`."""
    parser = Parser(
        "ask",
        usage="PROMPT [-] [options]",
        description=f"Ask the agent one question and print its answer.\n\n{_SAFETY}",
        epilog=_ASK_EXAMPLES,
    )
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="*",
        help='what to ask; "-" stands for standard input, instead of a prompt or after it',
    )
    _add_common(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: answer, status (finished, error, interrupted), error, tools, usage, model, "
        "conversation",
    )
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="SPEC",
        help="the model: openai:NAME, anthropic:NAME, http://HOST/v1#NAME for any server with an OpenAI-compatible "
        "API, embedded, or scripted (default: the provider whose key is set, else embedded)",
    )
    parser.add_argument("--script", metavar="FILE", help="with --model scripted: a JSON file with its turns")
    parser.add_argument(
        "--folder",
        metavar="DIR",
        default=".",
        help="the folder that the tools work in (default: the current one)",
    )
    parser.add_argument("--yes", action="store_true", help="approve every call without asking")
    parser.add_argument(
        "--fetch",
        action="store_true",
        help="download the weights of the embedded model (93 MB) without asking, if it is used",
    )
    parser.add_argument(
        "--store",
        metavar="FILE",
        help='the SQLite file that stores conversations; "none" stores nothing '
        "(default: for chat a file in your data directory, for ask none)",
    )
    parser.add_argument(
        "--resume",
        metavar="ID",
        nargs="?",
        const="",
        help="continue the conversation whose id begins with ID; without ID, the last one",
    )
