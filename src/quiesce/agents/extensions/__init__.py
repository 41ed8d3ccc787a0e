"""What `agents.extensions` of OpenAI's Agents SDK has for handoffs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from . import handoff_filters as handoff_filters
    from . import handoff_prompt as handoff_prompt

offer()
