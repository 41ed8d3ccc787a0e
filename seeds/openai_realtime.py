"""openai-agents 0.18.0: a realtime session that is left while a tool and an output guardrail run.

Both give back what they hold, which takes them a moment: the `finally` of everything with a connection.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from agents import GuardrailFunctionOutput, OutputGuardrail, function_tool
from agents.realtime import (
    RealtimeAgent,
    RealtimeModel,
    RealtimeModelListener,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeRunner,
)

SAYS = RealtimeModelTranscriptDeltaEvent(item_id="1", delta="I am looking. " * 10, response_id="1")
CALLS = RealtimeModelToolCallEvent(name="look_up", call_id="1", arguments='{"word": "hello"}')


class ScriptedModel(RealtimeModel):
    """Says something long enough for a guardrail, and calls the tool, as soon as it hears something."""

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
            for listener in list(self._listeners):
                await listener.on_event(SAYS)
                await listener.on_event(CALLS)

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


async def ask_policy_service(*_: Any) -> GuardrailFunctionOutput:
    try:
        await asyncio.sleep(0.5)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)
    finally:
        await asyncio.sleep(0.1)


async def hold_one_conversation() -> None:
    agent = RealtimeAgent(
        name="greeter", tools=[look_up], output_guardrails=[OutputGuardrail(ask_policy_service)]
    )
    runner = RealtimeRunner(agent, model=ScriptedModel(), config={"tracing_disabled": True})
    async with await runner.run() as session:
        await session.send_message("Look up hello.")
        async with aclosing(aiter(session)) as events:
            async for event in events:
                if event.type == "tool_end":
                    break
