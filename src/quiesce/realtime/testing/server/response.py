"""One response in the form of the protocol: a sequence of server events, with pauses between them.

It is a generator, so that the connection takes the next event when there is room for it. A cancellation is
noticed at the next step. Then the items and the response are finished in order, as incomplete and cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Literal, TypeAlias

from quiesce.models import ToolCall
from quiesce.realtime.testing.speech import Speech, Turn, is_function, parts_of

from .session_state import ServedState

Step: TypeAlias = "dict[str, Any] | float"  # an event, or seconds until the next
Steps: TypeAlias = Generator[Step, None, None]
CancelReason: TypeAlias = Literal["client_cancelled", "turn_detected"]


class Response:
    """The server's answer to one request; `on_done` is called before its last event."""

    def __init__(
        self,
        session: ServedState,
        turn: Turn,
        request: dict[str, Any],
        settings: dict[str, Any],
        on_done: Callable[[], None],
    ) -> None:
        self.id = session.new_id("resp")
        self.cancelled: CancelReason | None = None
        self.speaking: str | None = None  # the item whose audio is being sent
        self.run = self._run()
        self._session = session
        self._turn = turn
        self._request = request
        self._settings = settings
        self._on_done = on_done
        self._is_outside = settings.get("conversation") == "none"
        self._output: list[dict[str, Any]] = []
        self._tokens = {"text_tokens": 0, "audio_tokens": 0}

    @property
    def modalities(self) -> list[str]:
        """Either audio or text."""
        wanted: list[str] = (
            self._settings.get("output_modalities") or self._session.settings["output_modalities"]
        )
        return wanted

    def _run(self) -> Steps:
        event = self._session.event
        yield event("response.created", response=self._resource("in_progress"))
        limits = [{"name": "tokens", "limit": 100000, "remaining": 99000, "reset_seconds": 0.5}]
        yield event("rate_limits.updated", rate_limits=limits)
        status, details = "completed", None
        try:
            parts = parts_of(_resolved(self._turn, self._request), self._session.pace)
            for index, part in enumerate(parts):
                if not self.cancelled:
                    yield from self._say(index, part) if isinstance(part, Speech) else self._call(index, part)
        except Exception as error:
            status = "failed"
            code = getattr(error, "code", None) or type(error).__name__
            why = {"type": "server_error", "code": str(code), "message": str(error)}
            details = {"type": "failed", "error": why}
        if self.cancelled:
            status, details = "cancelled", {"type": "cancelled", "reason": self.cancelled}
        # Before the event: a client that gets it may request the next response at once.
        self._on_done()
        yield event("response.done", response=self._resource(status, details))

    def _say(self, index: int, speech: Speech) -> Steps:
        session = self._session
        written = self.modalities == ["text"] or speech.audio == b""
        item_id = session.new_id("item")
        item: dict[str, Any] = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        yield from self._item_added(index, item)
        at = {"response_id": self.id, "item_id": item_id, "output_index": index, "content_index": 0}
        kind, field = ("text", "text") if written else ("audio", "transcript")
        words = "response.output_text" if written else "response.output_audio_transcript"
        yield session.event("response.content_part.added", **at, part={"type": kind, field: ""})
        content = {"type": f"output_{kind}", field: ""}
        item["content"] = [content]
        self.speaking = None if written else item_id
        for n, (text, audio) in enumerate(speech.pieces(session.output_kind)):
            if n and speech.pace:
                yield speech.pace
            if self.cancelled:
                break
            if text:
                content[field] += text
                self._tokens["text_tokens"] += 1
                yield session.event(f"{words}.delta", **at, delta=text)
            # Checked again: the client may have cancelled after the text of this piece.
            if audio and not written and not self.cancelled:
                session.audio_sent[item_id] = session.audio_sent.get(item_id, 0) + len(audio)
                self._tokens["audio_tokens"] += 1
                delta = base64.b64encode(audio).decode()
                yield session.event("response.output_audio.delta", **at, delta=delta)
        self.speaking = None
        if not written:
            yield session.event("response.output_audio.done", **at)
        yield session.event(f"{words}.done", **at, **{field: content[field]})
        yield session.event("response.content_part.done", **at, part={"type": kind, field: content[field]})
        item["status"] = "incomplete" if self.cancelled else "completed"
        yield from self._item_done(index, item)

    def _call(self, index: int, call: ToolCall) -> Steps:
        session = self._session
        call_id = call.call_id or session.new_id("call")
        item: dict[str, Any] = {
            "id": session.new_id("item"),
            "object": "realtime.item",
            "type": "function_call",
            "status": "in_progress",
            "name": call.name,
            "call_id": call_id,
            "arguments": "",
        }
        session.calls.add(call_id)
        yield from self._item_added(index, item)
        at = {"response_id": self.id, "item_id": item["id"], "output_index": index, "call_id": call_id}
        yield session.event("response.function_call_arguments.delta", **at, delta=call.arguments)
        self._tokens["text_tokens"] += 1
        item["arguments"] = call.arguments
        yield session.event(
            "response.function_call_arguments.done", **at, name=call.name, arguments=call.arguments
        )
        item["status"] = "completed"
        yield from self._item_done(index, item)

    def _item_added(self, index: int, item: dict[str, Any]) -> Steps:
        session = self._session
        self._output.append(item)
        yield session.event(
            "response.output_item.added", response_id=self.id, output_index=index, item=dict(item)
        )
        if not self._is_outside:
            before = session.items.add(item)
            yield session.event("conversation.item.added", previous_item_id=before, item=dict(item))

    def _item_done(self, index: int, item: dict[str, Any]) -> Steps:
        session = self._session
        if not self._is_outside:
            before = session.items.before(item["id"])
            yield session.event("conversation.item.done", previous_item_id=before, item=dict(item))
        yield session.event(
            "response.output_item.done", response_id=self.id, output_index=index, item=dict(item)
        )

    def _resource(self, status: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
        settings = self._session.settings
        output = settings["audio"]["output"]
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [dict(item) for item in self._output],
            "conversation_id": None if self._is_outside else self._session.conversation_id,
            "output_modalities": self.modalities,
            "max_output_tokens": settings["max_output_tokens"],
            "audio": {"output": {"format": output["format"], "voice": output["voice"]}},
            "usage": None if status == "in_progress" else self._usage(),
            "metadata": self._settings.get("metadata"),
        }

    def _usage(self) -> dict[str, Any]:
        tokens = self._session.input_tokens
        output = sum(self._tokens.values())
        nothing = {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0}
        return {
            "input_tokens": tokens,
            "output_tokens": output,
            "total_tokens": tokens + output,
            "input_token_details": {
                **nothing,
                "text_tokens": tokens,
                "cached_tokens": 0,
                "cached_tokens_details": nothing,
            },
            "output_token_details": dict(self._tokens),
        }


def _resolved(turn: Turn, request: dict[str, Any]) -> Turn:
    """Call the functions of a script, here and now, until there is an actual turn."""
    while is_function(turn):
        answer: Any = turn(request)  # type: ignore[operator]
        turn = asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer
    return turn


async def _awaited(answer: Awaitable[Turn]) -> Turn:
    return await answer
