"""What docs/keep-your-sdk/pydantic-ai.md shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.world import asyncio_only

# --8<-- [start:import]
from quiesce import current_token
from quiesce.dropin.pydantic_ai import Agent

# --8<-- [end:import]
from .made_up import Scripted, call, say

pytestmark = [asyncio_only, pytest.mark.real_time]


# --8<-- [start:tool]
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
        result = await agent.run(question)
    print(result.report)  # what the end of the run has stopped, and what is left
    return result.output


# --8<-- [end:run]
# --8<-- [start:streamed]
async def answer(agent: Agent, question: str) -> AsyncIterator[str]:
    async with agent.run_stream(question) as result:
        async for text in result.stream_text(delta=True):
            yield text


# --8<-- [end:streamed]
# --8<-- [start:closed]
async def read_first(agent: Agent, question: str) -> None:
    async with agent.run_stream_events(question) as events:
        async for event in events:
            if event.event_kind == "part_start":
                break
    assert events.report is not None  # the run has ended, with its tools


# --8<-- [end:closed]


async def test_the_pages_run_times_out_when_its_tool_has_ended() -> None:
    agent = Agent(Scripted([call("count")]), tools=[count])
    with pytest.raises(TimeoutError):
        await ask(agent, "Please count.")


async def test_the_pages_run_answers() -> None:
    assert await ask(Agent(Scripted([say("done")])), "Hello.") == "done"


async def test_the_pages_stream_can_be_dropped() -> None:
    model = Scripted([say("one two three")], then=lambda: asyncio.sleep(60))
    async for _ in answer(Agent(model), "Go."):
        break
    # It is closed behind: there is no place to wait for that.
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=5)
    assert model.closed == 1


async def test_the_pages_events_are_broken_out_of() -> None:
    await read_first(Agent(Scripted([call("count")]), tools=[count]), "Go.")
