"""Agents and MCP servers that any task enters and exits, in any order, and whose processes end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic_ai.mcp
import pytest
from fastmcp.client.transports import StdioTransport
from tests.world import asyncio_only

import quiesce
from dropin_tests.pydantic_ai.made_up import Scripted, call, say
from quiesce.dropin.pydantic_ai import Agent
from quiesce.dropin.pydantic_ai.mcp import MCPToolset, load_mcp_toolsets

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]

SERVER = Path(__file__).parent.parent.parent / "peers" / "standins" / "mcp_stdio.py"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert processes() == []


def server(kind: str = "polite", cls: Any = MCPToolset) -> Any:
    return cls(StdioTransport(sys.executable, [str(SERVER), kind]))


def processes() -> list[str]:
    """The command lines of our children and theirs, but for the guard of quiesce."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_text()
        except OSError:
            continue
        if SERVER.name in command and (int(fields[1]) in (os.getpid(), 1)):
            found.append(command)
    return found


def caller(*toolsets: Any, **options: Any) -> Agent:
    model = Scripted([call("echo", text="hello")], [say("done")], **options)
    return Agent(model, toolsets=toolsets)


async def in_a_task(coro: Any) -> Any:
    return await asyncio.create_task(coro)


@pytest.mark.parametrize("kind", [pydantic_ai.mcp.MCPToolset, MCPToolset], ids=["theirs", "ours"])
async def test_a_server_that_a_run_has_started_ends_with_the_run(kind: Any) -> None:
    result = await caller(server(cls=kind)).run("Go.")
    assert result.output == "done"
    assert processes() == []


@pytest.mark.parametrize("kind", [pydantic_ai.mcp.MCPToolset, MCPToolset], ids=["theirs", "ours"])
async def test_an_agent_is_entered_in_one_task_and_exited_in_another(kind: Any) -> None:
    agent = caller(server(cls=kind))
    await in_a_task(agent.__aenter__())
    assert (await agent.run("Go.")).output == "done"
    assert len(processes()) == 1
    await in_a_task(agent.__aexit__(None, None, None))
    assert processes() == []
    assert agent.report is not None


async def test_two_are_exited_first_in_first_out_and_one_is_deaf() -> None:
    first, second = server("deaf"), server()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert len(await second.list_tools()) > 0
    await second.__aexit__(None, None, None)


async def test_what_several_have_entered_is_closed_by_the_last() -> None:
    one = server()
    async with one:
        first = await one.list_tools()
        await in_a_task(one.__aenter__())
        await one.__aexit__(None, None, None)
        assert one.is_running
        assert len(await one.list_tools()) == len(first)
    assert not one.is_running
    assert processes() == []
    async with one:  # and once more
        assert len(await one.list_tools()) == len(first)


async def test_close_ends_it_for_all_who_have_entered_it() -> None:
    one = server()
    async with one:
        report = await in_a_task(one.close())
        assert processes() == []
        assert report.clean
    agent = caller(one)
    async with agent, agent:
        await agent.close()
        assert processes() == []
    assert (await server().close()).clean


async def test_runs_at_the_same_time_share_a_server_and_one_that_is_stopped_does_not_take_it_away() -> None:
    one = server()
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(60)

    short, long = caller(one, first=wait), caller(one, first=lambda: asyncio.sleep(1.5))
    stopped = asyncio.create_task(short.run("Go."))
    await begun.wait()
    going_on = asyncio.create_task(long.run("Go."))
    await asyncio.sleep(0.5)
    stopped.cancel()
    assert (await going_on).output == "done"
    await asyncio.wait([stopped])
    assert processes() == []


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_run_that_is_stopped_has_ended_a_server_that_does_not_listen(times: int) -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(caller(server("deaf"), first=wait).run("Go."))
    await begun.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes() == []


async def test_a_cancelled_start_leaves_no_process() -> None:
    silent = f"import time; time.sleep(1000)  # in place of {SERVER.name}"
    one: Any = MCPToolset(StdioTransport(sys.executable, ["-c", silent]))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await one.__aenter__()
    assert processes() == []
    assert not one.is_running


async def test_a_server_that_cannot_be_started_is_the_error_of_the_sdk() -> None:
    errors = []
    for kind in (pydantic_ai.mcp.MCPToolset, MCPToolset):
        one: Any = kind(StdioTransport("/no/such/program", []))
        with pytest.raises(Exception, match="No such file or directory") as raised:
            await one.__aenter__()
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]


async def test_servers_of_a_file_are_ours_too(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": [str(SERVER), "polite"]}
    path.write_text(json.dumps({"mcpServers": {"one": entry}}))
    (toolset,) = load_mcp_toolsets(path)
    agent: Any = Agent(Scripted([call("one_echo", text="x")], [say("done")]), toolsets=[toolset])
    found: list[Any] = []
    toolset.apply(found.append)
    assert [type(one) for one in found] == [MCPToolset]
    assert (await agent.run("Go.")).output == "done"


async def test_an_agent_outlives_the_scope_in_which_it_was_first_entered() -> None:
    agent = caller(server())
    async with quiesce.Scope():
        await agent.__aenter__()
    assert (await agent.run("Go.")).output == "done"
    await agent.__aexit__(None, None, None)
