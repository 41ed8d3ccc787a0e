"""What a chat shows itself by: a terminal, or plain lines. The session knows no more of it than this."""

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
"""What may be typed. Whatever else is typed means no, and is the next message: a word on what to do instead."""

READ_IN: Final = 0.5
"""Seconds from when something is to be seen until somebody may have read it: what is typed before is no answer to it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, or a command of the user's, as a person sees it."""

    call_id: str
    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that somebody must allow first; `preview` is all that it is about."""

    call: Call
    preview: str


class Face(Protocol):
    """All of it is called in the event loop, and returns at once; only `ask` is waited for."""

    def text(self, piece: str) -> None:
        """The next piece of the model's answer."""
        ...

    def text_done(self, *, cut: bool) -> None:
        """The answer, or this part of it, is complete; or it was cut there."""
        ...

    def called(self, call: Call) -> None:
        """The model has asked for a tool, or the user for a command."""
        ...

    def heard(self, call_id: str, text: str) -> None:
        """A piece of the output of a program."""
        ...

    def returned(self, call: Call, outcome: str, elapsed: float | None, output: str) -> None:
        """A call has a result."""
        ...

    def stopped(self, line: str, *, clean: bool) -> None:
        """What was stopped, how long it took, and what is left: nothing, if `clean`."""
        ...

    def say(self, text: str) -> None:
        """A word of the chat itself."""
        ...

    def complain(self, text: str) -> None:
        """Something went wrong."""
        ...

    def changed(self) -> None:
        """What runs now is something else than before."""
        ...

    async def ask(self, approval: Approval) -> Decision:
        """Let the user decide. Cancelled if the run is stopped meanwhile."""
        ...
