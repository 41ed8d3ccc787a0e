"""As `agents.tool` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent import FunctionTool as FunctionTool
    from .agent import FunctionTool as Tool
    from .agent import FunctionToolResult as FunctionToolResult
    from .agent import function_tool as function_tool

offer()
