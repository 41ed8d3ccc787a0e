"""MCP servers, whose tools an agent may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .server import MCPServer, MCPServerError, MCPServerStdio, MCPServerStreamableHttp, MCPToolError
    from .tool_filter import create_static_tool_filter

offer()
