"""The official MCP server, over stdio or, with a port as argument, over HTTP. On whichever major is installed."""

from __future__ import annotations

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
    """Take for ever; write to a file that it was cancelled."""
    try:
        await anyio.sleep_forever()
    finally:
        Path(log).write_text("cancelled")  # noqa: ASYNC240
    return "never"


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = make(port)
    server.tool()(add)
    server.tool()(work)
    if not port:
        server.run()
        return
    import uvicorn

    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
