"""What a tool does while it is being stopped: its clean-up works, and where it fails the report says so, not the transcript."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from quiesce import Scope, StopReport, current_scope, current_token, to_thread
from quiesce.agents import Agent, Conversation, FunctionTool, function_tool
from quiesce.models import ToolResult
from quiesce.testing import ScriptedModel, call


async def with_our_words() -> None:
    async with Scope("tidy") as scope:
        scope.spawn(anyio.sleep, 0)
    assert await to_thread(lambda: current_token().cancelled) is False


async def that_fails() -> None:
    raise ValueError("the disk is full")


async def that_spawns_into_what_stops() -> None:
    current_scope().spawn(anyio.sleep, 0)


def parked(clean_up: Callable[[], Awaitable[None]]) -> tuple[FunctionTool, anyio.Event]:
    reached = anyio.Event()

    @function_tool
    async def park() -> str:
        try:
            reached.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await clean_up()
        return "never"

    return park, reached


async def interrupted(tool: FunctionTool, reached: anyio.Event) -> tuple[StopReport, ToolResult]:
    model = ScriptedModel([call("park"), "done"])
    conversation = Conversation(Agent(name="clerk", tools=[tool], model=model))
    conversation.send_message("go")
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.arun)
        await reached.wait()
        report = await conversation.interrupt()
    assert conversation.status == "paused"
    (result,) = [item for item in conversation.items if isinstance(item, ToolResult)]
    assert result.outcome == "interrupted"
    assert "cope" not in result.output
    assert "disk" not in result.output
    return report, result


@pytest.mark.real_time
async def test_a_tool_whose_clean_up_uses_our_words_is_interrupted() -> None:
    report, _ = await interrupted(*parked(with_our_words))
    assert report.clean
    assert not report.errors


@pytest.mark.parametrize("clean_up", [that_fails, that_spawns_into_what_stops])
async def test_a_clean_up_that_fails_is_in_the_report_and_not_in_the_transcript(
    clean_up: Callable[[], Awaitable[None]],
) -> None:
    report, _ = await interrupted(*parked(clean_up))
    assert not report.clean
    assert not report.left
    assert len(report.errors) == 1
