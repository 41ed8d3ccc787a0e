"""mcp 2.x and 1.x, a client over stdio: a server that ends when its input does, and one that is deaf to that
and to SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from mcp import ClientSession, StdioServerParameters, stdio_client

import quiesce

# --8<-- [start:imports]
from quiesce import contain, own

# --8<-- [end:imports]
from quiesce.dropin import mcp as dropin

from .ways import Close, Ready, Scenario, Way, soon

SERVER = Path(__file__).with_name("standins") / "mcp_stdio.py"
NO_LOOP = "a session is not a stream: there is nothing to break out of"


# --8<-- [start:connect]
@asynccontextmanager
async def connect(server: StdioServerParameters) -> AsyncIterator[ClientSession]:
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


# --8<-- [end:connect]
@asynccontextmanager
async def connect_dropin(server: StdioServerParameters) -> AsyncIterator[ClientSession]:
    async with dropin.stdio_client(server) as (read, write), dropin.ClientSession(read, write) as session:
        await session.initialize()
        yield session


Connect = Callable[[StdioServerParameters], AbstractAsyncContextManager[ClientSession]]


async def work_until_stopped(ready: Ready, session: ClientSession) -> None:
    soon(ready)
    await session.call_tool("work", {})


async def use(connect: Connect, server: StdioServerParameters, ready: Ready) -> None:
    async with connect(server) as session:
        await work_until_stopped(ready, session)


async def open_(connect: Connect, server: StdioServerParameters) -> Close:
    stack = AsyncExitStack()
    await stack.enter_async_context(connect(server))
    return stack.aclose


# --8<-- [start:use]
async def with_session(
    server: StdioServerParameters, work: Callable[[ClientSession], Awaitable[object]]
) -> None:
    async with contain():
        held = await own(connect(server)).open()
        await work(held.value)


# --8<-- [end:use]
async def use_with(server: StdioServerParameters, ready: Ready) -> None:
    await with_session(server, partial(work_until_stopped, ready))


# --8<-- [start:open]
async def open_anywhere(server: StdioServerParameters) -> Close:
    held = await own(connect(server)).open()
    await held.value.call_tool("echo", {"text": "hello"})  # from any task
    return held.close  # from any other


# --8<-- [end:open]


def _scenario(name: str, title: str, *arguments: str) -> Scenario:
    server = StdioServerParameters(command=sys.executable, args=[str(SERVER), *arguments])
    return Scenario(
        name,
        title,
        without=Way(partial(use, connect, server), partial(open_, connect, server)),
        with_quiesce=Way(partial(use_with, server), partial(open_anywhere, server), run=quiesce.run),
        dropin=Way(partial(use, connect_dropin, server), partial(open_, connect_dropin, server)),
        impossible={"break": NO_LOOP},
    )


def polite() -> Scenario:
    return _scenario("polite", "a client over stdio")


def deaf() -> Scenario:
    return _scenario("deaf", "a client over stdio, a server that ignores EOF and SIGTERM", "deaf")
