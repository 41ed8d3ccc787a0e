"""The MCP servers that a client names for a session: connected when it is opened, and closed with it.

They belong to the connection: if the session does not close them, the end of the connection does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quiesce import shielded
from quiesce.acp import schema as s
from quiesce.acp.exceptions import RequestError
from quiesce.agents import MCPServerError, MCPServerStdio, MCPServerStreamableHttp
from quiesce.agents.inner import MCPServer

from .session import close_each

if TYPE_CHECKING:
    from quiesce.agents.inner import NeedsApproval


async def connect_servers(named: Sequence[Any], cwd: str, needs_approval: NeedsApproval) -> list[MCPServer]:
    """Connect to all of them and return them; if one fails, close the others and raise its error."""
    connected: list[MCPServer] = []
    try:
        for description in named:
            server = _server(description, cwd, needs_approval)
            await server.connect()
            connected.append(server)
    except BaseException as error:
        # Also on a cancel: without a session, nothing would close them before the connection ends.
        if connected:
            await shielded(close_each, iter(connected))
        if isinstance(error, (MCPServerError, ImportError)):
            raise RequestError.internal_error({"details": str(error)}) from error
        raise
    return connected


def _server(description: Any, cwd: str, needs_approval: NeedsApproval) -> MCPServer:
    if isinstance(description, s.McpServerStdio):
        params: dict[str, Any] = {
            "command": description.command,
            "args": description.args,
            "env": {variable.name: variable.value for variable in description.env},
            "cwd": cwd,
        }
        return MCPServerStdio(
            params, cache_tools_list=True, name=description.name, needs_approval=needs_approval
        )
    if isinstance(description, s.HttpMcpServer):
        params = {
            "url": description.url,
            "headers": {header.name: header.value for header in description.headers},
        }
        return MCPServerStreamableHttp(
            params, cache_tools_list=True, name=description.name, needs_approval=needs_approval
        )
    kind = getattr(description, "type", type(description).__name__)
    raise RequestError.invalid_params(
        {"mcpServers": f"this agent does not support MCP servers of type {kind!r}: see its mcpCapabilities"}
    )
