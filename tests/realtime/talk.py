"""Talking to a `Protocol` by hand: the test is the server, the listener and the socket."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from quiesce.realtime.openai.protocol import Protocol
from quiesce.realtime.words.model_events import RealtimeModelRawServerEvent
from quiesce.realtime.words.playback import RealtimePlaybackTracker

MS = 48  # bytes of pcm16 in a millisecond


class Talk:
    """One connection. `sent` holds what was sent, decoded, since somebody last looked; `told` what was told, without the raw events."""

    def __init__(self, settings: Any = None, *, tracker: RealtimePlaybackTracker | None = None) -> None:
        self.tracker = tracker or RealtimePlaybackTracker()
        self.protocol = Protocol(self.tracker)
        self._sent: list[Any] = []
        self._told: list[Any] = []
        given: Any = settings or {}
        [frame] = self.protocol.connected(given)
        self.first: Any = msgspec.json.decode(frame)

    @property
    def sent(self) -> list[dict[str, Any]]:
        """What was sent since the last look, without the ids of the events."""
        sent, self._sent = self._sent, []
        return [{name: value for name, value in each.items() if name != "event_id"} for each in sent]

    @property
    def sent_with_ids(self) -> list[dict[str, Any]]:
        """The same, with them."""
        sent, self._sent = self._sent, []
        return sent

    @property
    def sent_types(self) -> list[str]:
        """Only the types."""
        return [each["type"] for each in self.sent]

    @property
    def told(self) -> list[Any]:
        """What was told since the last look."""
        told, self._told = self._told, []
        return told

    def server(self, kind: str, **fields: Any) -> list[Any]:
        """The server says something; returns what is told of it."""
        frame = msgspec.json.encode({"type": kind, "event_id": "event_1", **fields})
        events, frames = self.protocol.receive(frame)
        assert isinstance(events[0], RealtimeModelRawServerEvent)
        assert events[0].frame is frame
        self._sent += [msgspec.json.decode(each) for each in frames]
        self._told += events[1:]
        return events[1:]

    def user(self, event: Any) -> list[Any]:
        """Somebody on our side wants something; returns what is told at once."""
        events, frames = self.protocol.send(event)
        self._sent += [msgspec.json.decode(each) for each in frames]
        self._told += events
        return events

    def begins(self, response_id: str = "resp_1") -> None:
        """A response begins."""
        self.server("response.created", response={"id": response_id, "status": "in_progress"})

    def ends(self, response_id: str = "resp_1", status: str = "completed", **more: Any) -> list[Any]:
        """A response ends."""
        return self.server("response.done", response={"id": response_id, "status": status, **more})

    def says(
        self, ms: int, item_id: str = "item_1", response_id: str = "resp_1", content_index: int = 0
    ) -> list[Any]:
        """Some audio comes."""
        return self.server(
            "response.output_audio.delta",
            response_id=response_id,
            item_id=item_id,
            output_index=0,
            content_index=content_index,
            delta=base64.b64encode(bytes(ms * MS)).decode(),
        )

    def has_said(
        self, item_id: str = "item_1", response_id: str = "resp_1", content_index: int = 0
    ) -> list[Any]:
        """All audio of a content has come."""
        return self.server(
            "response.output_audio.done",
            response_id=response_id,
            item_id=item_id,
            content_index=content_index,
        )


def truncation(item_id: str, ms: int, content_index: int = 0) -> dict[str, Any]:
    """What cuts a content to what was heard of it."""
    return {
        "type": "conversation.item.truncate",
        "item_id": item_id,
        "content_index": content_index,
        "audio_end_ms": ms,
    }


def types(events: list[Any]) -> list[str]:
    """The types of events."""
    return [each.type for each in events]
