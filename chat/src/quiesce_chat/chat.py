"""`quiesce chat`: an agent with tools at a terminal, which can be interrupted at any moment.

`session` is the chat itself, without a terminal; `ui.terminal_face` and `ui.plain_face` are its two faces. Importing
this module imports none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial


def main(words: Sequence[str]) -> int:
    """Run `quiesce chat` with these arguments and return the exit code."""
    from quiesce.cli.inner import fill_closed_descriptors

    from .arguments import chat_parser

    fill_closed_descriptors()
    try:
        options = chat_parser().parse_args(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    from .command import chat
    from .start import run_command

    return run_command("chat", partial(chat, options))
