"""As `agents.mcp.util` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .tool_filter import create_static_tool_filter as create_static_tool_filter

offer()
