"""Everything public of `quiesce.dropin.agents`, stopped at every point: nothing is left, and no clean-up is cut."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kernel.audited import ledger, work

from dropin_tests.audited import audit_test
from dropin_tests.openai_agents.made_up import UNTRACED, Scripted, Voice, call, say
from quiesce.dropin.agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    Runner,
    function_tool,
    input_guardrail,
)
from quiesce.dropin.agents.realtime import RealtimeAgent, RealtimeModelToolCallEvent, RealtimeRunner


@function_tool
async def tidy() -> str:
    """Work, and tidy up if stopped."""
    await work(2)
    return "worked"


@function_tool
async def tidy_beside() -> str:
    """Work beside it."""
    await work(3)
    return "worked"


@input_guardrail
async def check(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    await work(1)
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)


@input_guardrail
async def trip(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    await asyncio.sleep(0.5)
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)


def worker(**options: Any) -> Agent[Any]:
    model = Scripted([call("tidy"), call("tidy_beside")], [say("done")], first=lambda: work(0.5))
    return Agent(name="a", model=model, tools=[tidy, tidy_beside], **options)


async def a_run_with_tools() -> None:
    ledger.start()
    result = await Runner.run(worker(input_guardrails=[check]), "Go.", run_config=UNTRACED)
    ledger.report(result.report)


async def a_run_in_which_an_agent_is_a_tool() -> None:
    ledger.start()
    inner = worker().as_tool(tool_name="ask", tool_description="Ask.")
    model = Scripted([call("ask", '{"input": "x"}')], [say("done")])
    result = await Runner.run(Agent(name="b", model=model, tools=[inner]), "Go.", run_config=UNTRACED)
    ledger.report(result.report)


async def a_run_that_trips() -> None:
    ledger.start()
    try:
        await Runner.run(worker(input_guardrails=[trip]), "Go.", run_config=UNTRACED)
    except InputGuardrailTripwireTriggered:
        return
    raise AssertionError("it did not trip")


async def a_streamed_run() -> None:
    ledger.start()
    result = Runner.run_streamed(worker(input_guardrails=[check]), "Go.", run_config=UNTRACED)
    async for _ in result.stream_events():
        pass
    ledger.report(result.report)


async def a_streamed_run_that_trips() -> None:
    ledger.start()
    result = Runner.run_streamed(worker(input_guardrails=[trip]), "Go.", run_config=UNTRACED)
    try:
        async for _ in result.stream_events():
            pass
    except InputGuardrailTripwireTriggered:
        return
    raise AssertionError("it did not trip")


async def a_streamed_run_in_a_block_that_is_left_early() -> None:
    ledger.start()
    async with Runner.run_streamed(worker(), "Go.", run_config=UNTRACED) as result:
        async for _ in result.stream_events():
            await asyncio.sleep(1)
            break
    ledger.report(result.report)


async def a_streamed_run_that_another_task_closes() -> None:
    ledger.start()
    async with Runner.run_streamed(worker(), "Go.", run_config=UNTRACED) as result:
        closing = asyncio.create_task(close_later(result))
        try:
            async for _ in result.stream_events():
                pass
        finally:
            closing.cancel()
            await asyncio.wait([closing])


async def close_later(result: Any) -> None:
    await asyncio.sleep(1)
    await result.close()


async def a_streamed_run_that_is_cancelled_as_with_the_sdk() -> None:
    ledger.start()
    result = Runner.run_streamed(worker(), "Go.", run_config=UNTRACED)
    async for _ in result.stream_events():
        result.cancel()


async def a_realtime_session() -> None:
    ledger.start()
    calls = [
        RealtimeModelToolCallEvent(name=name, call_id=name, arguments="{}")
        for name in ("tidy", "tidy_beside")
    ]
    runner = RealtimeRunner(
        RealtimeAgent(name="a", tools=[tidy, tidy_beside]),
        model=Voice(*calls),
        config={"tracing_disabled": True},
    )
    async with await runner.run() as session:
        await session.send_message("Hello")
        await asyncio.sleep(1)
    ledger.report(session.report)


test_stopped_anywhere_nothing_is_left = audit_test(
    [
        a_run_with_tools,
        a_run_in_which_an_agent_is_a_tool,
        a_run_that_trips,
        a_streamed_run,
        a_streamed_run_that_trips,
        a_streamed_run_in_a_block_that_is_left_early,
        a_streamed_run_that_another_task_closes,
        a_streamed_run_that_is_cancelled_as_with_the_sdk,
        a_realtime_session,
    ],
    theirs={
        "unawaited run_single_turn": "the SDK makes this coroutine before the task that is to await it has begun"
    },
)
