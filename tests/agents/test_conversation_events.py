"""What a conversation tells whoever watches its runs, and how it gives up what waits for approval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Scope, current_token
from quiesce.agents import (
    Agent,
    Conversation,
    ConversationBusy,
    MemoryStore,
    RawResponseEvent,
    RunItemStreamEvent,
    Runner,
    SQLiteStore,
    StreamEvent,
    function_tool,
)
from quiesce.agents.run.transcript import CallRecord
from quiesce.models import TextDelta, ToolResult
from quiesce.testing import ScriptedModel, call
from tests.agents.transcript_rules import problems


@function_tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@function_tool(needs_approval=True)
async def delete(name: str) -> str:
    """Delete."""
    return f"{name} is gone"


def agent(*turns: Any) -> Agent[Any]:
    return Agent(name="helper", model=ScriptedModel(turns), tools=[add, delete])


async def test_a_run_tells_what_a_streamed_run_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallRecord, "elapsed", 0.0)  # which is real time
    turns = [["one ", "two", call("add", a=1, b=2)], "three"]
    told: list[StreamEvent] = []

    async def tell(event: StreamEvent) -> None:
        told.append(event)

    conversation = Conversation(agent(*turns))
    conversation.send_message("go")
    assert await conversation.arun(on_event=tell) == "finished"
    async with Runner.run_streamed(agent(*turns), "go") as result:
        streamed = [event async for event in result.stream_events()]
    assert told == streamed[1:]  # all but who begins


async def test_who_watches_one_run_does_not_watch_the_next() -> None:
    told: list[StreamEvent] = []

    async def tell(event: StreamEvent) -> None:
        told.append(event)

    conversation = Conversation(agent("first", "second"))
    conversation.send_message("go")
    await conversation.arun(on_event=tell)
    before = len(told)
    conversation.send_message("go on")
    await conversation.arun()
    assert len(told) == before


async def test_a_run_waits_for_who_watches_it_and_fails_with_it() -> None:
    async def tell(event: StreamEvent) -> None:
        if isinstance(event, RawResponseEvent) and isinstance(event.data, TextDelta):
            await anyio.sleep(1)
            raise ValueError("I cannot look at this")

    conversation = Conversation(agent(["one", call("add", a=1, b=2)], "two"))
    conversation.send_message("go")
    with pytest.raises(ValueError, match="I cannot look"):
        await conversation.arun(on_event=tell)
    assert conversation.status == "error"
    assert problems(conversation.items, "items") == []


async def test_what_a_stop_has_cut_is_in_the_history_and_not_told() -> None:
    told: list[str] = []
    running = anyio.Event()

    async def tell(event: StreamEvent) -> None:
        if isinstance(event, RunItemStreamEvent):
            told.append(event.name)
            running.set()

    @function_tool
    async def wait() -> None:
        """Wait."""
        await anyio.sleep_forever()

    conversation = Conversation(Agent(name="helper", model=ScriptedModel([call("wait")]), tools=[wait]))
    conversation.send_message("go")
    async with Scope() as scope:
        scope.spawn(_run, conversation, tell)
        await running.wait()
        await anyio.sleep(1)
        await conversation.interrupt()
    assert told == ["tool_called"]
    assert [item.outcome for item in conversation.items if isinstance(item, ToolResult)] == ["interrupted"]


async def _run(conversation: Conversation, tell: Any) -> None:
    await conversation.arun(on_event=tell)


# Giving up


async def waiting(store: Any = None) -> Conversation:
    script = agent([call("delete", name="a"), call("add", a=1, b=2), call("delete", name="b")], "well then")
    conversation = Conversation(script, store=store, conversation_id="one" if store is not None else None)
    conversation.send_message("go")
    assert await conversation.arun() == "waiting_for_approval"
    return conversation


async def test_calls_that_are_given_up_have_their_result_at_once() -> None:
    conversation = await waiting()
    await conversation.agive_up_pending_actions("Not started: nobody is there.")
    assert conversation.pending_approvals == []
    assert conversation.status == "paused"
    results = [item for item in conversation.items if isinstance(item, ToolResult)]
    assert [(one.output, one.outcome) for one in results] == [
        ("Not started: nobody is there.", "not_started"),
        ("3", "finished"),
        ("Not started: nobody is there.", "not_started"),
    ]
    assert problems(conversation.items, "items") == []
    assert await conversation.arun() == "finished"


async def test_giving_up_nothing_is_nothing() -> None:
    conversation = Conversation(agent("hello"))
    await conversation.agive_up_pending_actions()
    conversation.send_message("go")
    await conversation.arun()
    before = conversation.events()
    await conversation.agive_up_pending_actions()
    assert conversation.events() == before
    assert conversation.status == "finished"


async def test_nothing_is_given_up_while_it_runs() -> None:
    async def slowly(request: Any) -> str:
        with pytest.raises(ConversationBusy):
            await conversation.agive_up_pending_actions()
        return "done"

    conversation = Conversation(agent(slowly))
    conversation.send_message("go")
    assert await conversation.arun() == "finished"


async def test_what_was_given_up_stays_so_in_the_store() -> None:
    store = MemoryStore()
    conversation = await waiting(store)
    await conversation.agive_up_pending_actions()
    again = Conversation(agent("hello"), store=store, conversation_id="one")
    assert again.items == conversation.items
    assert again.pending_approvals == []
    assert again.status == "paused"


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_what_was_given_up_stays_so_on_the_disk(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "chat.db") as store:
        conversation = await waiting(store)
        await conversation.agive_up_pending_actions()
        await conversation.close()
        again = Conversation(agent("hello"), store=store, conversation_id="one")
        assert again.items == conversation.items
        assert again.pending_approvals == []


# Tools that heed their token


async def test_a_tool_that_is_faster_than_the_cancel_of_its_run_was_interrupted() -> None:
    for _ in range(30):  # who is faster is a matter of luck, on trio
        begun = anyio.Event()

        @function_tool
        async def heed() -> None:
            """Stop when told, by the token alone."""
            begun.set()  # noqa: B023 - it runs in this round
            with anyio.CancelScope(shield=True):
                await current_token().wait()
            current_token().raise_if_cancelled()

        conversation = Conversation(Agent(name="helper", model=ScriptedModel([call("heed")]), tools=[heed]))
        conversation.send_message("go")
        async with Scope() as scope:
            running = scope.spawn(conversation.arun)
            await begun.wait()
            running.cancel()
            await running.wait()
        outcomes = [item.outcome for item in conversation.items if isinstance(item, ToolResult)]
        assert outcomes == ["interrupted"]
