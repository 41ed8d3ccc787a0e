"""A tool in a process, a call of an MCP server's tool, and a tool that starts a process itself, judged by the
audit: stopped anywhere, in every way, nothing is left.

They start real processes, so that only a sample of the points is used; `make audit` uses more of them, in more worlds.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents import Agent, RunConfig, Runner
from quiesce.agents.agent.context import ToolContext
from quiesce.agents.agent.tool import function_tool
from quiesce.agents.mcp.server import MCPServerError, MCPServerStdio
from quiesce.audit import Limits
from quiesce.audit.model.stops import choose_stops
from quiesce.testing import ScriptedModel, call
from tests.agents.plain_functions import undecorated
from tests.audit_level import FULL
from tests.kernel.audited import STARTED_LATE, WORLDS, Audited, ledger
from tests.world import world_names

SERVER = Path(__file__).with_name("mcp_server.py")
QUICK = Grace(cancel=0.5, terminate=2, kill=2)

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(300)]

add = function_tool(undecorated, isolation="process")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the audit makes fail is not worth a line each."""
    for name in ("quiesce", "mcp"):
        logging.getLogger(name).disabled = True
    yield
    for name in ("quiesce", "mcp"):
        logging.getLogger(name).disabled = False


async def tool_in_a_process() -> None:
    ledger.start()
    context: ToolContext[Any] = ToolContext(None)
    async with ledger.scope(Scope("run", grace=QUICK)):
        ledger.expect(await add.invoke(context, '{"n": 1}') == 2, "the result is wrong")


async def tool_of_an_mcp_server() -> None:
    ledger.start()
    server = MCPServerStdio({"command": sys.executable, "args": [str(SERVER)]}, grace=QUICK)
    context: ToolContext[Any] = ToolContext(None)
    async with ledger.scope(Scope("run", grace=QUICK)):
        with suppress(MCPServerError):  # a task of the session may be what is stopped
            async with server.use():
                (echo, *_) = await server.list_tools()
                ledger.expect(await echo.invoke(context, '{"text": "a"}') == "a", "the answer is wrong")
    ledger.expect(not server.connected, "it is still connected")


@function_tool
async def sleep_in_a_process() -> str:
    """Start a process, and do nothing about its end."""
    process = await anyio.open_process(["sleep", "0.1"], stdin=None, stdout=None, stderr=None)
    await process.wait()
    return "slept"


async def tool_that_starts_a_process_by_its_own_means() -> None:
    ledger.start()
    agent = Agent(
        name="assistant", model=ScriptedModel([call("sleep_in_a_process"), "ok"]), tools=[sleep_in_a_process]
    )
    async with ledger.scope(Scope("app", grace=QUICK)):
        result = await Runner.run(agent, "?", run_config=RunConfig(grace=QUICK))
        ledger.expect(result.final_output == "ok", "the text is wrong")


def scenario(function: Any) -> Audited:
    known = {"unawaited JSONRPCDispatcher.run*": STARTED_LATE} if function is tool_of_an_mcp_server else {}
    return Audited(function.__name__, function, WORLDS, known, {}, True, {"real_io": True})


@pytest.mark.parametrize(
    "function", [tool_in_a_process, tool_of_an_mcp_server, tool_that_starts_a_process_by_its_own_means]
)
@pytest.mark.parametrize("where", world_names() if FULL else ["asyncio"])
def test_stopped_anywhere_nothing_is_left(function: Any, where: str) -> None:
    # `descendant` on trio cancels scopes of the kernel's own: see tests/kernel/test_audit.py.
    stops = (
        "cancel,scope,timeout,raise"
        if where == "trio"
        else "all"
        if FULL
        else "cancel,twice,timeout,shutdown"
    )
    # If what it awaits fails, the tool ends by itself, and does not end its process. On asyncio that is
    # reaped when it ends, as long as the loop goes on; trio and uvloop leave it to the end of the program.
    if function is tool_that_starts_a_process_by_its_own_means and where in ("trio", "uvloop"):
        backend: Any = "trio" if where == "trio" else "asyncio"
        chosen = choose_stops(stops, backend, "coroutine")
        stops = ",".join(stop.name for stop in chosen if stop.name != "raise")
    limits = Limits(hang_after=10)  # an interpreter takes its time to start on a busy machine
    result = scenario(function).audit(
        where, stops=stops, depth=1, sample=2 if FULL and where != "uvloop" else 1, limits=limits
    )
    assert result.verdict in ("CLEAN", "FINDINGS"), str(result)
    assert not result.errors, str(result)  # of a sample, an ignore may match nothing
