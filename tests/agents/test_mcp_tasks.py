"""Calls that an MCP server runs as tasks: a stop cancels them there, and waits until the server says that they have ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents.agent.context import ToolContext
from quiesce.agents.agent.tool import FunctionTool
from quiesce.agents.mcp.server import MCPServerError, MCPServerStdio, MCPToolError

pytestmark = [pytest.mark.real_time, pytest.mark.worlds("asyncio", "trio")]

HERE = Path(__file__).parent


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def server(log: Path, *modes: str) -> MCPServerStdio:
    params = {"command": sys.executable, "args": [str(HERE / "mcp_task_server.py"), str(log), *modes]}
    return MCPServerStdio(params, name="tasks")


async def tools_of(server: MCPServerStdio) -> dict[str, FunctionTool]:
    return {tool.name: tool for tool in await server.list_tools()}


def requests(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if not line.startswith("notifications/")]


def written(log: Path) -> str:
    return log.read_text() if log.exists() else ""


async def begun(log: Path) -> None:
    with anyio.fail_after(15):
        while "as a task" not in written(log):
            await anyio.sleep(0.01)


async def test_a_task_is_waited_for_and_its_messages_are_progress(log: Path) -> None:
    async with server(log) as one:
        context: ToolContext[Any] = ToolContext(None)
        assert await (await tools_of(one))["quick"].invoke(context, "{}") == "quick did it"
        assert context.output_so_far == "step 1\nstep 2\n"
    assert requests(log) == ["call quick as a task", "tasks/result quick"]


async def test_what_is_not_a_task_is_called_as_ever(log: Path) -> None:
    async with server(log) as one:
        tools = await tools_of(one)
        assert await tools["plain"].invoke(ToolContext(None), "{}") == "answered"
        assert await tools["at_once"].invoke(ToolContext(None), "{}") == "answered"
    assert requests(log) == ["call plain", "call at_once as a task"]


async def test_a_server_that_cannot_cancel_tasks_is_asked_for_one_only_where_it_must_be(log: Path) -> None:
    async with server(log, "no-cancel") as one:
        tools = await tools_of(one)
        assert await tools["quick"].invoke(ToolContext(None), "{}") == "answered"
        assert await tools["must"].invoke(ToolContext(None), "{}") == "must did it"
    assert requests(log) == ["call quick", "call must as a task", "tasks/result must"]


async def test_a_task_that_fails_or_that_the_server_drops_is_an_error(log: Path) -> None:
    async with server(log) as one:
        tools = await tools_of(one)
        with pytest.raises(MCPToolError, match="failing did it"):
            await tools["failing"].invoke(ToolContext(None), "{}")
        with pytest.raises(MCPServerError, match="cancelled by the server: out of memory"):
            await tools["dropped"].invoke(ToolContext(None), "{}")


async def test_a_question_that_fails_is_asked_again_and_not_for_ever(log: Path) -> None:
    async with server(log) as one:
        tools = await tools_of(one)
        assert await tools["shaky"].invoke(ToolContext(None), "{}") == "shaky did it"
        with pytest.raises(MCPServerError, match="not now"):
            await tools["lost"].invoke(ToolContext(None), "{}")
    assert requests(log)[2:] == ["call lost as a task", "tasks/cancel lost"]


async def test_a_task_that_waits_for_input_is_asked_for_its_result(log: Path) -> None:
    async with server(log) as one:
        assert await (await tools_of(one))["asking"].invoke(ToolContext(None), "{}") == "asking did it"
    assert requests(log) == ["call asking as a task", "tasks/result asking"]


@pytest.mark.parametrize("name", ["endless", "deaf"])
async def test_a_stop_cancels_the_task_at_the_server_and_waits_for_its_end(log: Path, name: str) -> None:
    async with server(log) as one:
        tools = await tools_of(one)
        scope = await Scope.open("turn")
        scope.spawn(tools[name].invoke, ToolContext(None), "{}")
        await begun(log)
        report = await scope.close()
        assert report.clean, str(report)
        assert await tools["plain"].invoke(ToolContext(None), "{}") == "answered"
    wanted = {"endless": ["tasks/cancel endless"], "deaf": ["tasks/cancel deaf"] * 2}
    assert requests(log) == [f"call {name} as a task", *wanted[name], "call plain"]


async def test_a_task_that_does_not_end_in_time_is_named_in_the_report_with_its_id(log: Path) -> None:
    async with server(log) as one:
        tools = await tools_of(one)
        scope = await Scope.open("turn", grace=Grace(cancel=0.3, terminate=0.2, kill=0.2))
        scope.spawn(tools["stubborn"].invoke, ToolContext(None), "{}")
        await begun(log)
        report = await scope.close()
        (left,) = [one for one in report.left if one.kind == "remote"]
        assert left.name == "task of 'stubborn' at MCP server 'tasks' stubborn"
        with anyio.fail_after(15):
            while not (await scope.close()).clean:  # it has ended later
                await anyio.sleep(0.1)


async def test_a_task_has_ended_when_the_process_of_its_server_has(log: Path) -> None:
    one = server(log)
    await one.connect()
    tools = await tools_of(one)
    scope = await Scope.open("turn", on_error="report")
    call = scope.spawn(tools["endless"].invoke, ToolContext(None), "{}")
    await begun(log)
    await one.close()
    await call.wait()
    with pytest.raises(MCPServerError, match="'tasks' has ended"):
        call.result()
    report = await scope.close()
    assert not report.left, str(report)
