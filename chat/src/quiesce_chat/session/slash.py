"""What the user can type besides messages: `/commands`, and `!command` for a shell command."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from difflib import get_close_matches
from textwrap import wrap
from typing import TYPE_CHECKING

from quiesce import tree
from quiesce.inner import exact, shown
from quiesce.models import Model
from quiesce_chat.models import note

from .session import Chat
from .wording import history

if TYPE_CHECKING:
    from quiesce.agents import Store

Resolve = Callable[[str], Awaitable[Model]]
# A message may begin with a slash, too: a path, a comment (`/* ... */`) and text of several lines are not commands.
_COMMAND = re.compile(r"/[^\s/*]+(?: [^\n]*)?")
# In the tree, a path is shortened to its last folder and file, and a qualified name to the function's own name.
_LONG_PATH = re.compile(r"[^\s:]*/([^\s/:]+/[^\s/:]+\.py:\d+ in )")
_LONG_NAME = re.compile(r"(\.py:\d+ in )(?:[^\s.]+\.)*([^\s.]+)$", re.MULTILINE)


def is_command(text: str) -> bool:
    """Whether the text is a `/command` and not a message."""
    return _COMMAND.fullmatch(text.strip()) is not None


@dataclass(slots=True)
class InputHandler:
    """Takes what the user types: it runs commands, and passes messages on to the chat."""

    chat: Chat
    resolve: Resolve
    close_model: Callable[[Model], Awaitable[None]]
    store: Store | None = None
    is_quitting: bool = False
    width: int = 80

    async def handle(self, text: str) -> None:
        """Handle one input: a command of the chat, a shell command or a message. Failures are shown, never raised."""
        try:
            await self._handle(text)
        except Exception as error:
            self.chat.fail(error)

    async def _handle(self, text: str) -> None:
        stripped = text.strip()
        if not stripped:
            if self.chat.activity is None and self.chat.has_queued_messages:
                self.chat.resume()
        elif is_command(stripped):
            await self._run_command(stripped)
        elif stripped.startswith("!"):
            command = stripped[1:].strip()
            if command:
                self.chat.start_command(command)
            else:
                self.chat.face.say("Type a shell command after the exclamation mark: !git status")
        else:
            await self.chat.say(text.strip("\n"))

    async def _run_command(self, line: str) -> None:
        name, _, argument = line[1:].partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            close = get_close_matches(name, COMMANDS)
            hint = f"did you mean /{close[0]}?" if close else "/help lists the commands"
            self.chat.failures += 1
            self.chat.face.show_error(f"there is no /{exact(name)}; {hint}")
            return
        await command.run(self, argument.strip())


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the chat."""

    summary: str
    run: Callable[[InputHandler, str], Awaitable[None]]
    argument: str = ""


async def _help(handler: InputHandler, argument: str) -> None:
    rows = [(f"/{name} {command.argument}".rstrip(), command.summary) for name, command in COMMANDS.items()]
    rows += [
        (
            "!command",
            "run a shell command yourself, in the folder; no approval is asked and the model does not see it",
        ),
        ("Esc, Ctrl-C", "stop what is running; press again to stop faster, a third time to stop at once"),
        ("Ctrl-C", "when nothing is running: clear the line, or exit if it is empty"),
        ("Enter", "send; Alt-Enter or Ctrl-J inserts a new line"),
    ]
    width = max(handler.width - 17, 30)
    handler.chat.face.say(
        "\n".join(
            line
            for left, right in rows
            for line in wrap(right, width + 16, initial_indent=f"{left:<15} ", subsequent_indent=" " * 16)
        )
    )


async def _pause(handler: InputHandler, argument: str) -> None:
    handler.chat.pause()


async def _resume(handler: InputHandler, argument: str) -> None:
    handler.chat.resume()


async def _tree(handler: InputHandler, argument: str) -> None:
    lines = _LONG_NAME.sub(r"\1\2", _LONG_PATH.sub(r"\1", shown(str(tree())))).splitlines()
    handler.chat.face.say(
        "\n".join(line if len(line) <= handler.width else f"{line[: handler.width - 1]}…" for line in lines)
    )


async def _history(handler: InputHandler, argument: str) -> None:
    handler.chat.face.say(history(handler.chat.conversation.items, handler.width))


async def _model(handler: InputHandler, argument: str) -> None:
    chat = handler.chat
    if not argument:
        usage = chat.conversation.usage
        spent = (
            f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
            if usage.total_tokens
            else "no tokens counted"
        )
        chat.face.say(
            f"{chat.model_name} answers ({usage.requests} requests, {spent}); use /model SPEC to change it"
        )
        return

    async def look() -> None:
        previous, model = chat.model, await handler.resolve(argument)
        chat.use_model(model)
        if previous is not model:
            await handler.close_model(previous)
        chat.face.say(f"{chat.model_name} answers from now on.")
        if (text := note(model)) is not None:
            chat.face.say(exact(text))

    chat.start_model_search(argument, look)


async def _share(handler: InputHandler, argument: str) -> None:
    chat = handler.chat
    if not chat.last_output:
        chat.face.say("Nothing to share yet: run a command with !command first.")
        return
    output, chat.last_output = chat.last_output, ""
    await chat.say(f"{output}\n\n{argument}".strip())


async def _quit(handler: InputHandler, argument: str) -> None:
    handler.is_quitting = True


COMMANDS: dict[str, Command] = {
    "help": Command("show this list", _help),
    "pause": Command("pause the agent after its current step", _pause),
    "resume": Command("continue after a pause or a stop", _resume),
    "tree": Command(
        "show what is running: scopes, tasks, threads and processes, how old they are, and where each waits",
        _tree,
    ),
    "history": Command("show the conversation so far", _history),
    "model": Command("show which model answers; with SPEC, switch to another one", _model, "[SPEC]"),
    "share": Command("send the output of your last !command, with a comment if you like", _share, "[TEXT]"),
    "quit": Command("exit; the conversation is kept", _quit),
}
