"""What docs/keep-your-sdk/openai-agents.md shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import agents
import pytest
from tests.world import asyncio_only

# --8<-- [start:import]
from quiesce import current_token
from quiesce.dropin.agents import Agent, Runner, function_tool

# --8<-- [end:import]
from .made_up import Scripted, call, say

pytestmark = [asyncio_only, pytest.mark.real_time]


# --8<-- [start:tool]
@function_tool
def count() -> str:
    """Count for a while, in a thread."""
    token = current_token()  # cancelled when the run is stopped
    for _ in range(200):
        token.raise_if_cancelled()
        time.sleep(0.05)
    return "done"


# --8<-- [end:tool]
# --8<-- [start:run]
async def ask(agent: Agent, question: str) -> str:
    async with asyncio.timeout(0.5):  # TimeoutError, when every tool has ended
        result = await Runner.run(agent, question)
    print(result.report)  # what the end of the run has stopped, and what is left
    return str(result.final_output)


# --8<-- [end:run]
# --8<-- [start:streamed]
async def read_first(agent: Agent, question: str) -> None:
    result = Runner.run_streamed(agent, question)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            break  # the run is being stopped: nothing new starts
    report = await result.close()  # and now it has ended
    assert report.clean


# --8<-- [end:streamed]


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """Without the SDK's thread for traces, which lives as long as the program."""
    agents.set_tracing_disabled(True)
    yield
    agents.set_tracing_disabled(False)


async def test_the_pages_run_times_out_when_its_tool_has_ended() -> None:
    agent: Agent = Agent(name="a", tools=[count], model=Scripted([call("count")]))
    with pytest.raises(TimeoutError):
        await ask(agent, "Please count.")


async def test_the_pages_run_answers() -> None:
    assert await ask(Agent(name="a", model=Scripted([say("done")])), "Hello.") == "done"


async def test_the_pages_streamed_run_is_broken_out_of() -> None:
    await read_first(Agent(name="a", tools=[count], model=Scripted([call("count")], words=["a"])), "Go.")
