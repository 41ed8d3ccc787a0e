"""What every reader of a provider's stream has: the pieces of an answer so far, and the events to make of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from quiesce._safe.nested import decode_json
from quiesce.models.words import (
    AssistantMessage,
    ItemDone,
    ModelEvent,
    ModelRequest,
    ResponseDone,
    TextDelta,
    Tokens,
    ToolCall,
    Usage,
)

from .errors import Endpoint, ended_early, garbage


@dataclass(slots=True)
class CallSoFar:
    """A tool call that is being written."""

    call_id: str
    name: str = ""
    arguments: str = ""

    def done(self) -> ItemDone:
        """It is complete."""
        return ItemDone(ToolCall(self.call_id, self.name, self.arguments if self.arguments.strip() else "{}"))


class Reader(ABC):
    """Reads one answer. `is_complete` once the provider has said that this was all."""

    def __init__(self, request: ModelRequest, at: Endpoint) -> None:
        self.at = at
        self.taken_ids = {item.call_id for item in request.items if isinstance(item, ToolCall)}
        self.is_complete = False
        self.finish: str | None = None
        self.response_id: str | None = None
        self.text: list[str] = []
        self.refuses = False
        self.any_calls = False
        self.usage: Usage | None = None

    def read(self, kind: str, text: str) -> Iterator[ModelEvent]:
        """What one event of the stream says."""
        if text.strip() == "[DONE]":
            self.is_complete = True
            return
        try:
            data = decode_json(text)
        except msgspec.DecodeError as error:
            raise garbage(self.at, text) from error
        if not isinstance(data, dict):
            raise garbage(self.at, text)
        try:
            yield from self.take(kind, data)
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # of another shape than its API says
            raise garbage(self.at, text) from error

    @abstractmethod
    def take(self, kind: str, data: dict[str, Any]) -> Iterator[ModelEvent]:
        """What one event of the stream says."""

    def end(self) -> Iterator[ModelEvent]:
        """The stream is over: what is still to be said, and `ResponseDone`."""
        yield from self.rest()
        if not self.is_complete and self.finish is None:
            raise ended_early(self.at)
        finish = "refusal" if self.refuses else self.finish or "stop"
        if self.any_calls and finish == "stop":
            finish = "tool_calls"
        usage = self.usage or Usage(requests=1, unreported=1)
        yield ResponseDone(usage, finish, self.response_id)

    def rest(self) -> Iterator[ModelEvent]:
        """Items that only the end of the stream completes; none if it was cut."""
        return iter(())

    # What readers say

    def say(self, text: object) -> Iterator[ModelEvent]:
        """The next piece of the answer."""
        if isinstance(text, str) and text:
            self.text.append(text)
            yield TextDelta(text)

    def message_done(self) -> Iterator[ModelEvent]:
        """What was said so far is a whole message."""
        if self.text:
            yield ItemDone(AssistantMessage("".join(self.text), refusal=self.refuses))
            self.text.clear()

    def count(self, usage: Usage) -> Iterator[ModelEvent]:
        """The provider has said what it costs."""
        if usage != self.usage:
            self.usage = usage
            yield Tokens(replace(usage))


def number(value: object) -> int:
    """A count of tokens; what a server left out is 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def part(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object inside another; an empty one where there is none."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def as_json(arguments: object) -> str:
    """Arguments as text. Some servers send them as an object."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
