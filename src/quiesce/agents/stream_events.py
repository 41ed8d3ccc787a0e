"""As `agents.stream_events` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .run import AgentUpdatedStreamEvent as AgentUpdatedStreamEvent
    from .run import RawResponseEvent as RawResponsesStreamEvent
    from .run import RunItemStreamEvent as RunItemStreamEvent
    from .run import StreamEvent as StreamEvent

offer()
