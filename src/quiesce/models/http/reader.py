"""The common part of the readers of providers' streams: collect the pieces of an answer, and turn them into events."""

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

from .errors import Endpoint, ended_early, unreadable_event


@dataclass(slots=True)
class CallSoFar:
    """A tool call whose arguments are still arriving."""

    call_id: str
    name: str = ""
    arguments: str = ""

    def done(self) -> ItemDone:
        """Return the event for the complete call; empty arguments become `{}`."""
        return ItemDone(ToolCall(self.call_id, self.name, self.arguments if self.arguments.strip() else "{}"))


class Reader(ABC):
    """Reads one answer. `is_complete` becomes true when the provider has marked the end of the answer."""

    def __init__(self, request: ModelRequest, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.taken_ids = {item.call_id for item in request.items if isinstance(item, ToolCall)}
        self.is_complete = False
        self.finish: str | None = None
        self.response_id: str | None = None
        self.text: list[str] = []
        self.refuses = False
        self.any_calls = False
        self.usage: Usage | None = None

    def read(self, kind: str, text: str) -> Iterator[ModelEvent]:
        """Yield the events that one server-sent event leads to; raise `ModelBehaviorError` if it cannot be read."""
        # Anthropic has no such marker and never sends it, so one check here serves all readers.
        if text.strip() == "[DONE]":
            self.is_complete = True
            return
        try:
            data = decode_json(text)
        except msgspec.DecodeError as error:
            raise unreadable_event(self.endpoint, text) from error
        if not isinstance(data, dict):
            raise unreadable_event(self.endpoint, text)
        try:
            yield from self.read_data(kind, data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The JSON has another shape than the API documents. Readers index it freely instead of checking every step.
            raise unreadable_event(self.endpoint, text) from error

    @abstractmethod
    def read_data(self, kind: str, data: dict[str, Any]) -> Iterator[ModelEvent]:
        """Yield the events that one decoded server-sent event leads to."""

    def end(self) -> Iterator[ModelEvent]:
        """Yield the remaining items and `ResponseDone`; raise if the stream ended before the answer was complete."""
        yield from self.remaining_items()
        if not self.is_complete and self.finish is None:
            raise ended_early(self.endpoint)
        finish = "refusal" if self.refuses else self.finish or "stop"
        # Some servers report "stop" after tool calls.
        if self.any_calls and finish == "stop":
            finish = "tool_calls"
        usage = self.usage or Usage(requests=1, unreported=1)
        yield ResponseDone(usage, finish, self.response_id)

    def remaining_items(self) -> Iterator[ModelEvent]:
        """Yield the items that only the end of the stream completes; none if the stream was cut off."""
        return iter(())

    # For the subclasses

    def add_text(self, text: object) -> Iterator[ModelEvent]:
        """Add a piece to the message, and yield its event; ignore anything that is not text."""
        if isinstance(text, str) and text:
            self.text.append(text)
            yield TextDelta(text)

    def message_done(self) -> Iterator[ModelEvent]:
        """Yield the text so far as a complete message, and begin a new one."""
        if self.text:
            yield ItemDone(AssistantMessage("".join(self.text), refusal=self.refuses))
            self.text.clear()

    def set_usage(self, usage: Usage) -> Iterator[ModelEvent]:
        """Store the usage that the provider reported, and yield it if it changed."""
        if usage != self.usage:
            self.usage = usage
            # A copy, because Usage is mutable and the consumer may add to it.
            yield Tokens(replace(usage))


def number(value: object) -> int:
    """Return `value` if it is a whole number, else 0: a server may leave a number out."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def part(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the JSON object under `key`, or an empty one if there is none."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def as_json(arguments: object) -> str:
    """Return the arguments of a tool call as JSON text. Some servers send them as an object."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
