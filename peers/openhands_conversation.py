"""openhands-sdk: a conversation in a tool that has a thread and polls the conversation's token, as its
documentation says.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from openhands.sdk import Agent, Conversation, LocalConversation, Tool, register_tool
from openhands.sdk.llm import Message, MessageToolCall, TextContent
from openhands.sdk.testing import TestLLM
from openhands.sdk.tool import Action, Observation, ToolDefinition, ToolExecutor

import quiesce

# --8<-- [start:imports]
from quiesce import Grace, Scope, contain

# --8<-- [end:imports]
from quiesce.dropin.openhands.sdk import Conversation as ContainedConversation

from .ways import Close, Ready, Scenario, Way

NO_LOOP = "a conversation is not a stream: there is nothing to break out of"


class CountAction(Action):
    pass


class CountObservation(Observation):
    pass


class CountExecutor(ToolExecutor[CountAction, CountObservation]):
    """Counts for ten seconds, and takes its token once, when it starts."""

    has_begun: ClassVar[list[Callable[[], object]]] = []

    def __call__(self, action: CountAction, conversation: Any = None) -> CountObservation:
        token = conversation.cancel_token
        self.has_begun[0]()
        for _ in range(200):
            if token is not None and token.is_cancelled:
                return CountObservation.from_text(text="cancelled")
            time.sleep(0.05)
        return CountObservation.from_text(text="done")


class CountTool(ToolDefinition[CountAction, CountObservation]):
    @classmethod
    def create(cls, *_: Any, **__: Any) -> Sequence[Self]:
        executor = CountExecutor()
        return [
            cls(
                action_type=CountAction,
                observation_type=CountObservation,
                description="Counts for a while.",
                executor=executor,
            )
        ]


register_tool(CountTool.__name__, CountTool)


def converse(ready: Ready, make: Callable[..., Any] = Conversation) -> LocalConversation:
    """A conversation whose model calls the tool at once."""
    call = MessageToolCall(id="1", name=CountTool.name, arguments="{}", origin="completion")
    model = TestLLM.from_messages(
        [
            Message(role="assistant", content=[TextContent(text="")], tool_calls=[call]),
            Message(role="assistant", content=[TextContent(text="done")]),
        ]
    )
    agent = Agent(llm=model, tools=[Tool(name=CountTool.__name__)])
    conversation = make(agent, workspace=tempfile.gettempdir(), visualizer=None, stuck_detection=False)
    assert isinstance(conversation, LocalConversation)
    loop = asyncio.get_running_loop()
    CountExecutor.has_begun[:] = [partial(loop.call_soon_threadsafe, ready)]
    conversation.send_message("Please count.")
    return conversation


async def use(make: Callable[..., Any], ready: Ready) -> None:
    conversation = converse(ready, make)
    try:
        await conversation.arun()
    finally:
        conversation.close()


# --8<-- [start:run]
async def run_once(conversation: LocalConversation) -> None:
    async with contain(), Scope("conversation", grace=Grace(cooperate=1)) as scope:
        # Any stop becomes an interrupt: that is what sets the token that its tools look at.
        scope.token.on_cancel(conversation.interrupt)
        scope.spawn(conversation.arun)


# --8<-- [end:run]
async def use_with(ready: Ready) -> None:
    conversation = converse(ready)
    try:
        await run_once(conversation)
    finally:
        conversation.close()


async def start(make: Callable[..., Any]) -> LocalConversation:
    """A conversation whose run is in its tool."""
    begun = asyncio.Event()
    conversation = converse(begun.set, make)
    _runs.add(asyncio.create_task(conversation.arun(), name="run"))
    await begun.wait()
    return conversation


_runs: set[asyncio.Task[None]] = set()


async def open_it() -> Close:
    conversation = await start(Conversation)

    async def close() -> None:
        conversation.close()

    return close


async def open_dropin() -> Close:
    conversation: Any = await start(ContainedConversation)
    return conversation.aclose


async def open_with() -> Close:
    scope = await Scope.open("conversation", grace=Grace(cooperate=1))
    begun = asyncio.Event()
    conversation = converse(begun.set)
    scope.token.on_cancel(conversation.interrupt)
    scope.spawn(conversation.arun)
    await begun.wait()
    return scope.close


def arun() -> Scenario:
    return Scenario(
        "arun",
        "`arun()`, in a tool that runs in a thread and polls its token",
        without=Way(partial(use, Conversation), open_it),
        with_quiesce=Way(use_with, open_with, run=quiesce.run),
        dropin=Way(partial(use, ContainedConversation), open_dropin, run=quiesce.run),
        impossible={"break": NO_LOOP},
    )
