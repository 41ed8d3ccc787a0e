"""As `agents.run_context` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent import RunContextWrapper as AgentHookContext
    from .agent import RunContextWrapper as RunContextWrapper

offer()
