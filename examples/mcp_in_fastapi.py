"""MCP clients in FastAPI: opened in one request, used from others, closed in any order, the last one at shutdown.

    python examples/mcp_in_fastapi.py       # needs fastapi, uvicorn, and mcp 1.x or 2.x

An MCP client over stdio holds a task group. Entered in one request and left in another it raises "Attempted
to exit cancel scope in a different task", and its server may stay. `own` keeps it in a task of its own, which
belongs to the server's scope.

The program serves itself, asks itself, stops itself, and exits 0 if both MCP servers have ended and nothing was left.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import uvicorn
from fastapi import FastAPI, Request
from mcp import ClientSession, StdioServerParameters, stdio_client

from quiesce import Held, StopReport, own, to_thread
from quiesce.asgi import lifespan, server_scope

SERVER = StdioServerParameters(command=sys.executable, args=[__file__, "serve"])
reports: list[StopReport] = []
clients: dict[str, Held[ClientSession]] = {}
app = FastAPI(lifespan=lifespan(on_stop=reports.append, signals=False))


@asynccontextmanager
async def connect() -> AsyncIterator[ClientSession]:
    async with stdio_client(SERVER) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


@app.post("/clients/{name}")
async def open_client(name: str, request: Request) -> str:
    clients[name] = await own(connect(), name=name, scope=server_scope(request)).open()
    return "open"


@app.get("/clients/{name}")
async def ask(name: str) -> int:
    answer = await clients[name].value.call_tool("process_id", {})
    return int(answer.content[0].text)


@app.delete("/clients/{name}")
async def close_client(name: str) -> str:
    reports.append(await clients.pop(name).close())
    return "closed"


# The rest plays it -------------------------------------------------------------------------------------------


async def play() -> bool:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))

    def send(method: str, name: str) -> Any:
        with urlopen(
            UrlRequest(f"http://127.0.0.1:{port}/clients/{name}", method=method), timeout=30
        ) as answer:
            return json.load(answer)

    async def request(method: str, name: str) -> Any:
        return await to_thread(send, method, name)

    for name in ("first", "second"):
        print(f"{name}: {await request('POST', name)}")
    first, second, again = await asyncio.gather(
        *(request("GET", name) for name in ("first", "second", "first"))
    )
    print(f"used from three requests at once: processes {first}, {second} and {again}")
    print(
        f"first: {await request('DELETE', 'first')}, before the second: process {first} lives: {lives(first)}"
    )
    print(f"second: answers still, as process {await request('GET', 'second')}")
    server.should_exit = True
    await serving
    print(f"the server has shut down: process {second} lives: {lives(second)}")
    for report in reports:
        print(report)
    is_clean = len(reports) == 2 and all(report.clean for report in reports)
    return is_clean and first == again != second and not lives(first) and not lives(second)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def serve_tools() -> None:
    """The MCP server, on whichever major is installed."""
    tools: Any
    try:
        from mcp.server import MCPServer

        tools = MCPServer("example")
    except ImportError:
        from mcp.server.fastmcp import FastMCP

        tools = FastMCP("example", log_level="WARNING")
    tools.tool(name="process_id")(os.getpid)
    tools.run()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve_tools()
    else:
        sys.exit(0 if asyncio.run(play()) else 1)
