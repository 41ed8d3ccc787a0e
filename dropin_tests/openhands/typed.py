"""A program of a user, for type checkers: the types are the SDK's, and ours where we add something."""

from __future__ import annotations

from typing import assert_type

import openhands.sdk
from openhands.sdk.conversation import BaseConversation

from quiesce import StopReport
from quiesce.dropin.openhands import Conversation as SameConversation
from quiesce.dropin.openhands.sdk import (
    LLM,
    Agent,
    Conversation,
    LocalConversation,
    RemoteConversation,
    RemoteWorkspace,
    Tool,
)


def make() -> LocalConversation:
    agent = Agent(llm=LLM(model="openai/gpt-5"), tools=[Tool(name="terminal")])
    theirs: openhands.sdk.Agent = agent
    conversation = Conversation(agent=theirs, workspace="project", max_iteration_per_run=3)
    assert_type(conversation, LocalConversation)
    assert_type(SameConversation(agent), LocalConversation)
    as_theirs: openhands.sdk.LocalConversation = conversation
    as_base: BaseConversation = as_theirs
    as_base.send_message("Hello")
    return conversation


def use(conversation: LocalConversation) -> None:
    conversation.run()
    conversation.interrupt()
    assert_type(conversation.fork(), LocalConversation)
    assert_type(conversation.report, StopReport | None)
    assert_type(conversation.close(), StopReport)


async def use_async(conversation: LocalConversation) -> None:
    await conversation.arun()
    assert_type(await conversation.aclose(), StopReport)


def use_remote(agent: Agent, workspace: RemoteWorkspace) -> None:
    assert_type(Conversation(agent, workspace=workspace), RemoteConversation)
