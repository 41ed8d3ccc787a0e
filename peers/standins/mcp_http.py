"""A streamable-HTTP MCP server, made with the SDK itself (either major): `mcp_http.py`, prints its port."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn

server: Any
try:
    from mcp.server import MCPServer  # 2.x

    server = MCPServer("stand-in")
except ImportError:
    from mcp.server.fastmcp import FastMCP  # 1.x

    server = FastMCP("stand-in")


@server.tool()
async def echo(text: str) -> str:
    """Answer."""
    return text


@server.tool()
async def work() -> str:
    """Take a minute."""
    await asyncio.sleep(60)
    return "done"


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main())
