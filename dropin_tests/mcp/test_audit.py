"""Everything public of `quiesce.dropin.mcp`, stopped at every point: nothing is left, and no clean-up is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import mcp
import pytest
from mcp.client import streamable_http
from mcp.shared.memory import create_client_server_memory_streams
from tests.kernel.audited import ledger, work

from dropin_tests.audited import audit_test
from dropin_tests.mcp import servers
from dropin_tests.mcp.served import Context, MCPServer
from quiesce import Scope
from quiesce.dropin.mcp import ClientSession, ClientSessionGroup, stdio_client
from quiesce.dropin.mcp.client.streamable_http import streamable_http_client
from quiesce.dropin.owned import owned

httpx: Any = getattr(streamable_http, "httpx2", None) or streamable_http.httpx
server: Any = MCPServer("audited")


@server.tool()
async def echo(text: str) -> str:
    """Answer."""
    return text


@server.tool(name="work")
async def work_for_a_while() -> str:
    """Take two seconds, and tidy up if stopped."""
    await work(2)
    return "worked"


@server.tool()
async def sleep() -> str:
    """Take two seconds, with nothing to tidy up."""
    await asyncio.sleep(2)
    return "slept"


@server.tool()
async def ask(context: Context) -> str:
    """Ask the client for its roots, twice."""
    for _ in range(2):
        await context.session.list_roots()
    return "asked"


@owned
@asynccontextmanager
async def in_memory() -> AsyncIterator[Any]:
    """A transport to a server in this process: the clock is not real."""
    inner = getattr(server, "_lowlevel_server", None) or server._mcp_server
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as tasks:
        tasks.start_soon(inner.run, *theirs, inner.create_initialization_options())
        try:
            yield ours
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def connected(transport: Any, **options: Any) -> AsyncIterator[ClientSession]:
    async with transport as (read, write, *_), ClientSession(read, write, **options) as session:
        await session.initialize()
        yield session
    ledger.report(session.report)
    ledger.report(transport.report)


async def list_roots(context: Any) -> Any:
    await work(1)
    return mcp.types.ListRootsResult(roots=[])


async def a_call() -> None:
    ledger.start()
    async with connected(in_memory()) as session:
        await session.call_tool("echo", {"text": "hello"})
        await session.call_tool("work", {})


async def a_call_in_which_the_server_asks() -> None:
    ledger.start()
    async with connected(in_memory(), list_roots_callback=list_roots) as session:
        await session.call_tool("ask", {})


async def a_call_with_a_limit() -> None:
    ledger.start()
    async with connected(in_memory()) as session:
        try:
            async with asyncio.timeout(1):
                await session.call_tool("work", {})
        except TimeoutError:
            return
        raise AssertionError("it was not too late")


async def a_session_that_another_task_closes_while_it_waits() -> None:
    ledger.start()
    transport = in_memory()
    async with transport as (read, write), ClientSession(read, write) as session, Scope() as scope:
        await session.initialize()
        scope.spawn(close_later, session)
        with pytest.raises(Exception, match="Connection closed"):
            await session.call_tool("work", {})
    ledger.report(session.report)
    ledger.report(transport.report)


async def close_later(session: ClientSession) -> None:
    await asyncio.sleep(1)
    ledger.report(await session.close())


async def answer(request: Any) -> Any:
    """A server over HTTP, without a network."""
    if request.method != "POST":
        return httpx.Response(405)
    message = json.loads(request.content)
    if "id" not in message:
        return httpx.Response(202)
    await asyncio.sleep(0.5)
    if message["method"] == "initialize":
        result: Any = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "audited", "version": "1"},
        }
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    else:
        result = {"content": [], "isError": False}
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": message["id"], "result": result})


@asynccontextmanager
async def over_http() -> AsyncIterator[Callable[[], Any]]:
    """Transports to it, on one client."""
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        yield partial(streamable_http_client, "http://127.0.0.1/mcp", http_client=client)


async def a_call_over_http() -> None:
    ledger.start()
    async with over_http() as transport, connected(transport()) as session:
        await session.call_tool("echo", {"text": "hello"})


async def two_that_are_closed_first_in_first_out() -> None:
    ledger.start()
    async with over_http() as transport, AsyncExitStack() as first:
        await first.enter_async_context(connected(transport()))
        async with AsyncExitStack() as second:
            session = await second.enter_async_context(connected(transport()))
            await first.aclose()
            await session.call_tool("echo", {"text": "hello"})


async def a_call_to_a_process() -> None:
    ledger.start()
    async with connected(stdio_client(servers.over_stdio())) as session:
        await session.call_tool("echo", {"text": "hello"})


async def a_group_with_a_process() -> None:
    ledger.start()
    async with ClientSessionGroup() as group:
        session = await group.connect_to_server(servers.over_stdio())
        await group.call_tool("echo", {"text": "hello"})
        await group.disconnect_from_server(session)
    ledger.report(group.report)


IN_MEMORY = [
    a_call,
    a_call_in_which_the_server_asks,
    a_call_with_a_limit,
    a_session_that_another_task_closes_while_it_waits,
    two_that_are_closed_first_in_first_out,
    a_call_over_http,
]
WITH_PROCESSES = [a_call_to_a_process, a_group_with_a_process]

if hasattr(mcp, "Client"):
    from quiesce.dropin.mcp import Client

    async def a_client() -> None:
        ledger.start()
        async with Client(server, mode="legacy") as client:
            await client.call_tool("work", {})
        ledger.report(client.report)

    async def a_client_without_messages() -> None:
        ledger.start()
        async with Client(server) as client:
            # The SDK runs the tool in the task that has called it, which is cancelled as often as it is.
            await client.call_tool("sleep", {})
        ledger.report(client.report)

    async def a_client_with_a_transport() -> None:
        ledger.start()
        async with Client(in_memory(), list_roots_callback=list_roots, mode="legacy") as client:
            await client.call_tool("ask", {})
        ledger.report(client.report)

    async def a_client_with_a_process() -> None:
        ledger.start()
        async with Client(servers.over_stdio()) as client:
            await client.call_tool("echo", {"text": "hello"})
        ledger.report(client.report)

    IN_MEMORY += [a_client, a_client_without_messages, a_client_with_a_transport]
    WITH_PROCESSES += [a_client_with_a_process]

# At the end of an event loop asyncio cancels tasks that have not begun, and anyio's groups then never await what they
# were given; nor are the streams closed that this would have closed.
NEVER_BEGAN = [
    "Server.run",
    "Server._handle_message",
    "*._run_server",
    "StreamableHTTPTransport.*",
    "*Session._receive_loop",
    "*Dispatcher.*",
    "_replay_from_opening_request.*",
]
UNCLOSED = "unclosed Unclosed <MemoryObject*Stream*"
THEIRS = {
    **{f"unawaited {name}": "a task of a group of anyio, cancelled before it began" for name in NEVER_BEGAN},
    UNCLOSED: "closed by a task of the SDK that was cancelled before it began",
}

test_stopped_anywhere_nothing_is_left = audit_test(IN_MEMORY, theirs=THEIRS)
test_stopped_anywhere_no_process_is_left = audit_test(
    WITH_PROCESSES,
    worlds=["asyncio"],
    theirs={UNCLOSED: "mcp 1.x does not close them if it is cancelled while its process starts"},
    at_shutdown=False,
    real_io=True,
    sample=4,
)
