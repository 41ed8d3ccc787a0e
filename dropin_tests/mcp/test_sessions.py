"""Sessions that any task may close, and groups of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import mcp
import pytest
from tests.world import asyncio_only

from dropin_tests.mcp.servers import made_with_the_sdk, over_http, over_stdio, processes, says_goodbye, silent
from quiesce.dropin.mcp import ClientSession, ClientSessionGroup, stdio_client
from quiesce.dropin.mcp.client.session_group import SseServerParameters, StreamableHttpParameters

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]


async def in_a_task(coro: Any) -> Any:
    return await asyncio.create_task(coro)


async def open_session(**options: Any) -> tuple[Any, ClientSession]:
    transport = stdio_client(over_stdio())
    read, write = await transport.__aenter__()
    session = await ClientSession(read, write, **options).__aenter__()
    await session.initialize()
    return transport, session


async def test_it_is_a_session_of_the_sdk() -> None:
    transport, session = await open_session()
    assert isinstance(session, mcp.ClientSession)
    await session.close()
    await transport.close()


async def test_requests_that_wait_when_it_is_closed_raise_that_it_is_closed() -> None:
    transport, session = await open_session()
    waiting = [asyncio.create_task(session.call_tool("work", {})) for _ in range(3)]
    await asyncio.sleep(0.1)
    await session.close()
    done, pending = await asyncio.wait(waiting, timeout=5)
    assert not pending
    assert [str(task.exception()) for task in done] == ["Connection closed"] * 3
    await transport.close()


async def test_requests_that_wait_when_its_transport_is_closed_raise_that_it_is_closed() -> None:
    transport, session = await open_session()
    waiting = asyncio.create_task(session.call_tool("work", {}))
    await asyncio.sleep(0.1)
    await transport.close()
    with pytest.raises(Exception, match="Connection closed"):
        await asyncio.wait_for(waiting, 5)
    assert (await session.close()).clean


async def test_a_server_that_dies_does_not_cancel_the_task_that_has_connected() -> None:
    server = over_stdio()
    server.args = ["-c", "import sys; sys.stdin.readline()"]
    with pytest.raises(ExceptionGroup) as raised:
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
    assert raised.group_contains(Exception, match="Connection closed")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    assert processes() == []


async def test_a_session_can_be_closed_by_its_own_callback() -> None:
    reports: list[Any] = []
    closed = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append(await session.close())
        closed.set()

    transport = stdio_client(made_with_the_sdk())
    read, write = await transport.__aenter__()
    session = await ClientSession(read, write).__aenter__()
    await session.initialize()
    waiting = asyncio.create_task(session.call_tool("count", {}, progress_callback=on_progress))
    await asyncio.wait_for(closed.wait(), 10)
    with pytest.raises(Exception, match="Connection closed"):
        await asyncio.wait_for(waiting, 5)
    assert (await session.close()).clean
    assert (await transport.close()).clean
    assert processes() == []


async def test_callbacks_see_the_session_and_the_context_of_the_opener() -> None:
    seen: list[Any] = []

    async def list_roots(context: Any) -> Any:
        seen.append(context.session)
        return mcp.types.ListRootsResult(roots=[])

    transport = stdio_client(made_with_the_sdk())
    read, write = await transport.__aenter__()
    session = await ClientSession(read, write, list_roots_callback=list_roots).__aenter__()
    await session.initialize()
    answer: Any = await session.call_tool("count_roots", {})
    assert answer.content[0].text == "0"
    assert seen == [session]
    await session.close()
    await transport.close()


# Groups


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with over_http() as url:
        yield url


async def test_a_group_is_connected_and_disconnected_by_any_task_in_any_order(address: str) -> None:
    servers = {
        "one": over_stdio(),
        "two": StreamableHttpParameters(url=f"{address}/mcp"),
        "three": SseServerParameters(url=f"{address}/sse"),
    }
    connected: list[str] = []
    group = ClientSessionGroup(component_name_hook=lambda name, info: f"{connected[-1]}.{name}")
    async with group:
        sessions = []
        for name, server in servers.items():
            connected.append(name)
            sessions.append(await in_a_task(group.connect_to_server(server)))
        assert {"one.echo", "two.echo", "three.echo"} <= set(group.tools)
        await in_a_task(group.disconnect_from_server(sessions[0]))
        assert processes() == []
        answer: Any = await in_a_task(group.call_tool("two.echo", {"text": "hello"}))
        assert answer.content[0].text == "hello"
        await in_a_task(group.disconnect_from_server(sessions[1]))
        answer = await group.call_tool("three.echo", {"text": "hello"})
        assert answer.content[0].text == "hello"
    assert group.report is not None
    assert group.report.clean


async def test_a_group_is_closed_by_another_task_all_at_once() -> None:
    numbers = iter(range(1000))
    group = ClientSessionGroup(component_name_hook=lambda name, info: f"{name}{next(numbers)}")
    for _ in range(2):
        await group.connect_to_server(over_stdio("deaf"))
    began = asyncio.get_running_loop().time()
    assert (await in_a_task(group.close())).clean
    assert asyncio.get_running_loop().time() - began < 7
    assert processes() == []


async def test_a_group_with_a_stack_of_its_user() -> None:
    async with AsyncExitStack() as stack:
        group = ClientSessionGroup(exit_stack=stack)
        await in_a_task(group.connect_to_server(over_stdio()))
        assert len(processes()) == 1
    assert processes() == []


async def test_a_cancelled_connect_of_a_group_leaves_nothing() -> None:
    group = ClientSessionGroup()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await group.connect_to_server(silent())
    assert processes() == []
    assert group.sessions == []
    assert (await group.close()).clean


async def test_a_cancel_of_a_group_stays_a_cancel_when_its_exit_fails() -> None:
    begun = asyncio.Event()

    async def use() -> None:
        async with ClientSessionGroup() as group:
            await group.connect_to_server(says_goodbye())
            begun.set()
            await group.call_tool("work", {})

    task = asyncio.create_task(use())
    await begun.wait()
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert processes() == []


async def test_a_group_that_connects_in_vain_raises_the_error_of_the_sdk() -> None:
    async with ClientSessionGroup() as group:
        with pytest.raises(FileNotFoundError):
            await group.connect_to_server(mcp.StdioServerParameters(command="/no/such/program"))
    assert isinstance(group, mcp.ClientSessionGroup)


async def test_a_group_that_never_connected_can_be_closed() -> None:
    assert (await ClientSessionGroup().close()).clean
