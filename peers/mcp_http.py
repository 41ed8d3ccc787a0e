"""mcp 2.x and 1.x, a client over streamable HTTP."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

import quiesce

# --8<-- [start:imports]
from quiesce import own

# --8<-- [end:imports]
from quiesce.dropin import mcp as dropin
from quiesce.dropin.mcp.client.streamable_http import streamable_http_client as owned_client

from .ways import Close, Ready, Scenario, Way, soon

URL = f"http://127.0.0.1:{os.environ.get('PEERS_MCP')}/mcp"
NO_LOOP = "a session is not a stream: there is nothing to break out of"


# --8<-- [start:connect]
@asynccontextmanager
async def connect(url: str) -> AsyncIterator[ClientSession]:
    async with streamable_http_client(url) as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        yield session


# --8<-- [end:connect]
@asynccontextmanager
async def connect_dropin(url: str) -> AsyncIterator[ClientSession]:
    async with owned_client(url) as (read, write, *_), dropin.ClientSession(read, write) as session:
        await session.initialize()
        yield session


Connect = Callable[[str], AbstractAsyncContextManager[ClientSession]]


async def work_until_stopped(ready: Ready, session: ClientSession) -> None:
    soon(ready)
    await session.call_tool("work", {})


async def use(connect: Connect, ready: Ready) -> None:
    async with connect(URL) as session:
        await work_until_stopped(ready, session)


async def open_(connect: Connect) -> Close:
    stack = AsyncExitStack()
    await stack.enter_async_context(connect(URL))
    return stack.aclose


# --8<-- [start:use]
async def with_session(url: str, work: Callable[[ClientSession], Awaitable[object]]) -> None:
    async with own(connect(url)) as session:
        await work(session)


# --8<-- [end:use]
async def use_with(ready: Ready) -> None:
    await with_session(URL, partial(work_until_stopped, ready))


# --8<-- [start:open]
async def open_anywhere(url: str) -> Close:
    held = await own(connect(url)).open()
    await held.value.call_tool("echo", {"text": "hello"})  # from any task
    return held.close  # from any other


# --8<-- [end:open]
def streamable_http() -> Scenario:
    return Scenario(
        "streamable_http",
        "a client over streamable HTTP",
        without=Way(partial(use, connect), partial(open_, connect)),
        with_quiesce=Way(use_with, lambda: open_anywhere(URL), run=quiesce.run),
        dropin=Way(partial(use, connect_dropin), partial(open_, connect_dropin)),
        impossible={"break": NO_LOOP},
    )
