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
    ToolTimeoutError,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from quiesce.kernel.threads import idle_threads, thread_child
from quiesce.testing import call
from tests.agents.conversations import running, talk
from tests.agents.scenes import outcomes, results_in, scripted, session_with, time_limit_once

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


@pytest.mark.parametrize("streamed", [False, True], ids=["run", "streamed"])
async def test_a_call_that_waited_for_a_thread_and_never_began_says_so(
    hanging: Hanging, streamed: bool
) -> None:
    session = await session_with()
    async with Scope("app", grace=SHORT) as app:
        app.spawn(Runner.run, scripted([call("hang")] * 40, "ok", tools=[hanging.tool]), "?")
        await until(lambda: hanging.begun == 40)
        agent, config = scripted(call("quick"), tools=[quick]), RunConfig(grace=SHORT)
        with anyio.move_on_after(0.3):
            if streamed:
                async for _ in Runner.run_streamed(
                    agent, "?", session=session, run_config=config
                ).stream_events():
                    pass
            else:
                await Runner.run(agent, "?", session=session, run_config=config)
        (result,) = results_in(await session.get_items())
        assert (result.outcome, result.elapsed) == ("not_started", None)
        assert result.output.startswith("Not started: ")
        hanging.let_go()


async def test_a_call_whose_scope_stops_before_it_has_a_thread_is_not_started(hanging: Hanging) -> None:
    """Its token is cancelled and it is not, for as long as it may cooperate: then a thread comes free, too late."""
    conversation = talk(call("quick"), tools=(quick,), grace=Grace(cooperate=5, cancel=0.1))
    async with Scope("app", grace=SHORT) as app:
        app.spawn(Runner.run, scripted([call("hang")] * 40, "ok", tools=[hanging.tool]), "?")
        await until(lambda: hanging.begun == 40)
        async with running(conversation):
            await anyio.sleep(0.2)
            stopping = conversation.interrupt()
            hanging.let_go()
            await stopping
    assert outcomes(conversation.items) == ["not_started"]


async def test_a_timeout_that_passes_while_a_call_waits_for_a_thread_says_that_it_never_began(
    hanging: Hanging,
) -> None:
    async with Scope("app", grace=SHORT) as app:
        app.spawn(Runner.run, scripted([call("hang")] * 40, "ok", tools=[hanging.tool]), "?")
        await until(lambda: hanging.begun == 40)
        hurried = function_tool(lambda: "here", name_override="hurried", timeout=0.2)
        result = await Runner.run(scripted(call("hurried"), "ok", tools=[hurried]), "?")
        (told,) = results_in(result.new_items)
        assert (told.outcome, told.elapsed) == ("not_started", None)
        assert told.output == "tool 'hurried' was not started: it waited for a thread for 0.2 s, its timeout"
        strict = function_tool(
            lambda: "here", name_override="strict", timeout=0.2, timeout_behavior="raise_exception"
        )
        with pytest.raises(ToolTimeoutError) as caught:
            await Runner.run(scripted(call("strict"), tools=[strict]), "?")
        assert "waited for a thread" in caught.value.__notes__[0]
        hanging.let_go()


async def test_a_thread_that_has_only_just_begun_when_its_time_is_over_is_still_running() -> None:
    """The thread is certain to begin, and has not come to its first line: that is not "not started"."""
    let_go = threading.Event()

    @function_tool
    def late_riser() -> str:
        return "ran all the same"

    def wait_first(name: str, work: Any) -> None:
        def slowly() -> Any:
            let_go.wait(15)
            return work()

        start(name, slowly)

    start = idle_threads.run_in_thread
    nothing = Grace(cancel=0, terminate=0, kill=0)
    session = await session_with()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_child, "run_in_thread", wait_first)
        async with Scope("app", grace=SHORT):
            with anyio.move_on_after(0.2):
                agent = scripted(call("late_riser"), tools=[late_riser])
                await Runner.run(agent, "?", session=session, run_config=RunConfig(grace=nothing))
            assert outcomes(await session.get_items()) == ["still_running"]
            let_go.set()
