"""MCP servers that run in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .in_process_server import METHOD_NOT_FOUND, McpAnswers, error_answer, server_of
    from .mcp_calls import McpCalls
    from .sdk_mcp import SdkMcpTool, ToolAnnotations, create_sdk_mcp_server, tool

offer()
