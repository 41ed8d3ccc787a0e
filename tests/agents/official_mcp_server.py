"""The official MCP server, over stdio or, with the descriptor of a bound socket as argument, over HTTP. On whichever major is installed."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import anyio


def make(port: int) -> Any:
    try:
        from mcp.server import MCPServer

        return MCPServer("official")
    except ImportError:
        from mcp.server.fastmcp import FastMCP

        return FastMCP("official", log_level="WARNING", port=port)


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def work(log: str) -> str:
    """Take for ever; write to a file that it has begun, and that it was cancelled."""
    Path(log).write_text("begun")  # noqa: ASYNC240
    try:
        await anyio.sleep_forever()
    finally:
        Path(log).write_text("cancelled")  # noqa: ASYNC240
    return "never"


def main() -> None:
    bound = socket.socket(fileno=int(sys.argv[1])) if len(sys.argv) > 1 else None
    server = make(bound.getsockname()[1] if bound else 0)
    server.tool()(add)
    server.tool()(work)
    if bound is None:
        server.run()
        return
    import uvicorn

    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="warning")).run([bound])


if __name__ == "__main__":
    main()
