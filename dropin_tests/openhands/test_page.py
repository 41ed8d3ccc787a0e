"""What docs/keep-your-sdk/openhands.md shows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openhands.sdk.conversation import ConversationExecutionStatus as Status
from tests.world import asyncio_only

# --8<-- [start:import]
from quiesce import current_token
from quiesce.dropin.openhands.sdk import Agent, Conversation, LocalConversation

# --8<-- [end:import]
from .made_up import converse, make_agent, working

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]


# --8<-- [start:tool]
def count() -> str:  # called by the executor of a tool
    token = current_token()  # cancelled when the run is stopped
    for _ in range(200):
        if token.wait_sync(0.05):
            return "stopped"
    return "done"


# --8<-- [end:tool]
# --8<-- [start:run]
def ask(agent: Agent, question: str) -> None:
    conversation = Conversation(agent, workspace="project")
    conversation.send_message(question)
    try:
        conversation.run()  # Ctrl-C stops it, also in the middle of an answer
    finally:
        report = conversation.close()  # terminals, their jobs and MCP servers have ended, too
        print(report)


# --8<-- [end:run]
# --8<-- [start:arun]
async def ask_for_a_minute(conversation: LocalConversation) -> None:
    try:
        async with asyncio.timeout(60):  # TimeoutError, when every tool has ended
            await conversation.arun()
    finally:
        await conversation.aclose()


# --8<-- [end:arun]


@pytest.fixture
def in_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_folder")
async def test_the_pages_run_is_asked_and_closed(capsys: pytest.CaptureFixture[str]) -> None:
    working(lambda conversation: "worked")
    await asyncio.to_thread(ask, make_agent(), "Go.")
    assert "nothing left" in capsys.readouterr().out


async def test_the_pages_arun_is_closed_and_its_tool_is_stopped() -> None:
    results: list[str] = []
    working(lambda conversation: results.append(count()))
    conversation = converse()
    task = asyncio.create_task(ask_for_a_minute(conversation))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert results == ["stopped"]
    assert conversation.state.execution_status == Status.PAUSED
