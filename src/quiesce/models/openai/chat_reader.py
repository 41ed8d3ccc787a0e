"""Reads the stream of Chat Completions, as OpenAI sends it and as other servers do.

Other servers leave out the usage, the ids of tool calls or their index; give every call the index 0, or the same id
in every turn; send arguments as an object; report "stop" after tool calls; send chunks without choices, or with
nothing but a role; send reasoning in one of two fields; and end without `[DONE]`, or without a finish reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quiesce.models.http import CallSoFar, Reader, as_json, number, of_event, part
from quiesce.models.words import (
    ItemDone,
    ModelEvent,
    Reasoning,
    ReasoningDelta,
    ToolCallDelta,
    Usage,
    fresh_call_id,
)

from .chat import PROVIDER

_FINISH = {"function_call": "tool_calls"}
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class ChatReader(Reader):
    """Reads the chunks of one answer."""

    _calls: list[CallSoFar]

    def read_data(self, kind: str, data: dict[str, Any]) -> Iterator[ModelEvent]:
        """Yield the events that one chunk leads to."""
        if kind == "error" or data.get("error") or data.get("object") == "error":
            raise of_event(data.get("error") or data, self.endpoint)
        if self.response_id is None and isinstance(data.get("id"), str):
            self.response_id = data["id"]
        for choice in data.get("choices") or ():
            if number(choice.get("index")) == 0:
                yield from self._choice(choice)
        if isinstance(data.get("usage"), dict):
            yield from self.set_usage(usage_of(data["usage"]))

    def _choice(self, choice: dict[str, Any]) -> Iterator[ModelEvent]:
        delta = part(choice, "delta")
        for field in _REASONING_FIELDS:
            thought = delta.get(field)
            if isinstance(thought, str) and thought:
                self._thought_field = field
                self._thoughts.append(thought)
                yield ReasoningDelta(thought)
                break
        yield from self.add_text(delta.get("content"))
        if delta.get("refusal"):
            self.refuses = True
            yield from self.add_text(delta["refusal"])
        for piece in delta.get("tool_calls") or ():
            yield from self._call(piece)
        if choice.get("finish_reason"):
            self.finish = _FINISH.get(choice["finish_reason"], choice["finish_reason"])

    def _call(self, piece: dict[str, Any]) -> Iterator[ModelEvent]:
        function = part(piece, "function")
        call = self._call_of(piece, function)
        if not call.name:
            call.name = str(function.get("name") or "")
        arguments = as_json(function.get("arguments"))
        call.arguments += arguments
        if call.name:
            yield ToolCallDelta(call.call_id, call.name, arguments)

    def _call_of(self, piece: dict[str, Any], function: Any) -> CallSoFar:
        """Return the call that a piece belongs to, a new one if it begins a call."""
        index, sent_id = piece.get("index"), piece.get("id")
        if isinstance(index, int) and index in self._by_index:
            call, its_id = self._by_index[index]
            # A known index with another id and a name is a new call: some servers give every call the index 0.
            if not sent_id or sent_id == its_id or not function.get("name"):
                return call
        elif not isinstance(index, int) and self._calls:
            # Without an index, the id decides; without either, only a name begins a new call.
            known = self._by_id.get(sent_id) if sent_id else None
            if known is not None:
                return known
            if not function.get("name"):
                return self._calls[-1]
        call = CallSoFar(fresh_call_id(sent_id, self.taken_ids))
        self.taken_ids.add(call.call_id)
        self._calls.append(call)
        self.any_calls = True
        if isinstance(index, int):
            self._by_index[index] = (call, sent_id)
        if sent_id:
            self._by_id[sent_id] = call
        return call

    def remaining_items(self) -> Iterator[ModelEvent]:
        """Yield every item: this API does not mark the end of a single one."""
        if not self.is_complete and self.finish is None:
            return
        if self._thoughts:
            data = {"field": self._thought_field, "model": self.endpoint.model}
            yield ItemDone(Reasoning("".join(self._thoughts), PROVIDER, data))
        yield from self.message_done()
        for call in self._calls:
            yield call.done()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._calls = []
        self._by_index: dict[int, tuple[CallSoFar, str | None]] = {}
        self._by_id: dict[str, CallSoFar] = {}
        self._thoughts: list[str] = []
        self._thought_field = _REASONING_FIELDS[0]


def usage_of(usage: dict[str, Any]) -> Usage:
    """Return the usage that Chat Completions reported."""
    return Usage(
        requests=1,
        input_tokens=number(usage.get("prompt_tokens")),
        output_tokens=number(usage.get("completion_tokens")),
        cached_input_tokens=number(part(usage, "prompt_tokens_details").get("cached_tokens")),
        reasoning_tokens=number(part(usage, "completion_tokens_details").get("reasoning_tokens")),
    )
