"""Reads the stream of Anthropic's Messages API: a message starts, its blocks grow, and the usage is reported."""

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
_TOKEN_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class AnthropicReader(Reader):
    """Reads the events of one message."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._calls: dict[int, CallSoFar] = {}
        self._thoughts: dict[int, dict[str, Any]] = {}
        self._token_counts: dict[str, int] = {}

    def read_data(self, kind: str, data: dict[str, Any]) -> Iterator[ModelEvent]:
        """Yield the events that one server-sent event leads to; its `type` takes precedence over `kind`."""
        kind = str(data.get("type") or kind)
        index = number(data.get("index"))
        if kind == "content_block_delta":
            yield from self._extend_block(index, part(data, "delta"))
        elif kind == "content_block_start":
            yield from self._start_block(index, part(data, "content_block"))
        elif kind == "content_block_stop":
            yield from self._end_block(index)
        elif kind == "message_start":
            message = part(data, "message")
            self.response_id = message.get("id")
            yield from self._add_usage(part(message, "usage"))
        elif kind == "message_delta":
            reason = part(data, "delta").get("stop_reason")
            if reason:
                self.finish = _FINISH.get(reason, str(reason))
                self.refuses = reason == "refusal"
            yield from self._add_usage(part(data, "usage"))
        elif kind == "message_stop":
            self.is_complete = True
        elif kind == "error":
            raise of_event(data.get("error") or data, self.endpoint)

    def _start_block(self, index: int, block: Any) -> Iterator[ModelEvent]:
        kind = block.get("type")
        if kind == "text":
            yield from self.add_text(block.get("text"))
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

    def _extend_block(self, index: int, delta: Any) -> Iterator[ModelEvent]:
        kind = delta.get("type")
        if kind == "text_delta":
            yield from self.add_text(delta.get("text"))
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

    def remaining_items(self) -> Iterator[ModelEvent]:
        """Yield the last message, which is complete only now: `stop_reason` tells whether it is a refusal."""
        if self.is_complete or self.finish is not None:
            yield from self.message_done()

    def _add_usage(self, usage: Any) -> Iterator[ModelEvent]:
        # The numbers are cumulative, so each replaces the one before; a number that is not repeated stays.
        self._token_counts.update(
            (key, number(usage[key])) for key in _TOKEN_COUNTS if usage.get(key) is not None
        )
        if not self._token_counts:
            return
        cache_read = self._token_counts.get("cache_read_input_tokens", 0)
        cache_created = self._token_counts.get("cache_creation_input_tokens", 0)
        # This API does not include cached tokens in `input_tokens`; `Usage` does, as OpenAI does.
        yield from self.set_usage(
            Usage(
                requests=1,
                input_tokens=self._token_counts.get("input_tokens", 0) + cache_read + cache_created,
                output_tokens=self._token_counts.get("output_tokens", 0),
                cached_input_tokens=cache_read,
            )
        )
