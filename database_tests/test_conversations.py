"""Conversations whose server fails in the middle of their runs."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from database_tests.server import PostgresServer
from database_tests.test_faults import FAULTS
from quiesce.agents import Agent, Conversation, PostgresStore, function_tool
from quiesce.agents.store import ItemAdded, ToolStarted
from quiesce.models import ToolResult
from quiesce.testing import ScriptedModel, Turn, call

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(60)]
CALLS = 40


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_run_finishes_and_no_tool_starts_without_its_record_or_has_two_results(
    server: PostgresServer, schema: str, fault: str
) -> None:
    effects: list[str] = []

    @function_tool
    async def send(which: str) -> str:
        effects.append(which)
        await anyio.sleep(0.002)
        return "sent"

    async def talk(store: PostgresStore, name: str) -> None:
        turns: list[Turn] = [call("send", which=f"{name} {number}") for number in range(CALLS)]
        agent = Agent(name="clerk", model=ScriptedModel([*turns, "Done."]), tools=[send])
        async with Conversation(agent, store=store, conversation_id=name, max_turns=None) as conversation:
            await conversation.asend_message("Send them.")
            assert await conversation.arun() == "finished"

    async with PostgresStore(server.url, schema=schema, timeout=10.0) as store:
        try:
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(talk, store, f"c{number}")
                while len(effects) < 20:
                    await anyio.sleep(0.001)
                await anyio.to_thread.run_sync(FAULTS[fault], server)
        finally:
            server.resume()
            server.start()
        assert len(effects) == len(set(effects))
        started = results = 0
        for number in range(3):
            events = await store.open(f"c{number}").read()
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            calls = [event.call_id for event in events if isinstance(event, ToolStarted)]
            assert len(calls) == len(set(calls))
            answered = [
                event.item.call_id
                for event in events
                if isinstance(event, ItemAdded) and isinstance(event.item, ToolResult)
            ]
            assert len(answered) == len(set(answered))
            started += len(calls)
            results += len(answered)
        assert started == len(effects) == results == 3 * CALLS
        print(f"{fault}: {started} of {3 * CALLS} tools started, {len(effects)} effects, {results} results")
