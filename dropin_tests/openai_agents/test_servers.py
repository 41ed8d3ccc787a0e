"""MCP servers that any task connects and cleans up, in any order, and whose processes end."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import agents.mcp
import pytest
from tests.world import asyncio_only

from quiesce.dropin.agents import Agent, Runner
from quiesce.dropin.agents.mcp import MCPServerManager, MCPServerStdio

from .made_up import UNTRACED, Scripted, call, say

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]

SERVER = Path(__file__).parent.parent.parent / "peers" / "standins" / "mcp_stdio.py"


def server(kind: str = "polite") -> MCPServerStdio:
    return MCPServerStdio(
        {"command": sys.executable, "args": [str(SERVER), kind]}, client_session_timeout_seconds=30
    )


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


async def in_a_task(coro: object) -> object:
    return await asyncio.create_task(coro)  # type: ignore[arg-type]


async def test_connected_in_one_task_used_in_another_and_cleaned_up_in_a_third() -> None:
    one = server()
    await in_a_task(one.connect())
    assert "echo" in [tool.name for tool in await one.list_tools()]
    await in_a_task(one.cleanup())
    assert one.report is not None
    assert one.report.clean
    assert processes() == []


async def test_two_are_cleaned_up_first_in_first_out_and_one_is_deaf() -> None:
    first, second = server("deaf"), server()
    await first.connect()
    await second.connect()
    await first.cleanup()
    assert len(await second.list_tools()) > 0
    await second.cleanup()
    assert processes() == []


async def test_a_server_can_be_connected_again() -> None:
    one = server()
    async with one:
        await one.cleanup()
        await one.connect()
        assert len(await one.list_tools()) > 0
    await one.cleanup()
    assert processes() == []


async def test_a_server_that_cannot_be_started_is_the_error_of_the_sdk() -> None:
    for kind in (agents.mcp.MCPServerStdio, MCPServerStdio):
        one = kind({"command": "/no/such/program"})
        with pytest.raises(FileNotFoundError, match="No such file"):
            await one.connect()
        await one.cleanup()


async def test_a_cancelled_connect_leaves_no_process() -> None:
    silent = f"import time; time.sleep(1000)  # in place of {SERVER.name}"
    one = MCPServerStdio({"command": sys.executable, "args": ["-c", silent]})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await one.connect()
    assert processes() == []


async def test_the_managers_of_the_sdk_take_it() -> None:
    async with MCPServerManager([server(), server()]) as manager:
        assert len(manager.active_servers) == 2
    assert processes() == []


async def test_an_agent_uses_it() -> None:
    async with server() as one:
        model = Scripted([call("echo", '{"text": "hello"}')], [say("done")])
        agent = Agent(name="a", model=model, mcp_servers=[one])
        result = await Runner.run(agent, "Go.", run_config=UNTRACED)
    assert [item.type for item in result.new_items] == [
        "tool_call_item",
        "tool_call_output_item",
        "message_output_item",
    ]
    assert processes() == []
