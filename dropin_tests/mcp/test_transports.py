"""Transports that any task may close, in any order, and that end with their processes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp
import mcp.client.sse
import mcp.client.stdio
import mcp.client.streamable_http
import pytest
from tests.world import asyncio_only

from dropin_tests.mcp.servers import made_with_the_sdk, over_http, over_stdio, processes, silent
from quiesce import Grace, Scope, current_scope
from quiesce.dropin.mcp import ClientSession, StdioServerParameters, stdio_client
from quiesce.dropin.mcp.client.sse import sse_client
from quiesce.dropin.mcp.client.streamable_http import streamable_http_client

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]

CONNECTED: dict[str, Callable[[str], Any]] = {
    "/mcp": lambda address: streamable_http_client(f"{address}/mcp"),
    "/sse": lambda address: sse_client(f"{address}/sse"),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with over_http() as url:
        yield url


@asynccontextmanager
async def connect(transport: Any) -> AsyncIterator[ClientSession]:
    """As every program does it."""
    async with transport as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def in_a_task(coro: Any) -> Any:
    return await asyncio.create_task(coro)


async def echo(session: Any, text: str) -> str:
    answer = await session.call_tool("echo", {"text": text})
    return str(answer.content[0].text)


async def test_entered_in_one_task_used_in_a_second_and_closed_in_a_third() -> None:
    transport = stdio_client(over_stdio())
    read, write = await in_a_task(transport.__aenter__())
    session = await in_a_task(ClientSession(read, write).__aenter__())
    await in_a_task(session.initialize())
    assert await in_a_task(echo(session, "hello")) == "hello"
    assert (await in_a_task(session.close())).clean
    before = transport.report
    assert (await in_a_task(transport.close())).clean
    assert (before, transport.report is None) == (None, False)
    assert processes() == []


async def test_a_stack_is_closed_by_another_task_and_the_opener_goes_on() -> None:
    opened, done = asyncio.Event(), asyncio.Event()
    stack = AsyncExitStack()

    async def innocent() -> str:
        await stack.enter_async_context(connect(stdio_client(over_stdio())))
        opened.set()
        await done.wait()
        return "done"

    opener = asyncio.create_task(innocent())
    await opened.wait()
    await in_a_task(stack.aclose())
    assert processes() == []
    done.set()
    assert await opener == "done"


async def test_two_are_closed_first_in_first_out() -> None:
    first, second = AsyncExitStack(), AsyncExitStack()
    await first.enter_async_context(connect(stdio_client(over_stdio())))
    session = await second.enter_async_context(connect(stdio_client(made_with_the_sdk())))
    await first.aclose()
    assert await echo(session, "still there") == "still there"
    await second.aclose()
    assert processes() == []


async def test_a_deaf_server_ends_with_its_child() -> None:
    async with stdio_client(over_stdio("deaf")) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        # Linux shows the environment of a process a moment after it was started.
        while len(processes()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert processes() == []


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_cancelled_often_a_deaf_server_has_ended_when_the_cancel_is_raised(times: int) -> None:
    begun = asyncio.Event()

    async def use() -> None:
        async with connect(stdio_client(over_stdio("deaf"))) as session:
            begun.set()
            await session.call_tool("work", {})

    task = asyncio.create_task(use())
    await begun.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.wait({task}, timeout=0.25)
    await asyncio.wait({task})
    assert task.cancelled()
    assert processes() == []


async def test_a_timeout_while_it_connects_leaves_no_process() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), connect(stdio_client(silent())):
            raise AssertionError("it cannot be connected")
    assert processes() == []


async def test_a_timeout_in_the_block_is_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), connect(stdio_client(over_stdio())) as session:
            await session.call_tool("work", {})
    assert processes() == []


async def test_close_takes_a_grace_and_names_what_it_stopped() -> None:
    transport = stdio_client(over_stdio("deaf"))
    read, write = await transport.__aenter__()
    began = asyncio.get_running_loop().time()
    report = await transport.close(grace=Grace(cancel=0.1, terminate=0.1, kill=1))
    assert report.clean
    assert asyncio.get_running_loop().time() - began < 1.5
    assert processes() == []
    await read.aclose()  # so little time is not enough for the SDK to do it
    await write.aclose()


async def test_the_scope_around_it_closes_it() -> None:
    async with Scope():
        transport = stdio_client(over_stdio())
        read, write = await transport.__aenter__()
        await (session := ClientSession(read, write)).__aenter__()
        await session.initialize()
        await current_scope().close()
    assert transport.report is not None
    assert session.report is not None
    assert processes() == []


async def test_one_that_is_dropped_is_closed_with_a_warning() -> None:
    async with Scope():
        transport = stdio_client(over_stdio())
        await transport.__aenter__()
        with pytest.warns(ResourceWarning, match="'stdio_client', made at .*, was dropped without close"):  # noqa: PT031
            del transport
            gc.collect()
    assert processes() == []


async def test_one_that_was_never_entered_can_be_closed() -> None:
    assert (await stdio_client(over_stdio()).close()).clean
    assert (await streamable_http_client("http://127.0.0.1:1").close()).clean


async def test_one_is_used_once() -> None:
    transport = stdio_client(over_stdio())
    async with transport:
        with pytest.raises(RuntimeError, match="stdio_client was entered before"):
            await transport.__aenter__()
    assert processes() == []


@pytest.mark.parametrize("kind", [mcp.stdio_client, stdio_client], ids=["theirs", "ours"])
async def test_errors_are_those_of_the_sdk(kind: Any) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        async with kind(StdioServerParameters(command="/no/such/program")):
            pass
    with pytest.raises(ExceptionGroup) as raised:
        async with kind(over_stdio()):
            raise KeyError("row")
    assert raised.group_contains(KeyError)
    with pytest.raises(TypeError, match="server"):
        kind()
    assert processes() == []


@pytest.mark.parametrize("path", CONNECTED)
async def test_over_http_closed_by_another_task_while_a_third_waits(address: str, path: str) -> None:
    transport = CONNECTED[path](address)
    read, write, *_ = await in_a_task(transport.__aenter__())
    session = await in_a_task(ClientSession(read, write).__aenter__())
    await session.initialize()
    assert await in_a_task(echo(session, "hello")) == "hello"
    waiting = asyncio.create_task(session.call_tool("work", {}))
    await asyncio.sleep(0.2)
    assert (await in_a_task(session.close())).clean
    with pytest.raises(Exception, match="Connection closed"):
        await asyncio.wait_for(waiting, 5)
    assert (await in_a_task(transport.close())).clean


@pytest.mark.parametrize("path", CONNECTED)
async def test_over_http_cancelled_twice(address: str, path: str) -> None:
    begun = asyncio.Event()

    async def use() -> None:
        async with connect(CONNECTED[path](address)) as session:
            begun.set()
            await session.call_tool("work", {})

    task = asyncio.create_task(use())
    await begun.wait()
    await asyncio.sleep(0.1)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.parametrize("path", CONNECTED)
async def test_over_http_two_are_closed_first_in_first_out(address: str, path: str) -> None:
    first, second = AsyncExitStack(), AsyncExitStack()
    await first.enter_async_context(connect(CONNECTED[path](address)))
    session = await second.enter_async_context(connect(CONNECTED[path](address)))
    await first.aclose()
    assert await echo(session, "still there") == "still there"
    await second.aclose()


async def test_every_transport_is_the_same_wherever_it_is_found() -> None:
    import quiesce.dropin.mcp as ours

    assert ours.client.stdio.stdio_client is stdio_client
    assert ours.client.streamable_http.streamable_http_client is streamable_http_client
    assert ours.client.sse.sse_client is sse_client
    assert stdio_client is not mcp.stdio_client
    assert ours.client.stdio.get_default_environment is mcp.client.stdio.get_default_environment
    old = getattr(mcp.client.streamable_http, "streamablehttp_client", None)
    assert (getattr(ours.client.streamable_http, "streamablehttp_client", None) is None) == (old is None)
    if old is not None:
        assert ours.client.streamable_http.streamablehttp_client is not old
