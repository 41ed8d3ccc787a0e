"""`Client` of mcp 2.x."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import mcp
import pytest
from tests.world import asyncio_only

from dropin_tests.mcp.served import server
from dropin_tests.mcp.servers import made_with_the_sdk, over_http, over_stdio, processes, silent
from quiesce.dropin.mcp import Client, stdio_client

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with over_http() as url:
        yield url


async def in_a_task(coro: Any) -> Any:
    return await asyncio.create_task(coro)


@pytest.mark.parametrize("kind", ["url", "stdio", "transport", "in process", "in process, legacy"])
async def test_entered_in_one_task_used_in_a_second_and_closed_in_a_third(address: str, kind: str) -> None:
    client = {
        "url": lambda: Client(f"{address}/mcp"),
        "stdio": lambda: Client(made_with_the_sdk()),
        "transport": lambda: Client(stdio_client(made_with_the_sdk())),
        "in process": lambda: Client(server),
        "in process, legacy": lambda: Client(server, mode="legacy"),
    }[kind]()
    assert isinstance(client, mcp.Client)
    assert await in_a_task(client.__aenter__()) is client
    answer: Any = await in_a_task(client.call_tool("echo", {"text": "hello"}))
    assert answer.content[0].text == "hello"
    waiting = asyncio.create_task(client.call_tool("work", {}))
    await asyncio.sleep(0.2)
    assert (await in_a_task(client.close())).clean
    if kind == "in process":  # without messages: the tool runs in the task that has called it
        waiting.cancel()
        await asyncio.wait({waiting})
    else:
        with pytest.raises(Exception, match="Connection closed"):
            await asyncio.wait_for(waiting, 5)
    assert client.report is not None
    assert processes() == []


async def test_a_deaf_server_has_ended_when_a_second_cancel_is_raised() -> None:
    begun = asyncio.Event()

    async def use() -> None:
        async with Client(over_stdio("deaf")) as client:
            begun.set()
            await client.call_tool("work", {})

    task = asyncio.create_task(use())
    await begun.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.wait({task}, timeout=0.25)
    await asyncio.wait({task})
    assert task.cancelled()
    assert processes() == []


async def test_a_timeout_while_it_connects_leaves_no_process() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), Client(silent()):
            raise AssertionError("it cannot be connected")
    assert processes() == []
