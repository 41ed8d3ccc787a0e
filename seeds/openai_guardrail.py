"""openai-agents 0.19.0: a run with an input guardrail beside the model, and a model that needs five seconds.

Nothing here fails by itself. The stop "raise" makes the guardrail fail at the point where it waits, which is what a
guardrail that asks a service does on a bad day.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
)
from openai.types.responses import ResponseOutputMessage, ResponseOutputText


class SlowModel(Model):
    """Says hello after five seconds."""

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        await asyncio.sleep(5)
        text = ResponseOutputText(text="hello", type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id="1", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("this scenario does not stream")


async def ask_policy_service(*_: Any) -> GuardrailFunctionOutput:
    await asyncio.sleep(1)
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)


async def answer_one_question() -> None:
    guardrail = InputGuardrail(ask_policy_service, run_in_parallel=True)
    agent = Agent(name="greeter", model=SlowModel(), input_guardrails=[guardrail])
    result = await Runner.run(agent, "Say hello.", run_config=RunConfig(tracing_disabled=True))
    assert result.final_output == "hello"
