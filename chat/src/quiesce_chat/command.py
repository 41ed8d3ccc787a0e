"""What `quiesce chat` does: it lists the stored conversations, or opens a chat with the face that fits."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeAlias

from quiesce import shielded
from quiesce.agents import Store
from quiesce.cli.inner import detect_terminal
from quiesce.inner import exact
from quiesce.models import Model
from quiesce_chat.models import note, resolve
from quiesce_chat.session import (
    Chat,
    Face,
    InputHandler,
    history,
    is_command,
    list_conversations,
    open_store,
    store_option,
)
from quiesce_chat.ui import InputLines, PlainFace, standard_input

from .start import BadUsage, can_ask_user, close_model, folder_of, is_interactive, opened_model, opened_store

MakeChat: TypeAlias = Callable[[Face], Chat]

UNSAFE = (
    "Nothing is sandboxed: tools run as you. "
    "You are asked before each shell command, each piece of Python and each write."
)
UNSAFE_AND_UNASKED = "Nothing is sandboxed: tools run as you, and --yes approves every call without asking."


async def chat(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if options.list:
        return await _list(options)
    if options.json:
        raise BadUsage("--json needs --list; for an answer as JSON use `quiesce ask --json`")
    folder = folder_of(options)
    at_terminal = is_interactive() and os.environ.get("TERM", "dumb") != "dumb"
    talk = _at_terminal if at_terminal else _in_plain_lines
    async with (
        opened_store(options, by_default=True) as (store, conversation_id),
        opened_model(
            options, ask=is_interactive() and can_ask_user(), allow_script=at_terminal or can_ask_user()
        ) as model,
    ):

        def make(face: Face) -> Chat:
            return Chat(
                model[0],
                face,
                folder=folder,
                store=store,
                conversation_id=conversation_id,
                approve_all=options.yes,
                resumed_by=f"quiesce chat{store_option(options.store)} --resume",
            )

        return await talk(options, make, model, store)


async def _at_terminal(options: argparse.Namespace, make: MakeChat, model: list[Model], store: Store) -> int:
    from quiesce_chat.ui import TerminalFace

    face = TerminalFace()
    async with make(face) as session:
        handler = make_handler(session, model, store)
        await face.run(handler, banner(session, resumed=options.resume is not None))
    if options.store != "none" and session.conversation.items:
        print(
            f"Saved as {session.conversation.id}. To continue: quiesce chat{store_option(options.store)} --resume"
        )
    return 0


def make_handler(session: Chat, model: list[Model], store: Store) -> InputHandler:
    """The input handler of a chat; `model` holds the model that is closed at the end."""

    async def replace_model(previous: Model) -> None:
        # Hand over the new model before closing the previous one: if this is cancelled, each is still closed once.
        model[0] = session.model
        await shielded(close_model, previous)

    return InputHandler(session, resolve, replace_model, store)


def banner(session: Chat, *, resumed: bool) -> str:
    """The first lines of a chat: which model answers, in which folder, and what to know before typing."""
    lines = [
        f"{session.model_name} answers · {exact(_short(session.folder))}",
        UNSAFE_AND_UNASKED if session.approve_all else UNSAFE,
    ]
    if (text := note(session.model)) is not None:
        lines.insert(1, exact(text))
    if resumed:
        lines += ["", history(session.conversation.items[-6:], detect_terminal().width), ""]
        if session.conversation.status != "finished":
            lines.append(
                "The last answer was not finished. Type /resume to continue, or send another message."
            )
    return "\n".join(lines)


def _short(folder: Path) -> str:
    """The folder's path, with ~ for the home directory."""
    try:
        home = Path.home()
    except RuntimeError:  # the home directory is unknown
        return str(folder)
    if folder == home:
        return "~"
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


async def _list(options: argparse.Namespace) -> int:
    if options.store == "none":
        raise BadUsage("--list needs a store, but --store none stores nothing")
    store = open_store(options.store)
    try:
        saved = await list_conversations(store)
    finally:
        await store.close()
    if options.json:
        print(json.dumps([one.as_json() for one in saved], indent=2))
    elif not saved:
        print("no conversation is stored yet", file=sys.stderr)
    else:
        terminal = detect_terminal()
        width = terminal.width if terminal.is_terminal else 10_000
        print("\n".join(terminal.writable(one.line(width)) for one in saved))
    return 0


# Plain lines


async def _in_plain_lines(
    options: argparse.Namespace, make: MakeChat, model: list[Model], store: Store
) -> int:
    can_ask, lines = can_ask_user(), standard_input()
    face = PlainFace(can_ask=can_ask, discard_pending=lines.discard_pending)
    async with make(face) as session:
        handler = make_handler(session, model, store)

        async def talk() -> None:
            if can_ask:
                face.say(banner(session, resumed=options.resume is not None))
                face.prompt = lambda: "" if session.activity is not None else f"{session.model_name} › "
                face.refresh()
            with _ctrl_c(handler) if can_ask else nullcontext():
                await take_lines(handler, face, lines, one_at_a_time=not can_ask)
            await session.wait_idle()

        return 1 if not await face.run_while_read(talk) or session.failures else 0


async def take_lines(
    handler: InputHandler, face: PlainFace, lines: InputLines, *, one_at_a_time: bool
) -> None:
    """Take each line as a prompt, or as the answer to a question.

    With `one_at_a_time`, the next line is read when the chat is idle again.
    """
    while not handler.is_quitting and (line := await lines.line()) is not None:
        if face.is_too_early(line):
            face.say("Not taken as an answer: it was typed before the question could be read.")
            continue
        if face.is_asking and not is_command(line):
            if line.strip() and not face.is_answer(line):
                # Anything but an answer means no, and is the next message. It is queued before the question is
                # answered, so that the model sees it together with the rejection.
                await handler.handle(line)
            face.answer(line)
            continue
        await handler.handle(line)
        if one_at_a_time:
            await handler.chat.wait_idle()
        elif is_command(line) or not line.strip():
            face.refresh()
    face.stop_asking()


@contextmanager
def _ctrl_c(handler: InputHandler) -> Iterator[None]:
    """At a line-based terminal, let Ctrl-C stop what is running, or exit if nothing is."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    is_exiting = False

    def pressed() -> None:
        nonlocal is_exiting
        if not handler.chat.interrupt() and not is_exiting:
            is_exiting = True
            main.cancel("Ctrl-C")

    # A signal handler interrupts arbitrary code of the loop, so it only schedules the work. `call_soon` would not
    # do: it does not wake a loop that is waiting for I/O.
    before = signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(pressed))
    try:
        yield
    except asyncio.CancelledError:
        # Swallow our own cancel, unless the task was cancelled by another caller as well.
        if not is_exiting or main.uncancel():
            raise
    finally:
        signal.signal(signal.SIGINT, before)
