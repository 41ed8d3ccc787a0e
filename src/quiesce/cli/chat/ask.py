"""`quiesce ask "prompt"`: one question to the agent, and its answer.

The answer goes to standard output and nothing else does. With `--json` that is one object, also if it fails or is interrupted. A call that needs approval is made if somebody at a terminal
allows it, or with `--yes`; else the model is told that it was not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.cli.chat.session import Chat
    from quiesce.cli.chat.ui import InputLines, PlainFace


def main(words: Sequence[str]) -> int:
    """Run `quiesce ask` with these arguments; the exit code."""
    from quiesce.cli.base import fill_closed_descriptors

    from .arguments import ask_parser

    fill_closed_descriptors()
    end = words.index("--") if "--" in words else len(words)
    try:
        given = ask_parser().parse_intermixed_args(words[:end])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    given.prompt += words[end + 1 :]  # argparse itself would still find options among these
    from quiesce._extras import require

    require("msgspec", "cli", "quiesce ask")
    from .start import run_command

    return run_command("ask", partial(_ask, given))


async def _ask(given: argparse.Namespace) -> int:
    from quiesce import Scope
    from quiesce.cli.base import is_interactive, print_json
    from quiesce.cli.chat.session import Chat, explained
    from quiesce.cli.chat.ui import PlainFace, standard_input

    from .start import BadUsage, can_be_asked, folder_of, opened_model, opened_store

    folder, lines = folder_of(given), standard_input()
    words, reads = _prompt_of(given)
    prompt = "\n\n".join([*words, *([await lines.all()] if reads else [])])
    if not prompt.strip():
        raise BadUsage("the prompt is empty: say what to ask")
    if not reads and lines.has_some():
        print(
            "quiesce ask: standard input is not read, for a prompt was given; to send both, add a dash: quiesce ask PROMPT -",
            file=sys.stderr,
        )
    person = can_be_asked() and not reads
    face = PlainFace(asks=person, quiet=given.json, forget=lines.forget)
    begun: Chat | None = None
    is_sent = False
    status = "interrupted"
    try:
        async with (
            opened_store(given, keeps=False) as (store, conversation_id),
            opened_model(given, ask=is_interactive() and can_be_asked(), script_will_do=False) as model,
            Chat(
                model[0],
                face,
                folder=folder,
                store=store,
                conversation_id=conversation_id,
                approve_all=given.yes,
            ) as chat,
        ):
            begun = chat

            async def talk() -> None:
                nonlocal is_sent, status
                try:
                    await chat.say(prompt.strip("\n"))
                    is_sent = True
                except Exception as error:
                    chat.fail(error)
                    status = "error"
                    return
                async with Scope("answers") as scope:
                    if person:
                        scope.spawn(_answer_questions, face, lines, name="answers")
                    await chat.idle()
                    scope.cancel("the answer is there")
                status = chat.conversation.status

            is_read = await face.while_read(talk)
            return 1 if not is_read or chat.failures else 0
    except Exception as error:
        status = "error"
        face.complaints.append(explained(error))
        raise
    finally:  # also of an interrupt: the machine that reads it is to know how far it came
        if given.json:
            complaint = face.complaints[-1] if face.complaints else None
            told = _NOTHING if begun is None else _as_json(begun, is_sent)
            print_json({**told, "status": status, "error": complaint})


def _prompt_of(given: argparse.Namespace) -> tuple[list[str], bool]:
    """The words to ask, and whether those of standard input come after them."""
    from .start import BadUsage

    words = list[str](given.prompt)
    if not words and given.resume is not None and (given.resume == "-" or len(given.resume.split()) > 1):
        words, given.resume = [given.resume], ""  # no id has blanks in it: that was the prompt
    reads = words[-1:] == ["-"]
    if not words:
        raise BadUsage(
            "there is no prompt: say what to ask"
            + (f", and then --resume {given.resume}" if given.resume else "")
        )
    if len(words) > 1 + reads:
        raise BadUsage(f"there is more than one prompt: {words[1]!r} comes after {words[0]!r}; use quotes")
    return words[:-1] if reads else words, reads


async def _answer_questions(face: PlainFace, lines: InputLines) -> None:
    """Standard input is read while there is a question, and at no other time: it may belong to somebody else."""
    while True:
        await face.asks_something()
        line = await lines.line()
        if line is None:
            face.give_up()
            return
        face.answer(line)


_NOTHING: dict[str, object] = {
    "answer": None,
    "status": None,
    "error": None,
    "model": None,
    "tools": [],
    "usage": {"requests": 0, "input_tokens": 0, "output_tokens": 0},
    "conversation": None,
}


def _as_json(chat: Chat, is_sent: bool) -> dict[str, object]:
    from quiesce.models import AssistantMessage, ToolCall, ToolResult, UserMessage

    conversation = chat.conversation
    items = conversation.items if is_sent else []  # what was said before answers something else
    last = max((place for place, item in enumerate(items) if isinstance(item, UserMessage)), default=0)
    calls = {item.call_id: item for item in items[last:] if isinstance(item, ToolCall)}
    tools = [
        {
            "name": calls[item.call_id].name,
            "arguments": calls[item.call_id].arguments,
            "outcome": item.outcome,
            "output": item.output,
        }
        for item in items[last:]
        if isinstance(item, ToolResult) and item.call_id in calls
    ]
    said = [item.text for item in items[last:] if isinstance(item, AssistantMessage)]
    usage = conversation.usage
    return {
        **_NOTHING,
        "answer": said[-1] if said else None,
        "model": chat.model_name,
        "tools": tools,
        "usage": {
            "requests": usage.requests,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
        },
        "conversation": conversation.id,
    }
