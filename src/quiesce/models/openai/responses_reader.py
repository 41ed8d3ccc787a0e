"""Reads the stream of the Responses API: typed events about items that are added, grow and are done."""

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

from .responses import PROVIDER

_INCOMPLETE = {"max_output_tokens": "length"}


class ResponsesReader(Reader):
    """Reads the events of one response."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # By the position of the item in the output.
        self._calls: dict[object, CallSoFar] = {}
        self._done: set[object] = set()
        self._thoughts: dict[object, list[str]] = {}

    def read_data(self, kind: str, data: dict[str, Any]) -> Iterator[ModelEvent]:
        """Yield the events that one server-sent event leads to."""
        # Some servers name the kind only inside the event, as `type`.
        kind = str(data.get("type") or kind)
        position = data.get("output_index", data.get("item_id"))
        if kind == "response.output_text.delta":
            yield from self.add_text(data.get("delta"))
        elif kind == "response.refusal.delta":
            self.refuses = True
            yield from self.add_text(data.get("delta"))
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            thought = str(data.get("delta") or "")
            if thought:
                self._thoughts.setdefault(position, []).append(thought)
                yield ReasoningDelta(thought)
        elif kind == "response.output_item.added":
            item = part(data, "item")
            if item.get("type") == "function_call":
                self._call(position, item)
        elif kind == "response.function_call_arguments.delta":
            call = self._calls.get(position)
            if call is not None:
                piece = as_json(data.get("delta"))
                call.arguments += piece
                yield ToolCallDelta(call.call_id, call.name, piece)
        elif kind == "response.output_item.done":
            yield from self._item_done(position, part(data, "item"))
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self._set_response_id(part(data, "response"))
        elif kind in ("response.completed", "response.incomplete"):
            yield from self._response_done(part(data, "response"))
        elif kind == "response.failed":
            raise of_event(part(data, "response").get("error") or "", self.endpoint)
        elif kind == "error" or data.get("error"):
            raise of_event(data.get("error") or data, self.endpoint)

    def _set_response_id(self, response: Any) -> None:
        if isinstance(response.get("id"), str):
            self.response_id = response["id"]

    def _call(self, position: object, item: Any) -> CallSoFar:
        call = self._calls.get(position)
        if call is None:
            call = CallSoFar(
                fresh_call_id(item.get("call_id") or item.get("id"), self.taken_ids),
                str(item.get("name") or ""),
            )
            self.taken_ids.add(call.call_id)
            self._calls[position] = call
            self.any_calls = True
        return call

    def _item_done(self, position: object, item: Any) -> Iterator[ModelEvent]:
        self._done.add(position)
        kind = item.get("type")
        if kind == "message":
            # A server that does not stream its messages sends the text only here.
            if not self.text:
                for piece in item.get("content") or ():
                    self.refuses = self.refuses or piece.get("type") == "refusal"
                    yield from self.add_text(piece.get("text") or piece.get("refusal"))
            yield from self.message_done()
        elif kind == "function_call":
            call = self._call(position, item)
            call.name = str(item.get("name") or call.name)
            call.arguments = as_json(item.get("arguments")) or call.arguments
            yield call.done()
        elif kind == "reasoning":
            summary = [str(piece.get("text") or "") for piece in item.get("summary") or ()]
            text = "\n\n".join(summary) or "".join(self._thoughts.get(position, ()))
            yield ItemDone(Reasoning(text, PROVIDER, dict(item)))

    def _response_done(self, response: Any) -> Iterator[ModelEvent]:
        self._set_response_id(response)
        for position, item in enumerate(response.get("output") or ()):
            # Some items have no event of their own for their end, among them a message that was cut off.
            if position not in self._done and item.get("id") not in self._done:
                yield from self._item_done(position, item)
        yield from self.message_done()
        if isinstance(response.get("usage"), dict):
            yield from self.set_usage(usage_of(response["usage"]))
        reason = part(response, "incomplete_details").get("reason")
        self.finish = _INCOMPLETE.get(reason, str(reason)) if reason else "stop"
        self.is_complete = True


def usage_of(usage: dict[str, Any]) -> Usage:
    """Return the usage that the Responses API reported."""
    return Usage(
        requests=1,
        input_tokens=number(usage.get("input_tokens")),
        output_tokens=number(usage.get("output_tokens")),
        cached_input_tokens=number(part(usage, "input_tokens_details").get("cached_tokens")),
        reasoning_tokens=number(part(usage, "output_tokens_details").get("reasoning_tokens")),
    )
