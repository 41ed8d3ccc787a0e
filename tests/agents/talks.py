"""Runs and conversations that are told the same things, and what is in their stores afterwards."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce.agents import (
    Agent,
    Conversation,
    GuardrailFunctionOutput,
    LogSession,
    MemoryStore,
    RunHooks,
    Runner,
    function_tool,
)
from quiesce.agents.conversation.restore import restore
from quiesce.agents.store import encode_event, recover
from quiesce.models import (
    Item,
    Note,
)
from quiesce.testing import Answer, call
from tests.agents.scenes import (
    all_events,
    passes,
    trips,
)

SECRET = "the launch code"


class Once:
    """A guardrail function that says no the first time, after a while, and lets pass what comes later."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, *_: object) -> GuardrailFunctionOutput:
        self.asked += 1
        first = self.asked == 1
        await anyio.sleep(0.05)
        return trips() if first else passes()


class Talk:
    """Runs of one agent with one history, in a store that another process could read."""

    def __init__(self, how: str, agent: Agent[Any], store: Any = None, **options: Any) -> None:
        self.how = how
        self.agent = agent
        self.options = options
        self.store = store if store is not None else MemoryStore()
        self.session = LogSession(self.store.open("talk"))
        self.conversation: Conversation | None = None
        if how == "conversation":
            self.conversation = Conversation(agent, store=self.store, conversation_id="talk", **options)

    async def say(self, text: str = "Hello") -> Any:
        """Say that, and let the agent answer."""
        if self.conversation is not None:
            await self.conversation.asend_message(text)
            return await self.conversation.arun()
        if self.how == "run":
            return await Runner.run(self.agent, text, session=self.session, **self.options)
        result = Runner.run_streamed(self.agent, text, session=self.session, **self.options)
        await all_events(result)
        return result

    async def kept(self) -> list[Item]:
        """What is in the store, which is what the conversation says that there is; without notes on a stop."""
        events = await self.store.open("talk").read()
        if self.conversation is None:
            return await LogSession(self.store.open("talk")).get_items()
        items = restore(recover(events)).history.items
        if self.conversation.status != "running":
            assert items == self.conversation.items
        return [item for item in items if not isinstance(item, Note)]

    async def written(self) -> str:
        """All of the log, as it is on a disk."""
        return "\n".join(map(encode_event, await self.store.open("talk").read()))


class Reports(RunHooks[Any]):
    """Keeps what a run reports."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def on_settled(self, context: Any, agent: Any, report: Any) -> None:
        self.texts.append(str(report))


every_way = pytest.mark.parametrize("how", ["run", "streamed", "conversation"])


@function_tool
async def look() -> str:
    """Look around."""
    return "a door"


TWO_TURNS = [Answer([f"I look for {SECRET}."], [call("look")], reasoning=f"hm, {SECRET}"), f"It is {SECRET}."]
