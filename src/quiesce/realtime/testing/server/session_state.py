"""What a session of the local server and its responses share."""

from __future__ import annotations

import itertools
from typing import Any

from .items import ItemsInOrder
from .settings import first_settings


class ServedState:
    """The settings and the conversation of one session."""

    def __init__(self, number: int, *, pace: float, model: str | None) -> None:
        self.pace = pace
        self.calls: set[str] = set()
        self.audio_sent: dict[str, int] = {}  # bytes, by item
        self.input_tokens = 0
        self.items = ItemsInOrder()
        self._number = number
        self._ids: dict[str, itertools.count[int]] = {}
        self.conversation_id = self.new_id("conv")
        self.settings = first_settings(self.new_id("sess"), model)

    def new_id(self, kind: str) -> str:
        """Return an id that no other session of the server has, so that a mix-up is noticed."""
        return f"{kind}_{self._number}_{next(self._ids.setdefault(kind, itertools.count(1)))}"

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return a server event."""
        return {"type": kind, "event_id": self.new_id("event"), **fields}

    @property
    def output_kind(self) -> str:
        """The format of the server's audio."""
        kind: str = self.settings["audio"]["output"]["format"]["type"]
        return kind

    @property
    def input_kind(self) -> str:
        """The format of the user's audio."""
        kind: str = self.settings["audio"]["input"]["format"]["type"]
        return kind
