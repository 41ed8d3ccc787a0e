"""`RealtimeModel`: the connection of a session to a model.

A model passes its events to its listeners one by one, and awaits each call (`await
listener.on_event(event)`), so a session that cannot take more makes the model wait. `send_event` takes what
the session sends, and waits while the server does not read. When the connection has ended, a model calls
`listener.on_connection_ended()` at once; then it passes on the events that had arrived, and then the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import RealtimeModelConfig
    from .model_events import RealtimeModelEvent
    from .model_inputs import RealtimeModelSendEvent


class RealtimeModelListener(ABC):
    """Receives the events of a model."""

    @abstractmethod
    async def on_event(self, event: RealtimeModelEvent) -> None:
        """Take an event."""

    def on_connection_ended(self) -> None:  # noqa: B027 - most listeners never make the model wait
        """Stop making the model wait: only events that have arrived already will follow."""


class RealtimeModel(ABC):
    """A connection to a model: `OpenAIRealtimeWebSocketModel`, or your own, or one for tests.

    It serves one session at a time. After `close()` it may be connected again, and then knows nothing of the
    session before. A session that restores a lost connection does both, and then sends the conversation as a
    `RealtimeModelSendHistory`.
    """

    @abstractmethod
    async def connect(self, options: RealtimeModelConfig) -> None:
        """Connect. If this fails or is cancelled, nothing may be left; `close()` is called in any case."""

    @abstractmethod
    def add_listener(self, listener: RealtimeModelListener) -> None:
        """Add a listener."""

    @abstractmethod
    def remove_listener(self, listener: RealtimeModelListener) -> None:
        """Remove a listener; do nothing if it was not added."""

    @abstractmethod
    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        """Send something to the model."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection and everything that belongs to it; do nothing if there is none."""


class ListenedModel(RealtimeModel):
    """A model that keeps a list of its listeners."""

    def __init__(self) -> None:
        self._listeners: list[RealtimeModelListener] = []

    def add_listener(self, listener: RealtimeModelListener) -> None:
        """Add a listener."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        """Remove a listener; do nothing if it was not added."""
        if listener in self._listeners:
            self._listeners.remove(listener)
