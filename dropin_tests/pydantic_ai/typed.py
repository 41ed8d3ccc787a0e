"""A program of a user, for type checkers: the types are the SDK's, and ours where we add something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import pydantic_ai
import pydantic_ai.toolsets

from quiesce import StopReport
from quiesce.dropin.pydantic_ai import Agent, AgentRunResult, ModelSettings, RunContext, WrapperAgent
from quiesce.dropin.pydantic_ai.mcp import MCPToolset


@dataclass
class Deps:
    user: str


agent = Agent("test", deps_type=Deps, output_type=int)
plain = Agent("test")


@agent.tool
async def add(ctx: RunContext[Deps], left: int) -> int:
    return left + len(ctx.deps.user)


class Mine(Agent[Deps, bool]):
    pass


async def use(mine: Mine) -> None:
    assert_type(agent, Agent[Deps, int])
    theirs: pydantic_ai.Agent[Deps, int] = agent
    result = await agent.run("Hello", deps=Deps("me"), model_settings=ModelSettings(temperature=0))
    assert_type(result.output, int)
    assert_type(result.report, StopReport)
    as_theirs: AgentRunResult[int] = result
    assert_type(as_theirs.output, int)
    assert_type((await agent.run("Hello", deps=Deps("me"), output_type=str)).output, str)
    assert_type((await mine.run("Hello", deps=Deps("me"))).output, bool)
    assert_type((await plain.run("Hello")).output, str)
    assert_type((await WrapperAgent(theirs).run("Hello", deps=Deps("me"))).output, int)


async def stream() -> None:
    async with agent.run_stream("Hello", deps=Deps("me")) as result:
        async for output in result.stream_output():
            assert_type(output, int)
        assert_type(await result.get_output(), int)
    assert_type(result.report, StopReport | None)
    opened = plain.run_stream("Hello", output_type=float)
    async with opened as other:
        async for text in other.stream_text(delta=True):
            assert_type(text, str)
        assert_type(await other.close(), StopReport)
    assert_type(await opened.close(), StopReport)
    async with agent.run_stream_events("Hello", deps=Deps("me")) as events:
        async for event in events:
            if isinstance(event, pydantic_ai.AgentRunResultEvent):
                break
    assert_type(events.report, StopReport | None)
    async with agent.iter("Hello", deps=Deps("me")) as run:
        async for node in run:
            assert Agent.is_end_node(node) or node is not None
        assert_type(run.ctx.deps.user_deps, Deps)
    assert_type(run.report, StopReport | None)


async def enter() -> None:
    server: MCPToolset[object] = MCPToolset("http://127.0.0.1/mcp")
    toolsets: list[pydantic_ai.toolsets.AbstractToolset[object]] = [server]
    async with Agent("test", toolsets=toolsets) as entered:
        assert_type((await entered.run("Hello")).output, str)
    assert_type(await entered.close(), StopReport)
    assert_type(server.report, StopReport | None)


def use_sync() -> None:
    assert_type(plain.run_sync("Hello").report, StopReport)
    assert_type(agent.run_sync("Hello", deps=Deps("me")).output, int)
    with plain.run_stream_sync("Hello") as result:
        for text in result.stream_text():
            assert_type(text, str)
