"""What a tool has started by way of others, and nobody can wait for, is said: to the model, and in the report."""

from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest

from quiesce.agents import Conversation, Runner, function_tool
from quiesce.models import ToolResult
from quiesce.testing import call
from tests.agents.scenes import outcomes, scripted

pytestmark = pytest.mark.real_time


class Query:
    """Work in a thread of anyio, of which a cancellation ends the await alone."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.ended = threading.Event()

    def _work(self) -> None:
        self.begun.set()
        self.gate.wait(10)
        self.ended.set()

    async def run(self) -> str:
        await anyio.to_thread.run_sync(self._work, abandon_on_cancel=True)
        return "late"

    async def end(self) -> None:
        self.gate.set()
        while not self.ended.is_set():
            await anyio.sleep(0.001)


async def test_a_tool_that_was_given_up_may_still_be_running_if_its_thread_is() -> None:
    query = Query()
    slow = function_tool(query.run, name_override="slow", timeout=0.1)
    result = await Runner.run(scripted(call("slow"), "sorry", tools=[slow]), "?")
    assert outcomes(result.new_items) == ["still_running"]
    (told,) = [item for item in result.new_items if isinstance(item, ToolResult)]
    assert "it may still be running" in told.output
    await query.end()


async def test_an_interrupt_that_leaves_a_thread_at_work_is_not_clean() -> None:
    query = Query()
    conversation = Conversation(
        scripted(call("slow"), tools=[function_tool(query.run, name_override="slow")])
    )
    conversation.send_message("?")
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.arun)
        while not query.begun.is_set():
            await anyio.sleep(0.001)
        report = await conversation.interrupt()
        assert not report.clean
        assert not report.left
        assert "the end of thread" in report.unseen[0]
    await conversation.close()
    await query.end()
