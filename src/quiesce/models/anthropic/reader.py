"""The stream of Anthropic's Messages API: a message that is begun, blocks that grow, and what it all cost."""

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

from .messages import PROVIDER

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_COSTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class AnthropicReader(Reader):
    """Reads events."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._calls: dict[int, CallSoFar] = {}
        self._thoughts: dict[int, dict[str, Any]] = {}
        self._costs: dict[str, int] = {}

    def take(self, kind: str, data: dict[str, Any]) -> Iterator[ModelEvent]:
        """One event. Its kind is also inside it."""
        kind = str(data.get("type") or kind)
        index = number(data.get("index"))
        if kind == "content_block_delta":
            yield from self._grow(index, part(data, "delta"))
        elif kind == "content_block_start":
            yield from self._begin(index, part(data, "content_block"))
        elif kind == "content_block_stop":
            yield from self._end_block(index)
        elif kind == "message_start":
            message = part(data, "message")
            self.response_id = message.get("id")
            yield from self._cost(part(message, "usage"))
        elif kind == "message_delta":
            reason = part(data, "delta").get("stop_reason")
            if reason:
                self.finish = _FINISH.get(reason, str(reason))
                self.refuses = reason == "refusal"
            yield from self._cost(part(data, "usage"))
        elif kind == "message_stop":
            self.is_complete = True
        elif kind == "error":
            raise of_event(data.get("error") or data, self.at)

    def _begin(self, index: int, block: Any) -> Iterator[ModelEvent]:
        kind = block.get("type")
        if kind == "text":
            yield from self.say(block.get("text"))
        elif kind == "tool_use":
            yield from self.message_done()
            call = CallSoFar(fresh_call_id(block.get("id"), self.taken_ids), str(block.get("name") or ""))
            if block.get("input"):
                call.arguments = as_json(block["input"])
            self.taken_ids.add(call.call_id)
            self._calls[index] = call
            self.any_calls = True
        elif kind in ("thinking", "redacted_thinking"):
            yield from self.message_done()
            self._thoughts[index] = dict(block)
            if block.get("thinking"):
                yield ReasoningDelta(block["thinking"])

    def _grow(self, index: int, delta: Any) -> Iterator[ModelEvent]:
        kind = delta.get("type")
        if kind == "text_delta":
            yield from self.say(delta.get("text"))
        elif kind == "input_json_delta":
            call = self._calls.get(index)
            if call is not None:
                piece = as_json(delta.get("partial_json"))
                call.arguments += piece
                yield ToolCallDelta(call.call_id, call.name, piece)
        elif kind in ("thinking_delta", "signature_delta") and index in self._thoughts:
            field = "thinking" if kind == "thinking_delta" else "signature"
            piece = str(delta.get(field) or "")
            block = self._thoughts[index]
            block[field] = str(block.get(field) or "") + piece
            if piece and field == "thinking":
                yield ReasoningDelta(piece)

    def _end_block(self, index: int) -> Iterator[ModelEvent]:
        call, block = self._calls.pop(index, None), self._thoughts.pop(index, None)
        if call is not None:
            yield call.done()
        elif block is not None:
            yield ItemDone(Reasoning(str(block.get("thinking") or ""), PROVIDER, block))

    def rest(self) -> Iterator[ModelEvent]:
        """The last message: only now it is known whether it refuses."""
        if self.is_complete or self.finish is not None:
            yield from self.message_done()

    def _cost(self, said: Any) -> Iterator[ModelEvent]:
        # Each replaces the one before; what is not said again stays.
        self._costs.update((key, number(said[key])) for key in _COSTS if said.get(key) is not None)
        if not self._costs:
            return
        read, made = (
            self._costs.get("cache_read_input_tokens", 0),
            self._costs.get("cache_creation_input_tokens", 0),
        )
        yield from self.count(
            Usage(
                requests=1,
                input_tokens=self._costs.get("input_tokens", 0) + read + made,
                output_tokens=self._costs.get("output_tokens", 0),
                cached_input_tokens=read,
            )
        )
