"""A server made with the SDK itself, of either major: `served.py stdio`, or `served.py http`, which prints its port.

Over HTTP it is at /mcp (streamable HTTP) and at /sse (server-sent events).
"""

import asyncio
import socket
import sys
from typing import Any

import uvicorn

try:
    from mcp.server.mcpserver import Context, MCPServer  # 2.x
except ImportError:
    from mcp.server.fastmcp import Context  # 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer

server: Any = MCPServer("served")


@server.tool()
async def echo(text: str) -> str:
    """Answer."""
    return text


@server.tool()
async def work() -> str:
    """Take a minute."""
    await asyncio.sleep(60)
    return "done"


@server.tool()
async def count(context: Context) -> str:
    """Count for a minute, and say so."""
    for number in range(60):
        await context.report_progress(number, 60)
        await asyncio.sleep(1)
    return "done"


@server.tool()
async def count_roots(context: Context) -> str:
    """Ask the client for its roots."""
    return str(len((await context.session.list_roots()).roots))


async def serve_http() -> None:
    from starlette.applications import Starlette

    streamable, events = server.streamable_http_app(), server.sse_app()
    app = Starlette(routes=[*streamable.routes, *events.routes], lifespan=streamable.router.lifespan_context)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        asyncio.run(serve_http())
    else:
        server.run()
