"""The threads of tools: those that hang keep no other run waiting, and a call that never had one says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents import (
    FunctionTool,
    GuardrailFunctionOutput,
    RunConfig,
    Runner,
    ToolGuardrailFunctionOutput,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from quiesce.testing import call
from tests.agents.scenes import scripted, time_limit_once

pytestmark = pytest.mark.real_time

SHORT = Grace(cancel=0.1, terminate=0.4, kill=0.4)


class Hanging:
    """A sync tool that never looks at its token."""

    def __init__(self) -> None:
        self.begun = 0
        self._let_go = threading.Event()
        self.tool = function_tool(self.hang)

    def hang(self) -> str:
        """Hang."""
        self.begun += 1
        self._let_go.wait(15)
        return "late"

    def let_go(self) -> None:
        self._let_go.set()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.let_go()


@function_tool
def quick() -> str:
    """Return at once."""
    return "here"


async def until(condition: Any) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.005)


def allow(*_: object) -> Any:
    return GuardrailFunctionOutput(None, tripwire_triggered=False)


def allow_call(*_: object) -> Any:
    return ToolGuardrailFunctionOutput.allow()


async def test_forty_tools_that_were_given_up_keep_no_other_run_waiting(hanging: Hanging) -> None:
    async with Scope("app", grace=SHORT):
        forty = scripted([call("hang")] * 40, tools=[hanging.tool])
        async with time_limit_once(lambda: hanging.begun == 40):
            await Runner.run(forty, "?", run_config=RunConfig(grace=SHORT))
        assert hanging.begun == 40
        with anyio.fail_after(5):
            result = await Runner.run(scripted(call("quick"), "ok", tools=[quick]), "?")
        assert result.final_output == "ok"
        hanging.let_go()


async def test_guardrails_instructions_and_handoffs_do_not_wait_for_tools(hanging: Hanging) -> None:
    async with Scope("app", grace=SHORT) as app:
        app.spawn(Runner.run, scripted([call("hang")] * 40, "ok", tools=[hanging.tool]), "?")
        await until(lambda: hanging.begun == 40)

        async def at_once(*_: object) -> str:
            return "done"

        checked = FunctionTool(
            "checked",
            "",
            {"type": "object", "properties": {}},
            at_once,
            tool_input_guardrails=[tool_input_guardrail(allow_call)],
            tool_output_guardrails=[tool_output_guardrail(allow_call)],
        )
        other = scripted("ok", name="other", instructions=lambda *_: "Be brief.")
        agent = scripted(
            [call("checked"), call("transfer_to_other")],
            tools=[checked],
            instructions=lambda *_: "Be brief.",
            input_guardrails=[input_guardrail(allow)],
            output_guardrails=[output_guardrail(allow)],
            handoffs=[handoff(other, on_handoff=lambda _: None)],
        )
        with anyio.fail_after(5):
            assert (await Runner.run(agent, "?")).final_output == "ok"
        hanging.let_go()
