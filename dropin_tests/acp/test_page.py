"""What docs/keep-your-sdk/agent-client-protocol.md shows."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.world import asyncio_only

# --8<-- [start:import]
from quiesce.dropin.acp import PROTOCOL_VERSION, PromptResponse, run_agent, spawn_agent_process, text_block

# --8<-- [end:import]
from .made_up import Agent, Client, others, raw_peer

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]

AGENT = Path(__file__).parent.parent.parent / "peers" / "standins" / "acp_agent.py"


# --8<-- [start:client]
async def ask(client: Any, program: str, *arguments: str) -> PromptResponse:
    async with spawn_agent_process(client, program, *arguments) as (connection, _process):
        await connection.initialize(protocol_version=PROTOCOL_VERSION)
        session = await connection.new_session(cwd="/", mcp_servers=[])
        async with asyncio.timeout(0.5):  # TimeoutError, when the agent has ended its turn
            return await connection.prompt(session_id=session.session_id, prompt=[text_block("Work.")])


# --8<-- [end:client]
# --8<-- [start:anywhere]
class Editor:
    """Starts an agent in one task, and closes it in another."""

    async def open(self, client: Any, program: str, *arguments: str) -> None:
        self.held = await spawn_agent_process(client, program, *arguments).open()
        self.connection, self.process = self.held.value
        await self.connection.initialize(protocol_version=PROTOCOL_VERSION)

    async def close(self) -> None:
        report = await self.held.close()  # the agent has ended, with its whole tree
        assert report.clean, report


# --8<-- [end:anywhere]
# --8<-- [start:agent]
class Worker(Agent):
    async def prompt(self, **_: Any) -> PromptResponse:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)  # clean-up: it is not interrupted
        return PromptResponse(stop_reason="end_turn")


async def serve(*streams: Any) -> None:
    await run_agent(Worker(), *streams)


# --8<-- [end:agent]


async def test_the_pages_prompt_times_out_when_the_agent_has_ended_its_turn() -> None:
    with pytest.raises(TimeoutError):
        await ask(Client(), sys.executable, str(AGENT))
    assert others() == []


async def test_the_pages_agent_is_closed_by_another_task() -> None:
    editor = Editor()
    await asyncio.create_task(editor.open(Client(), sys.executable, str(AGENT)))
    await asyncio.create_task(editor.close())
    assert editor.process.returncode is not None


async def test_the_pages_worker_answers_when_it_is_cancelled() -> None:
    async with raw_peer() as (ours, peer):
        running = asyncio.create_task(serve(*ours))
        peer.prompt()
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert (await peer.receive())["result"] == {"stopReason": "cancelled"}
