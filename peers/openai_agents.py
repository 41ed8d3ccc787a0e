"""openai-agents: a run with a tool in a thread beside an MCP server, and a streamed answer."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI

import quiesce

# --8<-- [start:imports]
from quiesce import contain, current_token, own, stream

# --8<-- [end:imports]
from quiesce.dropin.agents import Runner as ContainedRunner
from quiesce.dropin.agents.mcp import MCPServerStdio as OwnedMCPServerStdio

from .ways import Close, Ready, Scenario, Way, consume, start_consuming

set_tracing_disabled(True)
SERVER = Path(__file__).with_name("standins") / "mcp_stdio.py"
NO_LOOP = "`Runner.run` is not a stream: there is nothing to break out of"

has_begun: list[Callable[[], object]] = []  # called by the tool, in its thread


def say_when_it_runs(ready: Ready) -> None:
    loop = asyncio.get_running_loop()
    has_begun[:] = [lambda: loop.call_soon_threadsafe(ready)]


@dataclass(frozen=True)
class Sdk:
    """The SDK itself, or the drop-in: the same program with one import changed."""

    runner: type[Runner]
    server: type[MCPServerStdio]
    tool: Any

    def mcp_server(self) -> MCPServerStdio:
        return self.server({"command": sys.executable, "args": [str(SERVER), "deaf"]})


def mcp_server() -> MCPServerStdio:
    return ITSELF.mcp_server()


def openai_client() -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{os.environ.get('PEERS_MODEL')}/v1", api_key="none")


def make_agent(client: AsyncOpenAI, *tools: Any, servers: tuple[MCPServerStdio, ...] = ()) -> Agent[Any]:
    model = OpenAIChatCompletionsModel("stand-in", client)
    return Agent(name="worker", model=model, tools=list(tools), mcp_servers=list(servers))


# A run with a tool in a thread


@function_tool
def count() -> str:
    """Count for a while."""
    has_begun[0]()
    for _ in range(200):
        time.sleep(0.05)
    return "done"


async def use_run(sdk: Sdk, ready: Ready) -> None:
    say_when_it_runs(ready)
    async with openai_client() as client, sdk.mcp_server() as server:
        await sdk.runner.run(make_agent(client, sdk.tool, servers=(server,)), "Please count.")


async def open_server(sdk: Sdk) -> Close:
    stack = AsyncExitStack()
    await stack.enter_async_context(sdk.mcp_server())
    return stack.aclose


# --8<-- [start:run]
@function_tool(name_override="count")
def count_until_stopped() -> str:
    """Count for a while."""
    has_begun[0]()
    token = current_token()  # cancelled when the block around the run is left
    for _ in range(200):
        token.raise_if_cancelled()
        time.sleep(0.05)
    return "done"


async def run_once() -> None:
    async with contain():
        client = await own(openai_client()).open()
        server = await own(mcp_server()).open()
        agent = make_agent(client.value, count_until_stopped, servers=(server.value,))
        await Runner.run(agent, "Please count.")


# --8<-- [end:run]
async def use_run_with(ready: Ready) -> None:
    say_when_it_runs(ready)
    await run_once()


# --8<-- [start:open]
async def open_server_with() -> Close:
    held = await own(mcp_server()).open()
    await held.value.list_tools()  # from any task
    return held.close  # from any other


# --8<-- [end:open]
# A streamed answer


async def use_streamed(sdk: Sdk, ready: Ready) -> None:
    result = sdk.runner.run_streamed(make_agent(openai_client()), "Say something.")
    await consume(result.stream_events(), ready)


async def open_streamed(sdk: Sdk) -> Close:
    result = sdk.runner.run_streamed(make_agent(openai_client()), "Say something.")
    await start_consuming(result.stream_events())

    async def cancel() -> None:
        result.cancel()

    return getattr(result, "close", cancel)


async def break_off_streamed(sdk: Sdk, ready: Ready) -> None:
    result = sdk.runner.run_streamed(make_agent(openai_client()), "Say something.")
    async for _ in result.stream_events():
        ready()
        break


# --8<-- [start:streamed]
async def answer(agent: Agent[Any], prompt: str) -> AsyncIterator[Any]:
    result = Runner.run_streamed(agent, prompt)
    async with aclosing(result.stream_events()) as events:
        try:
            async for event in events:
                yield event
        finally:
            result.cancel()  # or closing the events would wait for the whole run


async def read_answer(agent: Agent[Any], prompt: str, show: Callable[[object], object]) -> None:
    async with contain(), stream(answer(agent, prompt)) as events:
        async for event in events:
            show(event)


# --8<-- [end:streamed]
# --8<-- [start:streamed-open]
async def open_streamed_with() -> Close:
    events = stream(answer(make_agent(openai_client()), "Say something."))
    await start_consuming(events)  # one task reads it
    return events.close  # another stops it: the reader sees the end of the stream


# --8<-- [end:streamed-open]
async def break_off_streamed_with(ready: Ready) -> None:
    async with contain(), stream(answer(make_agent(openai_client()), "Say something.")) as events:
        async for _ in events:
            ready()
            break


ITSELF = Sdk(Runner, MCPServerStdio, count)
DROPIN = Sdk(ContainedRunner, OwnedMCPServerStdio, count_until_stopped)


def run() -> Scenario:
    return Scenario(
        "run",
        "`Runner.run`, in a tool that runs in a thread, with an MCP server that ignores EOF and SIGTERM",
        without=Way(partial(use_run, ITSELF), partial(open_server, ITSELF)),
        with_quiesce=Way(use_run_with, open_server_with, run=quiesce.run),
        dropin=Way(partial(use_run, DROPIN), partial(open_server, DROPIN), run=quiesce.run),
        impossible={"break": NO_LOOP},
    )


def streamed_with(sdk: Sdk) -> Way:
    ways: tuple[Any, ...] = (use_streamed, open_streamed, break_off_streamed)
    use, open_it, break_off = (partial(way, sdk) for way in ways)
    return Way(use, open_it, break_off, run=quiesce.run) if sdk is DROPIN else Way(use, open_it, break_off)


def streamed() -> Scenario:
    return Scenario(
        "streamed",
        "`Runner.run_streamed`, in the middle of an answer",
        without=streamed_with(ITSELF),
        dropin=streamed_with(DROPIN),
        with_quiesce=Way(
            lambda ready: read_answer(make_agent(openai_client()), "Say something.", lambda _: ready()),
            open_streamed_with,
            break_off_streamed_with,
            run=quiesce.run,
        ),
    )
