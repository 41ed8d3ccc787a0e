"""What `quiesce chat` does: it lists what is kept, or opens the chat with the face that fits."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from quiesce import shielded
from quiesce._safe.text import exact
from quiesce.agents import Store
from quiesce.cli.base import is_interactive, look_at
from quiesce.cli.chat.session import Chat, Desk, Face, history, is_command, kept_in, open_store, store_option
from quiesce.cli.chat.ui import InputLines, PlainFace, standard_input
from quiesce.cli.models import note, resolve
from quiesce.models import Model

from .start import BadUsage, can_be_asked, folder_of, let_go, opened_model, opened_store

Make: TypeAlias = Callable[[Face], Chat]

UNSAFE = "Nothing is sandboxed: tools run as you. You are asked before each shell command, each piece of Python and each write."
UNSAFE_AND_UNASKED = "Nothing is sandboxed: tools run as you, and --yes allows every one of them unasked."


async def chat(given: argparse.Namespace) -> int:
    """The command; its exit code."""
    if given.list:
        return await _list(given)
    if given.json:
        raise BadUsage("--json goes with --list; for an answer as JSON there is `quiesce ask --json`")
    folder = folder_of(given)
    at_terminal = is_interactive() and os.environ.get("TERM", "dumb") != "dumb"
    if at_terminal:
        from quiesce._extras import require

        require("prompt_toolkit", "cli", "quiesce chat at a terminal")
        require("rich", "cli", "quiesce chat at a terminal")
    talk = _at_terminal if at_terminal else _plainly
    async with (
        opened_store(given, keeps=True) as (store, conversation_id),
        opened_model(
            given, ask=is_interactive() and can_be_asked(), script_will_do=at_terminal or can_be_asked()
        ) as model,
    ):

        def make(face: Face) -> Chat:
            return Chat(
                model[0],
                face,
                folder=folder,
                store=store,
                conversation_id=conversation_id,
                approve_all=given.yes,
                resumed_by=f"quiesce chat{store_option(given.store)} --resume",
            )

        return await talk(given, make, model, store)


async def _at_terminal(given: argparse.Namespace, make: Make, model: list[Model], store: Store) -> int:
    from quiesce.cli.chat.ui import TerminalFace

    face = TerminalFace()
    async with make(face) as session:
        desk = make_desk(session, model, store)
        await face.run(desk, banner(session, resumed=given.resume is not None))
    if given.store != "none" and session.conversation.items:
        print(
            f"Kept as {session.conversation.id}: quiesce chat{store_option(given.store)} --resume goes on with it."
        )
    return 0


def make_desk(session: Chat, model: list[Model], store: Store) -> Desk:
    """The chat with what its commands need; `model` holds the one that is let go of at the end."""

    async def let_go_of(before: Model) -> None:
        model[0] = session.model
        await shielded(let_go, before)

    return Desk(session, resolve, let_go_of, store)


def banner(session: Chat, *, resumed: bool) -> str:
    """Who answers, where, and what to know before anything is typed."""
    lines = [
        f"{session.model_name} answers · {exact(_short(session.folder))}",
        UNSAFE_AND_UNASKED if session.approve_all else UNSAFE,
    ]
    if (known := note(session.model)) is not None:
        lines.insert(1, exact(known))
    if resumed:
        lines += ["", history(session.conversation.items[-6:], look_at().width), ""]
        if session.conversation.status != "finished":
            lines.append("It was not finished: /resume goes on, or say something else.")
    return "\n".join(lines)


def _short(folder: Path) -> str:
    """With ~ for the user's own."""
    try:
        home = Path.home()
    except RuntimeError:  # nobody knows it
        return str(folder)
    if folder == home:
        return "~"
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


async def _list(given: argparse.Namespace) -> int:
    if given.store == "none":
        raise BadUsage("--list needs a store, and --store none keeps nothing")
    store = open_store(given.store)
    try:
        kept = await kept_in(store)
    finally:
        await store.close()
    if given.json:
        print(json.dumps([one.as_json() for one in kept], indent=2))
    elif not kept:
        print("no conversation is kept yet", file=sys.stderr)
    else:
        terminal = look_at()
        width = terminal.width if terminal.is_terminal else 10_000
        print("\n".join(terminal.writable(one.line(width)) for one in kept))
    return 0


# Plain lines


async def _plainly(given: argparse.Namespace, make: Make, model: list[Model], store: Store) -> int:
    person, lines = can_be_asked(), standard_input()
    face = PlainFace(asks=person, forget=lines.forget)
    async with make(face) as session:
        desk = make_desk(session, model, store)

        async def talk() -> None:
            if person:
                face.say(banner(session, resumed=given.resume is not None))
                face.prompt = lambda: "" if session.activity is not None else f"{session.model_name} › "
                face.changed()
            with _ctrl_c(desk) if person else _as_it_is():
                await take_lines(desk, face, lines, one_at_a_time=not person)
            await session.idle()

        return 1 if not await face.while_read(talk) or session.failures else 0


async def take_lines(desk: Desk, face: PlainFace, lines: InputLines, *, one_at_a_time: bool) -> None:
    """Each line is a prompt, or the answer to a question; with `one_at_a_time` the next is read when all is done."""
    while not desk.leaving and (line := await lines.line()) is not None:
        if face.is_too_early(line):
            face.say("not taken as an answer: it came before anybody could have read the question")
            continue
        if face.is_asking and not is_command(line):
            if line.strip() and not face.is_answer(line):
                await desk.take(line)  # whoever says something else than an answer, wants something else
            face.answer(line)
            continue
        await desk.take(line)
        if one_at_a_time:
            await desk.chat.idle()
        elif is_command(line) or not line.strip():
            face.changed()
    face.give_up()


@contextmanager
def _ctrl_c(desk: Desk) -> Iterator[None]:
    """At a terminal that does lines alone: Ctrl-C stops what runs, and leaves if nothing does."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    left = False

    def pressed() -> None:
        nonlocal left
        if not desk.chat.interrupt() and not left:
            left = True
            main.cancel("Ctrl-C")

    before = signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(pressed))
    try:
        yield
    except asyncio.CancelledError:
        if not left or main.uncancel():
            raise
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
