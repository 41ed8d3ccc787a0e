"""pydantic-ai: a run in a tool that has a thread, beside an MCP server, and a streamed answer."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import quiesce

# --8<-- [start:imports]
from quiesce import Scope, contain, current_token, own, stream

# --8<-- [end:imports]
from quiesce.dropin.pydantic_ai import Agent as ContainedAgent

from .ways import Close, Ready, Scenario, Way, consume, start_consuming

SERVER = Path(__file__).with_name("standins") / "mcp_stdio.py"
NO_LOOP = "`Agent.run` is not a stream: there is nothing to break out of"
A_THREAD = "Python cannot stop a thread from outside: this one does not look at its token, and is named in the report"
OPENED = "the thread is a run's, and a run is not opened and closed"

has_begun: list[Callable[[], object]] = []  # called by the tool, in its thread


def say_when_it_runs(ready: Ready) -> None:
    loop = asyncio.get_running_loop()
    has_begun[:] = [lambda: loop.call_soon_threadsafe(ready)]


def count() -> str:
    """Count for a while."""
    has_begun[0]()
    for _ in range(200):
        time.sleep(0.05)
    return "done"


def make_agent(*tools: Callable[[], str], kind: type[Agent] = Agent) -> Agent:
    provider = OpenAIProvider(f"http://127.0.0.1:{os.environ.get('PEERS_MODEL')}/v1", api_key="none")
    # By default the transport keeps its server for the next connection: not a leak, but not what is asked for here.
    transport = StdioTransport(sys.executable, [str(SERVER)], keep_alive=False)
    model = OpenAIChatModel("stand-in", provider=provider)
    return kind(model, tools=tools, toolsets=[MCPToolset(transport)])


# A run with a tool in a thread


async def use_run(kind: type[Agent], tool: Callable[[], str], ready: Ready) -> None:
    say_when_it_runs(ready)
    async with make_agent(tool, kind=kind) as agent:
        await agent.run("Please count.")


async def open_agent(kind: type[Agent]) -> Close:
    stack = AsyncExitStack()
    await stack.enter_async_context(make_agent(kind=kind))
    return stack.aclose


# --8<-- [start:run]
def count_until_stopped() -> str:
    """Count for a while."""
    has_begun[0]()
    token = current_token()  # cancelled as soon as the run is stopped
    for _ in range(200):
        token.raise_if_cancelled()
        time.sleep(0.05)
    return "done"


count_until_stopped.__name__ = "count"


async def run_once(agent: Agent, prompt: str) -> None:
    async with contain(), own(agent), Scope("run") as scope:
        scope.spawn(agent.run, prompt)


# --8<-- [end:run]
async def use_run_with(ready: Ready) -> None:
    say_when_it_runs(ready)
    await run_once(make_agent(count_until_stopped), "Please count.")


async def run_deaf(ready: Ready) -> None:
    say_when_it_runs(ready)
    await run_once(make_agent(count), "Please count.")


# --8<-- [start:open]
async def open_agent_with() -> Close:
    held = await own(make_agent()).open()
    return held.close  # from any task


# --8<-- [end:open]
# A streamed answer


# --8<-- [start:answer]
async def answer(agent: Agent, prompt: str) -> AsyncIterator[Any]:
    async with agent, agent.run_stream(prompt) as result:
        async for text in result.stream_text(delta=True, debounce_by=None):
            yield text


# --8<-- [end:answer]
async def use_streamed(kind: type[Agent], ready: Ready) -> None:
    await consume(answer(make_agent(kind=kind), "Say something."), ready)


async def open_streamed() -> Close:
    texts = answer(make_agent(), "Say something.")
    await start_consuming(texts)
    return texts.aclose  # type: ignore[attr-defined]


async def open_contained() -> Close:
    agent = make_agent(kind=ContainedAgent)
    await agent.__aenter__()
    run: Any = agent.run_stream("Say something.")
    result = await run.__aenter__()
    await start_consuming(result.stream_text(delta=True, debounce_by=None))  # one task reads it

    async def close() -> None:
        await run.close()  # another stops it: the reader sees the end of the stream
        await agent.__aexit__(None, None, None)

    return close


async def break_off_streamed(kind: type[Agent], ready: Ready) -> None:
    async for _ in answer(make_agent(kind=kind), "Say something."):
        ready()
        break


# --8<-- [start:streamed]
async def read_answer(agent: Agent, prompt: str, show: Callable[[object], object]) -> None:
    async with contain(), stream(answer(agent, prompt)) as texts:
        async for text in texts:
            show(text)


# --8<-- [end:streamed]
# --8<-- [start:streamed-open]
async def open_streamed_with() -> Close:
    texts = stream(answer(make_agent(), "Say something."))
    await start_consuming(texts)  # one task reads it
    return texts.close  # another stops it: the reader sees the end of the stream


# --8<-- [end:streamed-open]
async def break_off_streamed_with(ready: Ready) -> None:
    async with contain(), stream(answer(make_agent(), "Say something.")) as texts:
        async for _ in texts:
            ready()
            break


def run() -> Scenario:
    return Scenario(
        "run",
        "`Agent.run`, in a tool that runs in a thread, with an MCP server",
        without=Way(partial(use_run, Agent, count), partial(open_agent, Agent)),
        with_quiesce=Way(use_run_with, open_agent_with, run=quiesce.run),
        dropin=Way(
            partial(use_run, ContainedAgent, count_until_stopped),
            partial(open_agent, ContainedAgent),
            run=quiesce.run,
        ),
        impossible={"break": NO_LOOP},
    )


def deaf_tool() -> Scenario:
    return Scenario(
        "deaf_tool",
        "`Agent.run`, in a tool that does not look at its token",
        without=Way(partial(use_run, Agent, count)),
        with_quiesce=Way(run_deaf, run=quiesce.run),
        dropin=Way(partial(use_run, ContainedAgent, count), run=quiesce.run),
        impossible={"break": NO_LOOP, "elsewhere": OPENED, "order": OPENED},
        limits=dict.fromkeys(("cancel", "cancel-2", "cancel-3", "timeout"), A_THREAD),
    )


def streamed() -> Scenario:
    return Scenario(
        "streamed",
        "`Agent.run_stream`, in the middle of an answer",
        without=Way(partial(use_streamed, Agent), open_streamed, partial(break_off_streamed, Agent)),
        with_quiesce=Way(
            lambda ready: read_answer(make_agent(), "Say something.", lambda _: ready()),
            open_streamed_with,
            break_off_streamed_with,
            run=quiesce.run,
        ),
        dropin=Way(
            partial(use_streamed, ContainedAgent),
            open_contained,
            partial(break_off_streamed, ContainedAgent),
            run=quiesce.run,
        ),
    )
