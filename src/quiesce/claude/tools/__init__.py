"""MCP servers that run in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .configured_server import server_of
    from .mcp_answers import McpAnswers, error_answer
    from .mcp_calls import McpCalls
    from .sdk_mcp import SdkMcpTool, ToolAnnotations, create_sdk_mcp_server, tool

offer()
