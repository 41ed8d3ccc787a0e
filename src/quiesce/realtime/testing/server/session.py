"""The server side of the Realtime protocol, without sockets: client events in, server events out.

`receive` answers at once, through `out`. The events of a response are taken step by step, as there is room:
see `step`.
"""

from __future__ import annotations

import base64
import binascii
import copy
from collections import deque
from collections.abc import Callable
from typing import Any

from quiesce.realtime.testing.speech import Turn
from quiesce.realtime.words import bytes_per_millisecond
from quiesce.testing import ScriptExhausted

from .input_audio import InputBuffer
from .response import CancelReason, Response, Step
from .session_state import ServedState
from .settings import change_settings

_SHORTEST = 100  # ms of audio that a client may commit


class ServedSession(ServedState):
    """One session, with its active response."""

    def __init__(
        self,
        number: int,
        script: deque[Turn],
        transcripts: deque[str],
        *,
        pace: float = 0.0,
        model: str | None = None,
    ) -> None:
        super().__init__(number, pace=pace, model=model)
        self.out: deque[dict[str, Any]] = deque()
        self.response: Response | None = None
        self._script = script
        self._requests = 0
        self._transcripts = transcripts
        self._user_audio: dict[str, bytes] = {}  # by item
        self._input = InputBuffer()
        self._input_item = ""  # the id of the item that the user is speaking
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "session.update": self._update,
            "conversation.item.create": self._create_item,
            "conversation.item.delete": self._delete_item,
            "conversation.item.retrieve": self._retrieve_item,
            "conversation.item.truncate": self._truncate_item,
            "input_audio_buffer.append": self._append_audio,
            "input_audio_buffer.commit": self._commit_audio,
            "input_audio_buffer.clear": self._clear_audio,
            "response.create": self._create_response,
            "response.cancel": self._cancel_response,
        }

    # Events of the server

    def begin(self) -> None:
        """Greet a client that has connected."""
        self._say("session.created", session=copy.deepcopy(self.settings))

    def step(self) -> Step | None:
        """Return the next event, or seconds to wait before it, or None if there is nothing to send."""
        if self.out:
            return self.out.popleft()
        return next(self.response.run, None) if self.response is not None else None

    def _say(self, kind: str, **fields: Any) -> None:
        self.out.append(self.event(kind, **fields))

    def refuse(
        self, message: str, code: str | None, event: dict[str, Any] | None = None, param: str | None = None
    ) -> None:
        """Answer with an error; the session goes on."""
        about = (event or {}).get("event_id")
        error = {
            "type": "invalid_request_error",
            "code": code,
            "message": message,
            "param": param,
            "event_id": about,
        }
        self._say("error", error=error)

    # Events of the client

    def receive(self, event: dict[str, Any]) -> None:
        """Take an event of the client."""
        kind = event.get("type")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler is None:
            known = ", ".join(repr(name) for name in self._handlers)
            missing = kind is None
            self.refuse(
                "Missing required parameter: 'type'."
                if missing
                else f"Invalid value: {kind!r}. Supported values are: {known}.",
                "missing_required_parameter" if missing else "invalid_value",
                event,
                "type",
            )
            return
        try:
            handler(event)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self.refuse(f"{kind} is malformed: {error!r}", "invalid_value", event)

    def _update(self, event: dict[str, Any]) -> None:
        given = event["session"]
        if given.get("type") != "realtime":
            self.refuse(
                "This server has only sessions of type 'realtime'.", "invalid_value", event, "session.type"
            )
            return
        change_settings(self.settings, given)
        self._say("session.updated", session=copy.deepcopy(self.settings))

    # The conversation

    def _create_item(self, event: dict[str, Any]) -> None:
        item, after = dict(event["item"]), event.get("previous_item_id")
        item["id"] = item.get("id") or self.new_id("item")
        if item["id"] in self.items:
            self.refuse(
                f"There is an item {item['id']!r} already.", "item_create_duplicate_id", event, "item.id"
            )
        elif after not in (None, "root") and after not in self.items:
            self.refuse(f"There is no item {after!r}.", "invalid_value", event, "previous_item_id")
        elif item["type"] == "function_call_output" and item["call_id"] not in self.calls:
            message = f"Tool call ID {item['call_id']!r} not found in conversation."
            self.refuse(message, "invalid_tool_call_id", event, "item.call_id")
        elif item.get("role") == "assistant" and not all(part.get("text") for part in item["content"]):
            self.refuse(
                "Missing required parameter: 'item.content[0].text'.",
                "missing_required_parameter",
                event,
                "item.content[0].text",
            )
        else:
            item |= {"object": "realtime.item", "status": "completed"}
            if item["type"] == "function_call":
                self.calls.add(item["call_id"])
            texts = [part.get("text") or "" for part in item.get("content") or ()]
            self.input_tokens += len(" ".join([*texts, item.get("output") or ""]).split())
            self._announce(item, after)

    def _announce(self, item: dict[str, Any], after: str | None = None) -> None:
        before = self.items.add(item, after)
        self._say("conversation.item.added", previous_item_id=before, item=dict(item))
        self._say("conversation.item.done", previous_item_id=before, item=dict(item))

    def _find_item(self, event: dict[str, Any], verb: str) -> dict[str, Any] | None:
        item_id = event["item_id"]
        if item_id not in self.items:
            self.refuse(
                f"There is no item {item_id!r} to {verb}.", f"item_{verb}_invalid_item_id", event, "item_id"
            )
            return None
        return self.items[item_id]

    def _delete_item(self, event: dict[str, Any]) -> None:
        if self._find_item(event, "delete") is not None:
            self.items.remove(event["item_id"])
            self._say("conversation.item.deleted", item_id=event["item_id"])

    def _retrieve_item(self, event: dict[str, Any]) -> None:
        item = self._find_item(event, "retrieve")
        if item is not None:
            audio = self._user_audio.get(item["id"])
            if audio is not None:
                item = {
                    **item,
                    "content": [{**item["content"][0], "audio": base64.b64encode(audio).decode()}],
                }
            self._say("conversation.item.retrieved", item=dict(item))

    def _truncate_item(self, event: dict[str, Any]) -> None:
        item = self._find_item(event, "truncate")
        if item is None:
            return
        if item.get("role") != "assistant":
            message = "Only messages of the assistant can be truncated."
            self.refuse(message, "invalid_value", event, "item_id")
            return
        sent_ms = self.audio_sent.get(item["id"], 0) / bytes_per_millisecond(self.output_kind)
        if event["audio_end_ms"] > sent_ms:
            message = f"Audio content of {sent_ms:g}ms is already shorter than {event['audio_end_ms']}ms"
            self.refuse(message, "invalid_value", event, "audio_end_ms")
            return
        # The model must not know what was not heard. Which words that were cannot be told, so all of them go.
        item["content"] = [{"type": "output_audio"}]
        where = {name: event[name] for name in ("item_id", "content_index", "audio_end_ms")}
        self._say("conversation.item.truncated", **where)

    # Audio of the user

    def _append_audio(self, event: dict[str, Any]) -> None:
        try:
            audio = base64.b64decode(event["audio"], validate=True)
        except binascii.Error:
            self.refuse("The audio is not base64.", "invalid_value", event, "audio")
            return
        detection = self.settings["audio"]["input"].get("turn_detection")
        for change in self._input.append(audio, self.input_kind, detection):
            if change.what == "speech_started":
                self._input_item = self.new_id("item")
                self._say(
                    "input_audio_buffer.speech_started", audio_start_ms=change.at_ms, item_id=self._input_item
                )
                if detection["interrupt_response"]:
                    self.cancel("turn_detected")
            else:
                self._say(
                    "input_audio_buffer.speech_stopped", audio_end_ms=change.at_ms, item_id=self._input_item
                )
                self._commit(self._input_item, bytes(self._input.audio))
                self._input.audio.clear()
                if detection["create_response"] and self.response is None:
                    self._respond(event, {})

    def _commit_audio(self, event: dict[str, Any]) -> None:
        buffered = self._input.size / bytes_per_millisecond(self.input_kind)
        if buffered < _SHORTEST:
            message = (
                "Error committing input audio buffer: "
                f"it has {buffered:.2f}ms of audio, and must have {_SHORTEST}ms."
            )
            self.refuse(message, "input_audio_buffer_commit_empty", event)
            return
        item_id = self._input_item if self._input.speaking else self.new_id("item")
        self._commit(item_id, self._input.take())

    def _commit(self, item_id: str, audio: bytes) -> None:
        before = self.items.last
        self._say("input_audio_buffer.committed", item_id=item_id, previous_item_id=before)
        self._user_audio[item_id] = audio
        item: dict[str, Any] = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        self._announce(item)
        seconds = len(audio) / bytes_per_millisecond(self.input_kind) / 1000
        self.input_tokens += int(seconds * 10)
        if self.settings["audio"]["input"].get("transcription") is not None:
            transcript = self._transcripts.popleft() if self._transcripts else ""
            at = {"item_id": item_id, "content_index": 0}
            kind = "conversation.item.input_audio_transcription"
            if transcript:
                self._say(f"{kind}.delta", **at, delta=transcript)
            item["content"] = [{"type": "input_audio", "transcript": transcript}]
            self._say(
                f"{kind}.completed",
                **at,
                transcript=transcript,
                usage={"type": "duration", "seconds": round(seconds, 3)},
            )

    def _clear_audio(self, event: dict[str, Any]) -> None:
        self._input.take()
        self._say("input_audio_buffer.cleared")

    # Responses

    def _create_response(self, event: dict[str, Any]) -> None:
        if self.response is not None:
            message = f"Conversation already has an active response in progress: {self.response.id}."
            self.refuse(message, "conversation_already_has_active_response", event)
            return
        self._respond(event, event.get("response") or {})

    def _respond(self, request: dict[str, Any], settings: dict[str, Any]) -> None:
        self._requests += 1
        turn: Turn = ScriptExhausted(
            f"response {self._requests} was requested, but the script has {self._requests - 1} turns"
        )
        if self._script:
            turn = self._script.popleft()
        self.response = Response(self, turn, request, settings, self._response_done)

    def _response_done(self) -> None:
        self.response = None

    def _cancel_response(self, event: dict[str, Any]) -> None:
        wanted = event.get("response_id")
        if self.response is None or wanted not in (None, self.response.id):
            self.refuse("Cancellation failed: no active response found", "response_cancel_not_active", event)
        else:
            self.cancel("client_cancelled")

    def cancel(self, reason: CancelReason) -> None:
        """Cancel the active response, if there is one."""
        if self.response is not None and self.response.cancelled is None:
            self.response.cancelled = reason
