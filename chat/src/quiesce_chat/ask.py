"""`quiesce ask "prompt"`: one question to the agent, and its answer.

Only the answer goes to standard output. With `--json` it is one object, even if the run fails or is interrupted. A
call that needs approval is made if a user at a terminal approves it, or with `--yes`; otherwise the model is told
that it was rejected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce_chat.session import Chat
    from quiesce_chat.ui import InputLines, PlainFace


_USAGE = 'Usage: quiesce ask "your question"'


def main(words: Sequence[str]) -> int:
    """Run `quiesce ask` with these arguments and return the exit code."""
    from quiesce.cli.inner import fill_closed_descriptors

    from .arguments import ask_parser

    fill_closed_descriptors()
    # Words after `--` are kept from argparse: with intermixed arguments, it would still find options among them.
    end = words.index("--") if "--" in words else len(words)
    try:
        options = ask_parser().parse_intermixed_args(words[:end])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    options.prompt += words[end + 1 :]
    from .start import run_command

    return run_command("ask", partial(_ask, options))


async def _ask(options: argparse.Namespace) -> int:
    from quiesce import Scope
    from quiesce_chat.session import Chat, describe_error
    from quiesce_chat.ui import PlainFace, standard_input

    from .start import BadUsage, can_ask_user, folder_of, is_interactive, opened_model, opened_store

    folder, lines = folder_of(options), standard_input()
    words, reads_stdin = _prompt_of(options)
    prompt = "\n\n".join([*words, *([await lines.all()] if reads_stdin else [])])
    if not prompt.strip():
        raise BadUsage(f"the prompt is empty. {_USAGE}")
    if not reads_stdin and lines.has_pending():
        print(
            "quiesce ask: standard input is ignored, because a prompt was given; to send both, add a dash: "
            "quiesce ask PROMPT -",
            file=sys.stderr,
        )
    can_ask = can_ask_user() and not reads_stdin
    face = PlainFace(can_ask=can_ask, quiet=options.json, discard_pending=lines.discard_pending)
    opened: Chat | None = None
    is_sent = False
    status = "interrupted"
    try:
        async with (
            opened_store(options, by_default=False) as (store, conversation_id),
            opened_model(options, ask=is_interactive() and can_ask_user(), allow_script=False) as model,
            Chat(
                model[0],
                face,
                folder=folder,
                store=store,
                conversation_id=conversation_id,
                approve_all=options.yes,
            ) as chat,
        ):
            opened = chat

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
                    if can_ask:
                        scope.spawn(_answer_questions, face, lines, name="answers")
                    await chat.wait_idle()
                    scope.cancel("the answer is complete")
                status = chat.conversation.status

            was_read = await face.run_while_read(talk)
            return 1 if not was_read or chat.failures else 0
    except Exception as error:
        status = "error"
        face.errors.append(describe_error(error))
        raise
    finally:
        # Also after an interrupt: the program that reads the JSON should learn how far the run got.
        if options.json:
            error_message = face.errors[-1] if face.errors else None
            fields = _EMPTY if opened is None else _as_json(opened, is_sent)
            _print_json({**fields, "status": status, "error": error_message})


def _prompt_of(options: argparse.Namespace) -> tuple[list[str], bool]:
    """The prompt as a list of at most one text, and whether standard input comes after it."""
    from .start import BadUsage

    words = list[str](options.prompt)
    if (
        not words
        and options.resume is not None
        and (options.resume == "-" or len(options.resume.split()) > 1)
    ):
        # `--resume` takes an optional id, and argparse gave it the prompt. No id is a dash or contains a space.
        words, options.resume = [options.resume], ""
    reads_stdin = words[-1:] == ["-"]
    if not words:
        raise BadUsage(
            f"no prompt given. {_USAGE}" + (f" --resume {options.resume}" if options.resume else "")
        )
    if len(words) > 1 + reads_stdin:
        raise BadUsage(f"more than one prompt given: {words[1]!r} comes after {words[0]!r}; use quotes")
    return words[:-1] if reads_stdin else words, reads_stdin


async def _answer_questions(face: PlainFace, lines: InputLines) -> None:
    """Answer questions from standard input, which is read only while there is one."""
    # At any other time, what is typed may be meant for another program: `quiesce ask ... &` shares its terminal.
    while True:
        await face.wait_for_question()
        line = await lines.line()
        if line is None:
            face.stop_asking()
            return
        face.answer(line)


#: The object of `--json` if the run never started.
_EMPTY: dict[str, object] = {
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
    # If the prompt was not sent, earlier items of a resumed conversation answer another question.
    items = conversation.items if is_sent else []
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
    answers = [item.text for item in items[last:] if isinstance(item, AssistantMessage)]
    usage = conversation.usage
    return {
        **_EMPTY,
        "answer": answers[-1] if answers else None,
        "model": chat.model_name,
        "tools": tools,
        "usage": {
            "requests": usage.requests,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
        },
        "conversation": conversation.id,
    }


def _print_json(value: object) -> None:
    """Print a value as JSON. If standard output cannot encode it (a lone surrogate, say), it is escaped to ASCII."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    print(text, flush=True)
