"""What should be silent when its root is cancelled: the task groups of asyncio and anyio, and the newest `mcp`.

A tool that finds something everywhere finds nothing. These are structured, and the audit has nothing to say.
"""

from __future__ import annotations

import asyncio

import anyio
from mcp import ClientSession
from mcp.client import Client
from mcp.client._memory import InMemoryTransport
from mcp.server import MCPServer


async def asyncio_task_group() -> None:
    async with asyncio.TaskGroup() as group:
        for seconds in (1, 2, 3):
            group.create_task(asyncio.sleep(seconds))
        await asyncio.sleep(2)


async def nested_asyncio_task_groups() -> None:
    async def inner() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
            group.create_task(asyncio.sleep(2))

    async with asyncio.TaskGroup() as group:
        group.create_task(inner())
        group.create_task(inner())


async def anyio_task_group() -> None:
    send, receive = anyio.create_memory_object_stream[int](1)

    async def produce() -> None:
        async with send:
            for number in range(3):
                await anyio.sleep(1)
                await send.send(number)

    async def consume() -> None:
        async with receive:
            async for _ in receive:
                await anyio.sleep(1)

    async with send, receive, anyio.create_task_group() as group:
        group.start_soon(produce)
        group.start_soon(consume)


async def nested_anyio_task_groups() -> None:
    async def inner() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 1)
            group.start_soon(anyio.sleep, 2)

    async with anyio.create_task_group() as group:
        group.start_soon(inner)
        with anyio.move_on_after(1.5):
            await inner()


async def mcp_client_and_server() -> None:
    server = MCPServer("greeter")

    @server.tool()
    async def greet(name: str) -> str:
        await anyio.sleep(1)
        return f"hello {name}"

    async with Client(server) as client:
        await client.list_tools()
        result = await client.call_tool("greet", {"name": "world"})
        assert not result.is_error, result


async def mcp_over_memory_streams() -> None:
    server = MCPServer("greeter")

    @server.tool()
    async def greet(name: str) -> str:
        await anyio.sleep(1)
        return f"hello {name}"

    async with InMemoryTransport(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        result = await session.call_tool("greet", {"name": "world"})
        assert not result.is_error, result
