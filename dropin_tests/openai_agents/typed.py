"""A program of a user, for type checkers: the types are the SDK's, and ours where we add something."""

from __future__ import annotations

from typing import assert_type

import agents
import agents.items
import agents.mcp
import agents.realtime

from quiesce import StopReport
from quiesce.dropin.agents import (
    Agent,
    ContainedRunResult,
    ContainedRunResultStreaming,
    ModelSettings,
    Runner,
    RunResult,
    StreamEvent,
    function_tool,
)
from quiesce.dropin.agents.mcp import MCPServer, MCPServerStdio, create_static_tool_filter
from quiesce.dropin.agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession


@function_tool
def add(left: int, right: int) -> int:
    return left + right


async def use() -> None:
    agent = Agent(name="a", tools=[add], model_settings=ModelSettings(temperature=0))
    theirs: agents.Agent[object] = agent
    result = await Runner.run(theirs, "Hello", max_turns=3)
    assert_type(result, ContainedRunResult)
    assert_type(result.report, StopReport)
    as_theirs: RunResult = result
    as_theirs.final_output_as(str)
    streamed = Runner.run_streamed(agent, "Hello")
    assert_type(streamed, ContainedRunResultStreaming)
    async for event in streamed.stream_events():
        assert_type(event, StreamEvent)
        assert_type(event, agents.StreamEvent)
    streamed.cancel(mode="after_turn")
    assert_type(await streamed.close(), StopReport)
    async with Runner.run_streamed(agent, "Hello") as again:
        assert_type(again, ContainedRunResultStreaming)


async def connect() -> None:
    only = create_static_tool_filter(allowed_tool_names=["add"])
    async with MCPServerStdio({"command": "server"}, tool_filter=only) as server:
        as_theirs: agents.mcp.MCPServer = server
        servers: list[MCPServer] = [server, as_theirs]
        Agent(name="a", mcp_servers=servers)


async def talk() -> None:
    session = await RealtimeRunner(RealtimeAgent(name="a")).run(context=None)
    assert_type(session, RealtimeSession)
    as_theirs: agents.realtime.RealtimeSession = session
    async with session:
        await session.send_message("Hello")
        await as_theirs.send_audio(b"", commit=True)
    assert_type(await session.close(), StopReport)


def use_sync() -> None:
    assert_type(Runner.run_sync(Agent(name="a"), "Hello").report, StopReport)
