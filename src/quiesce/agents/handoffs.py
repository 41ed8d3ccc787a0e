"""As `agents.handoffs` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent import Handoff as Handoff
    from .agent import HandoffInputData as HandoffInputData
    from .agent import handoff as handoff

offer()
