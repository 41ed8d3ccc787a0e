"""MCP servers that are connected and cleaned up in one task, whichever task asks, and end with their processes."""

from __future__ import annotations

from typing import Any

from agents import mcp

from quiesce import StopReport
from quiesce.dropin.connected import Connection
from quiesce.dropin.handing import replaces


class _Connected(mcp.MCPServer):
    """Comes before a server class of the SDK, and has its `connect` and `cleanup` called in an owner task."""

    _connection: Connection[Any] | None = None

    @property
    def report(self) -> StopReport | None:
        """What the last clean-up has stopped, and what is left; None before."""
        return self._connection.report if self._connection is not None else None

    async def connect(self) -> None:
        """Connect to the server. If this raises, or you are cancelled, nothing is left half open."""
        await self.cleanup()
        connection = Connection(super().connect, super().cleanup, name=f"MCP server {self.name!r}")
        await connection.open()
        self._connection = connection

    async def cleanup(self) -> None:
        """Disconnect; when this returns, the tasks and processes of the connection have ended. From any task."""
        # The SDK also calls this itself, in the owner task, when it could not connect.
        if self._connection is None or not self._connection.is_open:
            await super().cleanup()
        if self._connection is not None:
            await self._connection.close()

    async def close(self) -> StopReport | None:
        """As `cleanup`; returns what it has stopped, and what is left."""
        await self.cleanup()
        return self.report


@replaces(mcp.MCPServerStdio)
class MCPServerStdio(_Connected, mcp.MCPServerStdio):
    """A server that is a process of ours, and ends with its whole tree."""


@replaces(mcp.MCPServerSse)
class MCPServerSse(_Connected, mcp.MCPServerSse):
    """A server over HTTP with server-sent events."""


@replaces(mcp.MCPServerStreamableHttp)
class MCPServerStreamableHttp(_Connected, mcp.MCPServerStreamableHttp):
    """A server over streamable HTTP."""
