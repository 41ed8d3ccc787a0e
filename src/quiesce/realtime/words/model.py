"""What a session is connected by: a `RealtimeModel`.

A model tells its listeners what happens, one event after the other, and waits for each (`await listener.on_event(event)`): a session that
cannot take more makes its model wait. It is told what to do by `send_event`, which waits for a server that does not read. When the connection
has ended, a model says so at once (`listener.on_connection_ended()`), then tells the rest of what had come, then the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import RealtimeModelConfig
    from .model_events import RealtimeModelEvent
    from .model_inputs import RealtimeModelSendEvent


class RealtimeModelListener(ABC):
    """Whoever is told what a model says."""

    @abstractmethod
    async def on_event(self, event: RealtimeModelEvent) -> None:
        """Something has happened."""

    def on_connection_ended(self) -> None:  # noqa: B027 - most make nobody wait
        """Nothing more will come but what is on its way: make the model wait for nothing any more. (Most never do.)"""


class RealtimeModel(ABC):
    """A way to a model: `OpenAIRealtimeWebSocketModel`, one of your own, or a `ScriptedRealtimeModel` for tests.

    It serves one session at a time. After `close()` it may be connected again, and then knows nothing of the session before. A session that gets a lost
    connection back does both, and tells it the conversation by a `RealtimeModelSendHistory`.
    """

    @abstractmethod
    async def connect(self, options: RealtimeModelConfig) -> None:
        """Connect. If this fails, or is cancelled, nothing is left of it; `close()` is called all the same."""

    @abstractmethod
    def add_listener(self, listener: RealtimeModelListener) -> None:
        """Tell this one too."""

    @abstractmethod
    def remove_listener(self, listener: RealtimeModelListener) -> None:
        """Tell it nothing more; nothing happens if it was not told before."""

    @abstractmethod
    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model something."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection, and all that belongs to it. Nothing happens if there is none."""
