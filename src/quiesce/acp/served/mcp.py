"""The MCP servers that a client names for a session: connected with it, and closed with it.

They belong to the connection: whatever becomes of the session, they end with that at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quiesce import shielded
from quiesce.acp import schema as s
from quiesce.acp.exceptions import RequestError
from quiesce.agents import MCPServerError, MCPServerStdio, MCPServerStreamableHttp
from quiesce.agents.inner import MCPServer

if TYPE_CHECKING:
    from quiesce.agents.inner import NeedsApproval


async def connect_servers(named: Sequence[Any], cwd: str, needs_approval: NeedsApproval) -> list[MCPServer]:
    """All of them, connected; if one cannot be, none is, and the error names it."""
    connected: list[MCPServer] = []
    try:
        for one in named:
            server = _server(one, cwd, needs_approval)
            await server.connect()
            connected.append(server)
    except BaseException as error:
        if connected:
            await shielded(_close, connected)
        if isinstance(error, (MCPServerError, ImportError)):
            raise RequestError.internal_error({"details": str(error)}) from error
        raise
    return connected


async def _close(servers: Sequence[MCPServer]) -> None:
    for server in servers:
        await server.close()


def _server(named: Any, cwd: str, needs_approval: NeedsApproval) -> MCPServer:
    if isinstance(named, s.McpServerStdio):
        params: dict[str, Any] = {
            "command": named.command,
            "args": named.args,
            "env": {one.name: one.value for one in named.env},
            "cwd": cwd,
        }
        return MCPServerStdio(params, cache_tools_list=True, name=named.name, needs_approval=needs_approval)
    if isinstance(named, s.HttpMcpServer):
        params = {"url": named.url, "headers": {one.name: one.value for one in named.headers}}
        return MCPServerStreamableHttp(
            params, cache_tools_list=True, name=named.name, needs_approval=needs_approval
        )
    kind = getattr(named, "type", type(named).__name__)
    raise RequestError.invalid_params(
        {"mcpServers": f"this agent connects to no MCP server of type {kind!r}: see its mcpCapabilities"}
    )
