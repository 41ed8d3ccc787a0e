"""What the parts of a session share.

A session is a `SessionTask`, which owns a few parts: its tool calls, its guardrails, its reconnecting. The
parts need the session, and the session needs the parts. So the parts know this class only, which knows none
of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from quiesce.agents import RunContextWrapper
from quiesce.realtime.words import (
    RealtimeError,
    RealtimeEventInfo,
    RealtimeHistoryUpdated,
    RealtimeLimits,
    RecentSet,
)

from .history import History
from .received_audio import ReceivedAudio

if TYPE_CHECKING:
    from quiesce import Scope
    from quiesce.kernel.inner import Backend, ScopeCore
    from quiesce.realtime.words import (
        RealtimeModel,
        RealtimeModelSendEvent,
        RealtimePlaybackTracker,
        RealtimeRunConfig,
        RealtimeSessionEvent,
    )
    from quiesce.realtime.words import model_events as events

    from .active_agent import ActiveAgent, AgentActivation
    from .event_buffer import EventBuffer


class SessionState(ABC):
    """The state of a session, and what its parts may ask of it."""

    backend: Backend
    core: ScopeCore
    work: Scope  # owns the tasks of tools and guardrails
    model: RealtimeModel
    activation: AgentActivation
    active_agent: ActiveAgent
    buffer: EventBuffer
    tracker: RealtimePlaybackTracker  # the user's, or that of the session

    def __init__(self, context: Any, run_config: RealtimeRunConfig) -> None:
        self.context = RunContextWrapper(context)
        self.info = RealtimeEventInfo(self.context)
        self.limits = run_config.get("limits") or RealtimeLimits()
        self.history = History()
        self.received_audio = ReceivedAudio()
        self.blocked_items = RecentSet()  # a guardrail was triggered by them
        self.connected = False
        self.connection_ended = False  # although events that arrived before may still have to be handled
        self.ignores_model = False  # what arrives belongs to a connection that was replaced
        self.closing_errors: list[tuple[str, BaseException]] = []  # which would not be seen otherwise
        self._responses: dict[
            str | None, ActiveAgent
        ] = {}  # the active ones, each with its agent at the start

    @property
    @abstractmethod
    def closing(self) -> bool:
        """Whether a stop was requested, so that nothing new may begin."""

    @abstractmethod
    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Send something to the model, once it is connected; do nothing if the session is closing."""

    @abstractmethod
    async def send_now(self, event: RealtimeModelSendEvent) -> None:
        """Send something to the connected model."""

    @abstractmethod
    async def connect_model(self) -> None:
        """Connect the model, with the settings of the active agent."""

    @abstractmethod
    async def switch_to(self, agent: ActiveAgent) -> None:
        """Make another agent the active one, unless the model refuses its settings."""

    @abstractmethod
    def interrupted(self, event: events.RealtimeModelAudioInterruptedEvent) -> None:
        """Stop the playing of a content."""

    @abstractmethod
    def turn_ended(self, event: events.RealtimeModelTurnEndedEvent) -> None:
        """Take note that a response has ended."""

    @abstractmethod
    def end(self, error: Exception | None) -> None:
        """End the session, because there is no connection any more."""

    def add(self, event: RealtimeSessionEvent) -> None:
        """Add an event for the readers."""
        self.buffer.add(event)

    def failed(self, error: BaseException) -> None:
        """Add an event about something that failed in the background."""
        self.add(RealtimeError(error, self.info))

    def history_changed(self) -> None:
        """Add an event with the whole history."""
        self.add(RealtimeHistoryUpdated(list(self.history.items), self.info))

    def set_output(self, call_id: str, output: str) -> None:
        """Note the output of a tool call in the history."""
        if self.history.set_output(call_id, output):
            self.history_changed()

    def active_responses(self) -> list[str | None]:
        """Return the responses that have begun and not ended."""
        return list(self._responses)

    def agent_of(self, response_id: str | None) -> ActiveAgent:
        """Return the agent of a response, with the tools that it had: a handoff during it changes neither."""
        return self._responses.get(response_id, self.active_agent)
