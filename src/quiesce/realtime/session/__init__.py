"""One session: its task, tool calls, guardrails, history and reconnects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .runner import RealtimeRunner
    from .session import RealtimeSession, RealtimeSessionClosed

offer()
