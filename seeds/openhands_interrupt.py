"""openhands-sdk 1.24.0: a conversation that is interrupted while a tool runs in its thread.

The tool asks for the token as the package documents it, each time round. Its twin takes the token once, when it is
asked for, and so keeps it: what is found with the one and not with the other is the token that was lost.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from openhands.sdk import Agent, Conversation, Event, LocalConversation, Tool, register_tool
from openhands.sdk.event import ActionEvent
from openhands.sdk.llm import Message, MessageToolCall, TextContent
from openhands.sdk.testing import TestLLM
from openhands.sdk.tool import Action, Observation, ToolDefinition, ToolExecutor

WORKSPACE = tempfile.gettempdir()
WORK = 2.0  # real seconds, if nobody stops it: longer than the audit waits for a thread to end


class PollAction(Action):
    keeps_token: bool = False


class PollObservation(Observation):
    pass


class PollExecutor(ToolExecutor[PollAction, PollObservation]):
    """Says that it has begun, works in small steps and looks between them whether it should end."""

    say_begun: ClassVar[list[Callable[[], object]]] = []
    kept: ClassVar[Any] = None  # the token of the run, taken when it asked for the tool

    def __call__(self, action: PollAction, conversation: Any = None) -> PollObservation:
        for say in self.say_begun:
            say()
        end = time.monotonic() + WORK
        while time.monotonic() < end:
            token = self.kept if action.keeps_token else conversation.cancel_token
            if token is not None and token.is_cancelled:
                return PollObservation.from_text(text="cancelled")
            time.sleep(0.01)
        return PollObservation.from_text(text="worked to the end")


class PollTool(ToolDefinition[PollAction, PollObservation]):
    @classmethod
    def create(cls, *_: Any, **__: Any) -> Sequence[Self]:
        return [
            cls(
                action_type=PollAction,
                observation_type=PollObservation,
                description="Works for a while.",
                executor=PollExecutor(),
            )
        ]


register_tool(PollTool.__name__, PollTool)


def script(*, keeps_token: bool) -> TestLLM:
    call = MessageToolCall(
        id="1",
        name=PollTool.name,
        arguments=f'{{"keeps_token": {str(keeps_token).lower()}}}',
        origin="completion",
    )
    return TestLLM.from_messages(
        [
            Message(role="assistant", content=[TextContent(text="")], tool_calls=[call]),
            Message(role="assistant", content=[TextContent(text="done")]),
        ]
    )


async def _converse(*, keeps_token: bool) -> None:
    agent = Agent(llm=script(keeps_token=keeps_token), tools=[Tool(name=PollTool.__name__)])

    def keep_token(event: Event) -> None:
        if isinstance(event, ActionEvent):
            PollExecutor.kept = conversation.cancel_token

    conversation = Conversation(
        agent, workspace=WORKSPACE, callbacks=[keep_token], visualizer=None, stuck_detection=False
    )
    assert isinstance(conversation, LocalConversation)
    conversation.send_message("Work for a while.")
    begun = asyncio.Event()
    PollExecutor.say_begun[:] = [partial(asyncio.get_running_loop().call_soon_threadsafe, begun.set)]
    run = asyncio.create_task(conversation.arun(), name="the run")
    try:
        await begun.wait()
        await asyncio.wait({run})
    finally:
        conversation.interrupt()
        await asyncio.wait({run})
        conversation.close()
    run.result()


async def interrupt_a_polling_tool() -> None:
    await _converse(keeps_token=False)


async def interrupt_a_tool_that_keeps_its_token() -> None:
    await _converse(keeps_token=True)
