"""Pieces of conversations for tests: one that runs beside the test, and tools to stop it in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from quiesce.agents import Agent, Conversation, FunctionTool, function_tool
from quiesce.testing import ScriptedModel
from tests.agents.scenes import Parked, assert_valid


class Running:
    """What became of an `arun()`."""

    status: str | None = None
    error: BaseException | None = None
    ended: anyio.Event

    def __init__(self) -> None:
        self.ended = anyio.Event()


@asynccontextmanager
async def running(conversation: Conversation) -> AsyncGenerator[Running, None]:
    """`arun()` beside the block, which waits for its end."""
    run = Running()

    async def go() -> None:
        try:
            run.status = await conversation.arun()
        except Exception as error:
            run.error = error
        finally:
            run.ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(go)
        yield run
        await run.ended.wait()


def parked_tool(parked: Parked, name: str = "park", **options: Any) -> FunctionTool:
    """An async tool that waits for ever."""

    async def park() -> str:
        await parked.park()
        return "never"

    return function_tool(park, name_override=name, **options)


def talk(
    *turns: Any, tools: tuple[FunctionTool, ...] = (), said: str | None = "Hello", **options: Any
) -> Conversation:
    """A conversation with an agent that says these turns, in which the user has said something."""
    agent_options = {
        key: options.pop(key) for key in ("input_guardrails", "handoffs", "output_type") if key in options
    }
    agent: Agent[Any] = Agent(
        name="assistant", model=ScriptedModel(turns), tools=list(tools), **agent_options
    )
    conversation = Conversation(agent, **options)
    if said is not None:
        conversation.send_message(said)
    return conversation


def asked(conversation: Conversation) -> list[Any]:
    """What the model was asked, each time; every one of them must be what providers accept."""
    model: Any = conversation.agent.model
    for request in model.requests:
        assert_valid(request.items)
    return list(model.requests)
