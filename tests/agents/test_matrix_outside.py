"""The matrix where a run waits for what is outside the event loop: threads, child processes, MCP servers. In real time.

At the moment when control is back there is no thread and no child process more than before. Two ways a world run with the other tests;
`make audit` goes through all of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import current_token
from quiesce.agents import Agent, MCPServerStdio, RunHooks, function_tool, input_guardrail
from quiesce.testing import call
from tests.agents.scenes import CLEAN_UP, Parked, assert_valid, outcomes, scripted, session_with
from tests.agents.spinning import spin
from tests.agents.ways_to_stop import CALLERS, STREAMED, run_and_stop, stream_and_stop
from tests.audit_level import FULL
from tests.leaks import Snapshot

# Those that wait for a second would be over before a process has started on a loaded machine.
RUN_WAYS = [way for way in CALLERS if "timeout" not in way and way != "anyio_scope"]
STREAMED_WAYS = [way for way in STREAMED if "timeout" not in way and "anyio" not in way]

pytestmark = [
    pytest.mark.worlds("asyncio", "trio"),
    pytest.mark.real_time,
    pytest.mark.time_limit(100),
    pytest.mark.audit,
]


class Poll:
    """Waits for something that happens elsewhere."""

    def __init__(self, has_happened: Callable[[], bool]) -> None:
        self._has_happened = has_happened

    async def wait(self) -> None:
        with anyio.fail_after(20):
            while not self._has_happened():
                await anyio.sleep(0.005)


class Outside(Parked):
    """Code outside of the event loop that parks until it is stopped."""

    patience = 0  # a process is killed, or a thread gone, sooner than any time one could name

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.reached = Poll(self.is_there)  # type: ignore[assignment]
        self._before = Snapshot()

    def is_there(self) -> bool:
        return self.begun > 0 or self.path.exists()

    def park_in_a_thread(self, *_: object) -> Any:
        """Wait for the token, and clean up."""
        self.begun += 1
        try:
            assert current_token().wait_sync(20)
            current_token().raise_if_cancelled()
        finally:
            time.sleep(CLEAN_UP)
            self.tidied += 1

    def assert_tidy(self) -> None:
        assert self.is_there(), "nobody came to where the run was to be stopped"
        assert self.tidied == self.begun, "a clean-up was cut short"
        left = [*self._before._new_threads(), *self._before._new_children()]
        assert not left, left


def thread_tool(outside: Outside) -> tuple[Agent[Any], dict[str, Any]]:
    def work() -> str:
        outside.park_in_a_thread()
        return "never"

    return scripted([call("work"), call("work")], tools=[function_tool(work)]), {}


def guardrail_in_a_thread(outside: Outside) -> tuple[Agent[Any], dict[str, Any]]:
    return scripted("hi", input_guardrails=[input_guardrail(outside.park_in_a_thread)]), {}


def instructions_in_a_thread(outside: Outside) -> tuple[Agent[Any], dict[str, Any]]:
    return scripted("hi", instructions=outside.park_in_a_thread), {}


def process_tool(outside: Outside) -> tuple[Agent[Any], dict[str, Any]]:
    return scripted(call("spin", path=str(outside.path)), tools=[spin]), {}


def _server(*modes: str) -> MCPServerStdio:
    script = Path(__file__).parent / "mcp_server.py"
    return MCPServerStdio({"command": sys.executable, "args": [str(script), *modes]})


def mcp_tool(outside: Outside) -> tuple[Agent[Any], dict[str, Any]]:
    class Started(RunHooks[Any]):
        async def on_tool_start(self, *_: Any, **__: Any) -> None:
            outside.path.touch()

    agent = scripted(call("work"), mcp_servers=[_server()])
    return agent, {"hooks": Started()}


def mcp_server_that_is_connecting(outside: Outside) -> tuple[Agent[Any], dict[str, Any]]:
    async def begins(*_: object) -> str:
        outside.path.touch()
        return ""

    return scripted("hi", instructions=begins, mcp_servers=[_server("silent")]), {}


POINTS = [
    thread_tool,
    guardrail_in_a_thread,
    instructions_in_a_thread,
    process_tool,
    mcp_tool,
    mcp_server_that_is_connecting,
]


@pytest.mark.parametrize("way", RUN_WAYS if FULL else ["cancel_twice"])
async def test_a_run_that_waits_outside_leaves_no_thread_and_no_process(way: str, tmp_path: Path) -> None:
    for build in POINTS:
        outside = Outside(tmp_path / build.__name__)
        agent, options = build(outside)
        session = await session_with()
        await run_and_stop(way, agent, {"session": session, **options}, outside)
        assert_valid(await session.get_items())


@pytest.mark.parametrize("way", STREAMED_WAYS if FULL else ["cancel"])
async def test_a_streamed_run_that_waits_outside_leaves_no_thread_and_no_process(
    way: str, tmp_path: Path
) -> None:
    for build in POINTS:
        outside = Outside(tmp_path / build.__name__)
        agent, options = build(outside)
        session = await session_with()
        result = await stream_and_stop(way, agent, {"session": session, **options}, outside)
        assert await session.get_items() == result.to_input_list()
        assert_valid(result.to_input_list())
        assert set(outcomes(result.new_items)) <= {"interrupted"}


@pytest.mark.parametrize("connected", [False, True])
async def test_a_run_uses_the_tools_of_mcp_servers_and_closes_what_it_has_connected(connected: bool) -> None:
    from quiesce.agents import Runner

    server = _server()
    agent = scripted(call("echo", text="one"), call("echo", text="two"), "ok", mcp_servers=[server])
    if connected:
        await server.connect()
    try:
        result = await Runner.run(agent, "?")
        assert server.connected is connected
    finally:
        await server.close()
    assert outcomes(result.new_items) == ["finished", "finished"]
    assert result.final_output == "ok"
