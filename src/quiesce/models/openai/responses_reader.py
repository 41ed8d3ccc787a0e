"""The stream of the Responses API: typed events about items, which are begun, grow and are done."""

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

_CUT = {"max_output_tokens": "length"}


class ResponsesReader(Reader):
    """Reads events."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._calls: dict[object, CallSoFar] = {}  # by the place of the item in the output
        self._done: set[object] = set()
        self._thoughts: dict[object, list[str]] = {}

    def take(self, kind: str, data: dict[str, Any]) -> Iterator[ModelEvent]:
        """One event. Its kind is also inside it, and some servers say it only there."""
        kind = str(data.get("type") or kind)
        place = data.get("output_index", data.get("item_id"))
        if kind == "response.output_text.delta":
            yield from self.say(data.get("delta"))
        elif kind == "response.refusal.delta":
            self.refuses = True
            yield from self.say(data.get("delta"))
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            thought = str(data.get("delta") or "")
            if thought:
                self._thoughts.setdefault(place, []).append(thought)
                yield ReasoningDelta(thought)
        elif kind == "response.output_item.added":
            item = part(data, "item")
            if item.get("type") == "function_call":
                self._call(place, item)
        elif kind == "response.function_call_arguments.delta":
            call = self._calls.get(place)
            if call is not None:
                piece = as_json(data.get("delta"))
                call.arguments += piece
                yield ToolCallDelta(call.call_id, call.name, piece)
        elif kind == "response.output_item.done":
            yield from self._item_done(place, part(data, "item"))
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self._name(part(data, "response"))
        elif kind in ("response.completed", "response.incomplete"):
            yield from self._response_done(part(data, "response"))
        elif kind == "response.failed":
            raise of_event(part(data, "response").get("error") or "", self.at)
        elif kind == "error" or data.get("error"):
            raise of_event(data.get("error") or data, self.at)

    def _name(self, response: Any) -> None:
        if isinstance(response.get("id"), str):
            self.response_id = response["id"]

    def _call(self, place: object, item: Any) -> CallSoFar:
        call = self._calls.get(place)
        if call is None:
            call = CallSoFar(
                fresh_call_id(item.get("call_id") or item.get("id"), self.taken_ids),
                str(item.get("name") or ""),
            )
            self.taken_ids.add(call.call_id)
            self._calls[place] = call
            self.any_calls = True
        return call

    def _item_done(self, place: object, item: Any) -> Iterator[ModelEvent]:
        self._done.add(place)
        kind = item.get("type")
        if kind == "message":
            if not self.text:  # it came all at once
                for piece in item.get("content") or ():
                    self.refuses = self.refuses or piece.get("type") == "refusal"
                    yield from self.say(piece.get("text") or piece.get("refusal"))
            yield from self.message_done()
        elif kind == "function_call":
            call = self._call(place, item)
            call.name = str(item.get("name") or call.name)
            call.arguments = as_json(item.get("arguments")) or call.arguments
            yield call.done()
        elif kind == "reasoning":
            summary = [str(piece.get("text") or "") for piece in item.get("summary") or ()]
            text = "\n\n".join(summary) or "".join(self._thoughts.get(place, ()))
            yield ItemDone(Reasoning(text, PROVIDER, dict(item)))

    def _response_done(self, response: Any) -> Iterator[ModelEvent]:
        self._name(response)
        for place, item in enumerate(response.get("output") or ()):
            # Items that no event has told the end of. A message that was cut is told here too.
            if place not in self._done and item.get("id") not in self._done:
                yield from self._item_done(place, item)
        yield from self.message_done()
        if isinstance(response.get("usage"), dict):
            yield from self.count(usage_of(response["usage"]))
        reason = part(response, "incomplete_details").get("reason")
        self.finish = _CUT.get(reason, str(reason)) if reason else "stop"
        self.is_complete = True


def usage_of(said: dict[str, Any]) -> Usage:
    """What the Responses API says of its cost."""
    return Usage(
        requests=1,
        input_tokens=number(said.get("input_tokens")),
        output_tokens=number(said.get("output_tokens")),
        cached_input_tokens=number(part(said, "input_tokens_details").get("cached_tokens")),
        reasoning_tokens=number(part(said, "output_tokens_details").get("reasoning_tokens")),
    )
