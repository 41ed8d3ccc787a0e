"""What can be typed besides messages: `/commands`, and `!command` for the user's own shell."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from difflib import get_close_matches
from textwrap import wrap
from typing import TYPE_CHECKING

from quiesce import tree
from quiesce._safe.text import exact, shown
from quiesce.cli.models import note
from quiesce.models import Model

from .session import Chat
from .wording import history

if TYPE_CHECKING:
    from quiesce.agents import Store

Resolve = Callable[[str], Awaitable[Model]]
_LONG_PATH = re.compile(r"[^\s:]*/([^\s/:]+/[^\s/:]+\.py:\d+ in )")  # its last folder will do
_COMMAND = re.compile(r"/[^\s/*]+(?: [^\n]*)?")  # not a path, not a comment, not several lines
_LONG_NAME = re.compile(
    r"(\.py:\d+ in )(?:[^\s.]+\.)*([^\s.]+)$", re.MULTILINE
)  # and so will the function's own name


def is_command(text: str) -> bool:
    """Whether that is a `/command`, and no message."""
    return _COMMAND.fullmatch(text.strip()) is not None


@dataclass(slots=True)
class Desk:
    """A chat, and what its commands need besides."""

    chat: Chat
    resolve: Resolve
    let_go: Callable[[Model], Awaitable[None]]
    store: Store | None = None
    leaving: bool = False
    width: int = 80

    async def take(self, text: str) -> None:
        """What the user has sent: a command of the chat, of the shell, or a message. What fails of it is told."""
        try:
            await self._take(text)
        except Exception as error:
            self.chat.fail(error)

    async def _take(self, text: str) -> None:
        stripped = text.strip()
        if not stripped:
            if self.chat.activity is None and self.chat.has_kept_messages:
                self.chat.resume()
        elif is_command(stripped):
            await self._obey(stripped)
        elif stripped.startswith("!"):
            command = stripped[1:].strip()
            if command:
                self.chat.start_command(command)
            else:
                self.chat.face.say("!command runs a command: !git status")
        else:
            await self.chat.say(text.strip("\n"))

    async def _obey(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            close = get_close_matches(name, COMMANDS)
            hint = f"did you mean /{close[0]}?" if close else "/help lists what there is"
            self.chat.failures += 1
            self.chat.face.complain(f"there is no /{exact(name)}; {hint}")
            return
        await command.do(self, rest.strip())


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the chat."""

    says: str
    do: Callable[[Desk, str], Awaitable[None]]
    takes: str = ""


async def _help(desk: Desk, rest: str) -> None:
    rows = [(f"/{name} {command.takes}".rstrip(), command.says) for name, command in COMMANDS.items()]
    rows += [
        (
            "!command",
            "run a command of your own in the folder; nobody is asked, and the model does not see it",
        ),
        ("Esc, Ctrl-C", "stop what runs; again: faster; a third time: at once"),
        ("Ctrl-C", "with nothing running: clear the line, or leave if it is empty"),
        ("Enter", "send; Alt-Enter or Ctrl-J begins a new line"),
    ]
    width = max(desk.width - 17, 30)
    desk.chat.face.say(
        "\n".join(
            line
            for left, right in rows
            for line in wrap(right, width + 16, initial_indent=f"{left:<15} ", subsequent_indent=" " * 16)
        )
    )


async def _pause(desk: Desk, rest: str) -> None:
    desk.chat.pause()


async def _resume(desk: Desk, rest: str) -> None:
    desk.chat.resume()


async def _tree(desk: Desk, rest: str) -> None:
    lines = _LONG_NAME.sub(r"\1\2", _LONG_PATH.sub(r"\1", shown(str(tree())))).splitlines()
    desk.chat.face.say(
        "\n".join(line if len(line) <= desk.width else f"{line[: desk.width - 1]}…" for line in lines)
    )


async def _history(desk: Desk, rest: str) -> None:
    desk.chat.face.say(history(desk.chat.conversation.items, desk.width))


async def _model(desk: Desk, rest: str) -> None:
    chat = desk.chat
    if not rest:
        usage = chat.conversation.usage
        spent = (
            f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
            if usage.total_tokens
            else "no tokens counted"
        )
        chat.face.say(
            f"{chat.model_name} answers ({usage.requests} requests, {spent}); /model SPEC changes that"
        )
        return

    async def look() -> None:
        before, model = chat.model, await desk.resolve(rest)
        chat.use_model(model)
        if before is not model:
            await desk.let_go(before)
        chat.face.say(f"{chat.model_name} answers from now on")
        if (known := note(model)) is not None:
            chat.face.say(exact(known))

    chat.start_looking(rest, look)


async def _share(desk: Desk, rest: str) -> None:
    chat = desk.chat
    if not chat.last_output:
        chat.face.say("nothing to share yet: run a command first, with !command")
        return
    output, chat.last_output = chat.last_output, ""
    await chat.say(f"{output}\n\n{rest}".strip())


async def _quit(desk: Desk, rest: str) -> None:
    desk.leaving = True


COMMANDS: dict[str, Command] = {
    "help": Command("this list", _help),
    "pause": Command("let the agent stop after its current step", _pause),
    "resume": Command("go on with what was paused or stopped", _resume),
    "tree": Command(
        "what runs now: scopes, tasks, threads and processes, how old, and where each waits", _tree
    ),
    "history": Command("what was said and done so far", _history),
    "model": Command("which model answers; with SPEC, another one from now on", _model, "[SPEC]"),
    "share": Command("send what your last !command has printed, with a word of yours", _share, "[TEXT]"),
    "quit": Command("leave; the conversation is kept", _quit),
}
