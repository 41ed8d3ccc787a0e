"""Realtime sessions that have ended when `close()` returns."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import agents.realtime
import pytest
from tests.world import asyncio_only

from quiesce import current_token
from quiesce.dropin.agents import function_tool
from quiesce.dropin.agents.realtime import (
    RealtimeAgent,
    RealtimeModelToolCallEvent,
    RealtimeRunner,
    RealtimeSession,
)

from .made_up import Voice

pytestmark = asyncio_only


def event(name: str) -> Any:
    return RealtimeModelToolCallEvent(name=name, call_id=name, arguments="{}")


async def open_session(*events: Any, tools: list[Any]) -> tuple[RealtimeSession, Voice]:
    model = Voice(*events)
    runner = RealtimeRunner(
        RealtimeAgent(name="a", tools=tools), model=model, config={"tracing_disabled": True}
    )
    return await (await runner.run()).enter(), model  # type: ignore[return-value, unused-ignore]


class Slow:
    """A tool that needs longer to clean up than the SDK waits."""

    def __init__(self) -> None:
        self.cleaned = 0

        @function_tool
        async def slow() -> str:
            """Work."""
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(2)
                self.cleaned += 1
            return ""

        self.tool = slow


async def test_close_waits_for_tools_and_reports() -> None:
    slow = Slow()
    session, model = await open_session(event("slow"), tools=[slow.tool])
    assert isinstance(session, agents.realtime.RealtimeSession)
    await asyncio.sleep(0.1)
    report = await asyncio.create_task(session.close())
    assert (slow.cleaned, model.is_closed, report.clean) == (1, True, True)
    assert session.report is not None


async def test_close_waits_for_tools_that_were_started_by_another_task() -> None:
    slow = Slow()
    session, _ = await open_session(tools=[slow.tool])
    await session.on_event(event("slow"))
    await asyncio.sleep(0.1)
    await session.close()
    assert slow.cleaned == 1


async def test_a_close_under_a_timeout_is_not_left_behind() -> None:
    slow = Slow()
    session, model = await open_session(event("slow"), tools=[slow.tool])
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await session.close()
    assert (slow.cleaned, model.is_closed) == (1, True)


async def test_the_reader_of_a_session_that_another_task_closes_sees_its_end() -> None:
    session, _ = await open_session(tools=[])

    async def read() -> list[str]:
        return [event.type async for event in session]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    await session.close()
    events = await asyncio.wait_for(reading, 1)
    assert events[0] == "history_updated"


async def test_a_session_as_a_block_is_closed_twice_without_harm() -> None:
    runner = RealtimeRunner(RealtimeAgent(name="a"), model=Voice(), config={"tracing_disabled": True})
    async with await runner.run() as session:
        await session.send_message("Hello")
        assert (await session.close()).clean
    assert (await session.close()).clean


async def test_a_session_that_was_never_entered_can_be_closed() -> None:
    runner = RealtimeRunner(RealtimeAgent(name="a"), model=Voice(), config={"tracing_disabled": True})
    session = await runner.run()
    assert (await session.close()).clean


async def test_a_model_that_does_not_connect_is_its_own_error() -> None:
    class Deaf(Voice):
        async def connect(self, options: Any) -> None:
            raise ConnectionError("refused")

    runner = RealtimeRunner(RealtimeAgent(name="a"), model=Deaf(), config={"tracing_disabled": True})
    with pytest.raises(ConnectionError, match="refused"):
        await (await runner.run()).enter()


@pytest.mark.real_time
async def test_a_sync_tool_has_ended_when_close_returns() -> None:
    ended: list[str] = []

    @function_tool
    def block() -> str:
        """Work in a thread."""
        token = current_token()
        while not token.cancelled:
            time.sleep(0.01)
        ended.append("block")
        return ""

    session, _ = await open_session(event("block"), tools=[block])
    await asyncio.sleep(0.1)
    await session.close()
    assert ended == ["block"]
