"""How a chat shows itself: the interface of the terminal face and the plain face. The session knows only this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

Decision: TypeAlias = Literal["yes", "no", "always"]

ANSWERS: Final[dict[str, Decision]] = {
    "y": "yes",
    "yes": "yes",
    "n": "no",
    "no": "no",
    "a": "always",
    "always": "always",
}
"""The answers a user can type. Anything else means no, and becomes the next message: what to do instead."""

READING_TIME: Final = 0.5
"""Seconds that a user needs to read something. Input typed before that is not taken as an answer to it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, or a shell command of the user, as it is shown."""

    call_id: str
    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that the user must approve first; `preview` shows everything that it would do."""

    call: Call
    preview: str


class Face(Protocol):
    """All methods are called in the event loop, and return at once; only `ask` waits."""

    def text(self, piece: str) -> None:
        """Show the next piece of the model's answer."""
        ...

    def text_done(self, *, cut: bool) -> None:
        """The answer, or this part of it, is complete; with `cut`, it was interrupted."""
        ...

    def called(self, call: Call) -> None:
        """The model has called a tool."""
        ...

    def program_output(self, call_id: str, text: str) -> None:
        """Show a piece of the output of a program that a call has started."""
        ...

    def returned(self, call: Call, outcome: str, elapsed: float | None, output: str) -> None:
        """A tool call, or a command of the user, has returned."""
        ...

    def stopped(self, line: str, *, clean: bool) -> None:
        """Show the line that says what was stopped and what is left; with `clean`, nothing is."""
        ...

    def say(self, text: str) -> None:
        """Show a message of the chat itself."""
        ...

    def show_error(self, text: str) -> None:
        """Show what went wrong."""
        ...

    def refresh(self) -> None:
        """Update whatever depends on what is running."""
        ...

    async def ask(self, approval: Approval) -> Decision:
        """Let the user decide. Cancelled if the run is stopped before there is an answer."""
        ...
