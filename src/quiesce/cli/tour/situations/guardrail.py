"""A guardrail fails, and the model call next to it continues.

As in openai-agents 0.19: only the expected failure, the tripwire, cancels the model call. Any other failure does
not, and `asyncio.gather` never cancels the other awaitables.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from quiesce.agents import Agent, RunHooks, Runner, input_guardrail
from quiesce.cli.tour.stage import Stage
from quiesce.testing import ScriptedModel

GIVES_UP_AFTER, WATCHED_FOR, TOKEN = 0.4, 1.0, 0.05  # seconds


class TripwireTriggered(Exception):
    """The guardrail has rejected the input."""


async def ask_model(stage: Stage, tokens: list[str], request: Any = None) -> str:
    """A model call that streams, and costs money for as long as it does."""
    with stage.lane("model call"):
        for _ in range(600):
            await stage.rest(TOKEN)
            tokens.append("token")
    return "an answer"


async def check(stage: Stage, *_: Any) -> Any:
    """A guardrail that calls a service, which is down."""
    with stage.lane("guardrail"):
        await stage.rest(GIVES_UP_AFTER)
        raise ConnectionError("the policy service is down")


async def run_agent(stage: Stage, tokens: list[str]) -> str:
    model = asyncio.create_task(ask_model(stage, tokens), name="model call")
    try:
        _, answer = await asyncio.gather(check(stage), model)
    except TripwireTriggered:
        model.cancel()
        await asyncio.gather(model, return_exceptions=True)
        raise
    return answer


async def ordinary(stage: Stage) -> None:
    tokens: list[str] = []
    try:
        await run_agent(stage, tokens)
    except ConnectionError as error:
        stage.control_is_back(error)
    await count_what_follows(stage, tokens)


async def with_quiesce(stage: Stage) -> None:
    class Settled(RunHooks[Any]):
        async def on_settled(self, context: Any, agent: Any, report: Any) -> None:
            stage.record_report(report)

    tokens: list[str] = []
    agent: Agent[Any] = Agent(
        name="assistant",
        model=ScriptedModel([partial(ask_model, stage, tokens)]),
        input_guardrails=[input_guardrail(name="policy")(partial(check, stage))],
    )
    try:
        await Runner.run(agent, "Say hello.", hooks=Settled())
    except ConnectionError as error:
        stage.control_is_back(error)
    await count_what_follows(stage, tokens)


async def count_what_follows(stage: Stage, tokens: list[str]) -> None:
    so_far = len(tokens)
    await stage.rest(WATCHED_FOR)
    stage.say(f"the model call produced {len(tokens) - so_far} more tokens for nobody")
