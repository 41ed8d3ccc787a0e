"""Servers that offer tools, such as those of MCP: the first run that needs one connects it, and the last one closes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from quiesce.agents import FunctionTool, Handoff, Runner, function_tool
from quiesce.testing import call
from tests.agents.scenes import Parked, outcomes, requests_of, scripted


class Server:
    """Offers one tool, and writes down what is asked of it."""

    def __init__(self, name: str = "server", tool: str = "echo", parked: Parked | None = None) -> None:
        self.name = name
        self.log: list[str] = []
        self.users = 0
        self._parked = parked
        self._tool = function_tool(self._run, name_override=tool)

    async def _run(self, text: str) -> str:
        """Say it again."""
        assert self.users, "it is not connected"
        self.log.append(text)
        if self._parked is not None:
            await self._parked.park()
        return text

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        self.users += 1
        self.log.append("connected")
        try:
            yield
        finally:
            self.log.append("closed")
            self.users -= 1

    async def list_tools(self) -> list[FunctionTool]:
        assert self.users, "it is not connected"
        return [self._tool]


async def test_a_run_connects_it_once_and_closes_it_at_its_end() -> None:
    server = Server()
    agent = scripted(call("echo", text="one"), call("echo", text="two"), "ok", mcp_servers=[server])
    result = await Runner.run(agent, "?")
    assert server.log == ["connected", "one", "two", "closed"]
    assert outcomes(result.new_items) == ["finished", "finished"]
    assert [[spec.name for spec in request.tools] for request in requests_of(agent)] == [["echo"]] * 3


async def test_all_of_several_are_closed() -> None:
    servers = [Server("one", "first"), Server("two", "second")]
    agent = scripted(call("second", text="hi"), "ok", mcp_servers=servers)
    await Runner.run(agent, "?")
    assert [server.log for server in servers] == [["connected", "closed"], ["connected", "hi", "closed"]]


async def test_the_agent_that_takes_over_uses_the_one_that_is_connected() -> None:
    server = Server()
    second = scripted(call("echo", text="two"), "ok", name="second", mcp_servers=[server])
    first = scripted(
        call("echo", text="one"), call("transfer_to_second"), handoffs=[Handoff(second)], mcp_servers=[server]
    )
    result = await Runner.run(first, "?")
    assert result.final_output == "ok"
    assert server.log == ["connected", "one", "two", "closed"]


async def test_a_run_that_is_cancelled_closes_it() -> None:
    parked = Parked()
    server = Server(parked=parked)
    agent = scripted(call("echo", text="one"), mcp_servers=[server])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(Runner.run, agent, "?")
            await parked.reached.wait()
            scope.cancel()
    assert server.log == ["connected", "one", "closed"]
    parked.assert_tidy()


async def test_a_run_that_fails_closes_it() -> None:
    server = Server()

    def broken(request: Any) -> str:
        raise LookupError("no such page")

    with pytest.raises(LookupError):
        await Runner.run(scripted(call("echo", text="one"), broken, mcp_servers=[server]), "?")
    assert server.log == ["connected", "one", "closed"]
