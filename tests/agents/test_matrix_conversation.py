"""The matrix for conversations: a run of one is parked at every place where it can wait, and stopped there in every way.

What holds of other runs holds here too, and more: the conversation says that it is paused, its log tells the same history to who takes
it up again, and what the model is asked next is what providers take. Conversations have no session, so the places in sessions are left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from quiesce.agents import Agent, Conversation, MemoryStore
from quiesce.models import Item, UserMessage
from quiesce.testing import ScriptedModel
from tests.agents.await_points import POINTS
from tests.agents.conversations import asked
from tests.agents.scenes import Parked, assert_valid, outcomes
from tests.agents.ways_to_stop import CONVERSED, converse_and_stop

pytestmark = [pytest.mark.worlds("asyncio", "trio"), pytest.mark.time_limit(60)]

PLACES = [at for at in POINTS if not at.startswith("session_")]
CLOSES = [way for way in CONVERSED if "close" in way and not way.startswith("caller_")]


async def stopped_at(at: str, way: str, store: MemoryStore) -> list[Item]:
    """What a conversation knows that was stopped there."""
    parked = Parked()
    agent, options = POINTS[at](parked)
    conversation = Conversation(agent, store=store, conversation_id=at, **options)
    await conversation.asend_message("?")
    await converse_and_stop(way, conversation, parked)
    assert conversation.status == ("closed" if way in CLOSES else "paused")
    assert conversation.final_output is None
    items = conversation.items
    assert items[0] == UserMessage("?")
    if at == "approval_callback":  # nobody has decided, so the call waits on
        assert [call.name for call in conversation.pending_approvals] == ["work"]
        assert outcomes(items) == []
    else:
        assert not conversation.pending_approvals
        assert_valid(items)
    if way not in CLOSES:
        assert (await conversation.close()).clean
    return items


async def goes_on(at: str, store: MemoryStore, items: list[Item]) -> None:
    """Whoever takes it up again finds the same, and is answered."""
    agent: Agent[Any] = Agent(name="successor", model=ScriptedModel(["well"]))
    async with Conversation(agent, store=store, conversation_id=at) as again:
        assert again.items == items
        assert again.status == "paused"
        await again.asend_message("and now?")
        assert await again.arun() == "finished"
        assert asked(again)[0].items[: len(items)] == items
        assert_valid(again.items)


@pytest.mark.parametrize("way", CONVERSED)
async def test_a_conversation_stopped_anywhere_leaves_nothing_and_can_be_taken_up_again(way: str) -> None:
    wrong: list[Exception] = []
    for at in PLACES:
        store = MemoryStore()
        try:
            await goes_on(at, store, await stopped_at(at, way, store))
        except Exception as error:
            error.add_note(f"parked at {at}")
            wrong.append(error)
    if wrong:
        raise ExceptionGroup(f"{len(wrong)} of {len(PLACES)} places", wrong)
