"""One response as the wire has it: a sequence of server events, with pauses between.

It is a generator, so that whoever writes to the socket takes the next event when there is room for it. A cancellation is noticed at the next step, and the
items and the response are then finished in order, as incomplete and cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from quiesce.models import ToolCall
from quiesce.realtime.testing.speech import Speech, Turn, is_written_when_asked, parts_of

if TYPE_CHECKING:
    from .session import ServedSession

Step: TypeAlias = "dict[str, Any] | float"  # an event, or seconds until the next
Steps: TypeAlias = Generator[Step, None, None]
CancelReason: TypeAlias = Literal["client_cancelled", "turn_detected"]


class Response:
    """What the server says when it was asked for a response."""

    def __init__(
        self, session: ServedSession, turn: Turn, asked: dict[str, Any], settings: dict[str, Any]
    ) -> None:
        self.id = session.new_id("resp")
        self.cancelled: CancelReason | None = None
        self.speaking: str | None = None  # the item whose audio is being sent
        self.run = self._run()
        self._session = session
        self._turn = turn
        self._asked = asked
        self._settings = settings
        self._is_apart = settings.get("conversation") == "none"
        self._output: list[dict[str, Any]] = []
        self._tokens = {"text_tokens": 0, "audio_tokens": 0}

    @property
    def modalities(self) -> list[str]:
        """Audio, or text."""
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
            parts = parts_of(_written(self._turn, self._asked), self._session.pace)
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
        # Whoever has heard of the end may ask for the next one.
        self._session.response = None
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
            if audio and not written and not self.cancelled:
                session.audio_said[item_id] = session.audio_said.get(item_id, 0) + len(audio)
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

    def _call(self, index: int, asked: ToolCall) -> Steps:
        session = self._session
        call_id = asked.call_id or session.new_id("call")
        item: dict[str, Any] = {
            "id": session.new_id("item"),
            "object": "realtime.item",
            "type": "function_call",
            "status": "in_progress",
            "name": asked.name,
            "call_id": call_id,
            "arguments": "",
        }
        session.calls.add(call_id)
        yield from self._item_added(index, item)
        at = {"response_id": self.id, "item_id": item["id"], "output_index": index, "call_id": call_id}
        yield session.event("response.function_call_arguments.delta", **at, delta=asked.arguments)
        self._tokens["text_tokens"] += 1
        item["arguments"] = asked.arguments
        yield session.event(
            "response.function_call_arguments.done", **at, name=asked.name, arguments=asked.arguments
        )
        item["status"] = "completed"
        yield from self._item_done(index, item)

    def _item_added(self, index: int, item: dict[str, Any]) -> Steps:
        session = self._session
        self._output.append(item)
        yield session.event(
            "response.output_item.added", response_id=self.id, output_index=index, item=dict(item)
        )
        if not self._is_apart:
            before = session.items.add(item)
            yield session.event("conversation.item.added", previous_item_id=before, item=dict(item))

    def _item_done(self, index: int, item: dict[str, Any]) -> Steps:
        session = self._session
        if not self._is_apart:
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
            "conversation_id": None if self._is_apart else self._session.conversation_id,
            "output_modalities": self.modalities,
            "max_output_tokens": settings["max_output_tokens"],
            "audio": {"output": {"format": output["format"], "voice": output["voice"]}},
            "usage": None if status == "in_progress" else self._usage(),
            "metadata": self._settings.get("metadata"),
        }

    def _usage(self) -> dict[str, Any]:
        heard = self._session.input_tokens
        output = sum(self._tokens.values())
        nothing = {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0}
        return {
            "input_tokens": heard,
            "output_tokens": output,
            "total_tokens": heard + output,
            "input_token_details": {
                **nothing,
                "text_tokens": heard,
                "cached_tokens": 0,
                "cached_tokens_details": nothing,
            },
            "output_token_details": dict(self._tokens),
        }


def _written(turn: Turn, asked: dict[str, Any]) -> Turn:
    """Ask the functions of a script, here and now."""
    while is_written_when_asked(turn):
        answer: Any = turn(asked)  # type: ignore[operator]
        turn = asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer
    return turn


async def _awaited(answer: Awaitable[Turn]) -> Turn:
    return await answer
