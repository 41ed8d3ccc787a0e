"""openai-agents 0.18.0: a realtime session whose model calls a tool, and that is left while the tool runs.

The tool gives back what it holds, which takes it a moment: the `finally` of every tool with a connection.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from agents import function_tool
from agents.realtime import (
    RealtimeAgent,
    RealtimeModel,
    RealtimeModelListener,
    RealtimeModelToolCallEvent,
    RealtimeRunner,
)


class ScriptedModel(RealtimeModel):
    """Calls the tool as soon as it hears something."""

    def __init__(self) -> None:
        self._listeners: list[RealtimeModelListener] = []

    def add_listener(self, listener: RealtimeModelListener) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def connect(self, options: Any) -> None:
        await asyncio.sleep(0.1)

    async def send_event(self, event: Any) -> None:
        await asyncio.sleep(0.1)
        if "user_input" in vars(event):
            call = RealtimeModelToolCallEvent(name="look_up", call_id="1", arguments='{"word": "hello"}')
            for listener in list(self._listeners):
                await listener.on_event(call)

    async def close(self) -> None:
        await asyncio.sleep(0)


@function_tool
async def look_up(word: str) -> str:
    """Look a word up."""
    try:
        await asyncio.sleep(1)
        return f"{word} is a greeting"
    finally:
        await asyncio.sleep(0.1)


async def hold_one_conversation() -> None:
    agent = RealtimeAgent(name="greeter", tools=[look_up])
    runner = RealtimeRunner(agent, model=ScriptedModel(), config={"tracing_disabled": True})
    async with await runner.run() as session:
        await session.send_message("Look up hello.")
        async with aclosing(aiter(session)) as events:  # type: ignore[type-var]
            async for event in events:
                if event.type == "tool_end":
                    break
