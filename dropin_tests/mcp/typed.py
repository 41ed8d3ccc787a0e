"""A program of a user, for type checkers: the types are the SDK's, and ours where we add something."""

from __future__ import annotations

from typing import assert_type

import mcp

from quiesce import StopReport
from quiesce.dropin.mcp import (
    ClientSession,
    ClientSessionGroup,
    ListToolsResult,
    StdioServerParameters,
    stdio_client,
)
from quiesce.dropin.mcp.client.sse import sse_client
from quiesce.dropin.mcp.client.stdio import get_default_environment
from quiesce.dropin.mcp.client.streamable_http import streamable_http_client


async def use_stdio() -> None:
    server = StdioServerParameters(command="server", env=get_default_environment())
    transport = stdio_client(server)
    async with transport as (read, write), ClientSession(read, write) as session:
        assert_type(session, ClientSession)
        as_theirs: mcp.ClientSession = session
        await session.initialize()
        assert_type(await session.list_tools(), mcp.ListToolsResult)
        tools: ListToolsResult = await as_theirs.list_tools()
        print(tools, session.report)
    assert_type(await session.close(), StopReport)
    assert_type(await transport.close(), StopReport)


async def use_http() -> None:
    transport = streamable_http_client("http://127.0.0.1/mcp", terminate_on_close=False)
    async with transport as streams, ClientSession(streams[0], streams[1]) as session:
        await session.send_ping()
    assert_type(transport.report, StopReport | None)
    async with sse_client("http://127.0.0.1/sse", headers={"a": "b"}) as (read, write):
        ClientSession(read, write)


async def use_a_group() -> None:
    async with ClientSessionGroup() as group:
        as_theirs: mcp.ClientSessionGroup = group
        session = await as_theirs.connect_to_server(StdioServerParameters(command="server"))
        await group.disconnect_from_server(session)
    assert_type(await group.close(), StopReport)
