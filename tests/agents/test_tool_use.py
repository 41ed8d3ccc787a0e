"""What the outputs of tools mean, when a tool must be used, and what is heard of an agent that is one."""

from __future__ import annotations

from typing import Any

import pytest

from quiesce.agents import (
    Agent,
    FunctionToolResult,
    MemorySession,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    Runner,
    StopAtTools,
    ToolsToFinalOutputResult,
    function_tool,
)
from quiesce.agents.decorators import tool
from quiesce.models import AssistantMessage, ModelSettings, ToolCall, ToolResult
from quiesce.testing import call
from tests.agents.scenes import (
    all_events,
    assert_valid,
    guarded_output,
    outcomes,
    requests_of,
    scripted,
    trips,
)


@tool
async def one(n: int) -> int:
    return n + 1


@tool(name_override="two", description_override="Another one.")
def two_(n: int) -> int:
    return n + 2


def test_the_newer_decorator_makes_the_same_tools() -> None:
    assert tool is function_tool
    assert (two_.name, two_.description, two_.isolation) == ("two", "Another one.", "thread")


# Which outputs end the run ------------------------------------------------------------------------------------


async def test_a_run_stops_at_the_tools_that_are_named_and_at_no_others() -> None:
    stop: StopAtTools = {"stop_at_tool_names": ["two"]}
    agent = scripted(
        call("one", n=1), [call("one", n=1), call("two", n=1)], tools=[one, two_], tool_use_behavior=stop
    )
    result = await Runner.run(agent, "?")
    assert result.final_output == 3
    assert len(requests_of(agent)) == 2
    assert_valid(result.to_input_list())


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_function_of_the_results_decides_whether_the_run_ends(kind: str) -> None:
    seen: list[list[FunctionToolResult]] = []

    def decide(
        context: RunContextWrapper[Any], results: list[FunctionToolResult]
    ) -> ToolsToFinalOutputResult:
        seen.append(results)
        return ToolsToFinalOutputResult(len(results) == 2, f"{context.context}: {results[-1].output}")

    async def decide_later(context: Any, results: Any) -> ToolsToFinalOutputResult:
        return decide(context, results)

    agent = scripted(
        call("one", n=1),
        [call("two", n=5), call("one", n=1)],
        tools=[one, two_],
        tool_use_behavior=decide if kind == "sync" else decide_later,
    )
    result = await Runner.run(agent, "?", context="sum")
    assert result.final_output == "sum: 2"
    assert [[(r.tool.name, r.output, r.run_item.output) for r in results] for results in seen] == [
        [("one", 2, "2")],
        [("two", 7, "7"), ("one", 2, "2")],  # in the order of the calls, whichever returned first
    ]


async def test_a_function_is_not_asked_about_calls_that_have_returned_nothing() -> None:
    @tool
    async def fails() -> str:
        raise LookupError("no")

    def decide(context: Any, results: Any) -> ToolsToFinalOutputResult:
        raise AssertionError("there is nothing to decide on")

    agent = scripted(call("fails"), call("unknown"), "done", tools=[fails], tool_use_behavior=decide)
    result = await Runner.run(agent, "?")
    assert result.final_output == "done"
    assert outcomes(result.new_items) == ["failed", "failed"]


async def test_a_function_that_returns_something_else_is_refused() -> None:
    agent = scripted(call("one", n=1), tools=[one], tool_use_behavior=lambda context, results: "done")
    with pytest.raises(TypeError, match="must return a ToolsToFinalOutputResult, and returned str"):
        await Runner.run(agent, "?")


async def test_results_that_make_the_final_output_are_not_kept_before_the_guardrails_have_passed_it() -> None:
    def all_of_it(context: Any, results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
        return ToolsToFinalOutputResult(True, [result.output for result in results])

    session = MemorySession("a")
    agent = scripted(
        [call("one", n=41), call("two", n=41)],
        tools=[one, two_],
        tool_use_behavior=all_of_it,
        output_guardrails=[guarded_output(trips())],
    )
    with pytest.raises(OutputGuardrailTripwireTriggered) as blocked:
        await Runner.run(agent, "?", session=session)
    items = await session.get_items()
    assert_valid(items)
    kept = [item.output for item in items if isinstance(item, ToolResult)]
    assert len(kept) == 2
    assert not any("42" in output or "43" in output for output in kept)
    details = blocked.value.run_data
    assert details is not None
    assert [item.output for item in details.blocked if isinstance(item, ToolResult)] == ["42", "43"]
    assert [result.output.tripwire_triggered for result in details.output_guardrail_results] == [True]


# Once a tool was used -----------------------------------------------------------------------------------------


async def choices(agent: Agent[Any], **options: Any) -> list[Any]:
    await Runner.run(agent, "?", **options)
    return [request.settings.tool_choice for request in requests_of(agent)]


async def test_a_tool_that_must_be_used_must_be_used_once() -> None:
    settings = ModelSettings(tool_choice="required", temperature=0.5)
    turns = call("one", n=1), call("one", n=2), "done"
    agent = scripted(*turns, tools=[one], model_settings=settings)
    assert await choices(agent) == ["required", None, None]
    assert [request.settings.temperature for request in requests_of(agent)] == [0.5] * 3
    config = RunConfig(model_settings=ModelSettings(tool_choice="one"))
    assert await choices(scripted(*turns, tools=[one]), run_config=config) == ["one", None, None]
    stubborn = scripted(*turns, tools=[one], model_settings=settings, reset_tool_choice=False)
    assert await choices(stubborn) == ["required"] * 3


async def test_each_agent_of_a_run_must_use_a_tool_once() -> None:
    settings = ModelSettings(tool_choice="required")
    second = scripted(call("one", n=1), "done", name="second", tools=[one], model_settings=settings)
    first = scripted(
        call("one", n=1), call("transfer_to_second"), tools=[one], handoffs=[second], model_settings=settings
    )
    assert await choices(first) == ["required", None]
    assert [request.settings.tool_choice for request in requests_of(second)] == ["required", None]


async def test_a_run_that_goes_on_after_an_approval_remembers_which_agents_have_used_a_tool() -> None:
    pay = tool(one.function, name_override="pay", needs_approval=True)  # type: ignore[arg-type]
    settings = ModelSettings(tool_choice="required")
    agent = scripted(call("one", n=1), call("pay", n=1), "done", tools=[one, pay], model_settings=settings)
    state = (await Runner.run(agent, "?")).to_state()
    state.approve(state.interruptions[0])
    await Runner.run(agent, state)
    assert [request.settings.tool_choice for request in requests_of(agent)] == ["required", None, None]


# Agents as tools ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_agent_as_a_tool_tells_what_it_does(kind: str) -> None:
    heard: list[Any] = []

    async def hear(told: Any) -> None:
        heard.append(told)

    inner = scripted(call("one", n=1), "done", name="inner", tools=[one])
    listener: Any = heard.append if kind == "sync" else hear
    outer = scripted(call("inner", "c1", input="go"), "ok", tools=[inner.as_tool(on_stream=listener)])
    assert (await Runner.run(outer, "?")).final_output == "ok"
    assert {told["agent"].name for told in heard} == {"inner"}
    assert all(told["tool_call"] == ToolCall("c1", "inner", '{"input":"go"}') for told in heard)
    names = [told["event"].name for told in heard if told["event"].type == "run_item_stream_event"]
    assert names == ["tool_called", "tool_output", "message_output_created"]


async def test_a_listener_that_raises_ends_the_inner_run_and_the_model_is_told() -> None:
    def refuse(told: Any) -> None:
        raise LookupError("nobody listens")

    inner = scripted("never", name="inner")
    outer = scripted(call("inner", input="go"), "ok", tools=[inner.as_tool(on_stream=refuse)])
    result = await Runner.run(outer, "?")
    assert outcomes(result.new_items) == ["failed"]
    assert "nobody listens" in str(result.new_items[1])


async def test_an_agent_as_a_tool_may_be_hidden_and_may_need_an_approval() -> None:
    inner = scripted("done", name="inner")
    hidden = inner.as_tool("hidden", is_enabled=lambda context, agent: context.context == "fr")
    asked = inner.as_tool("asked", needs_approval=lambda context, arguments, call_id: True)
    outer = scripted(call("asked", input="go"), tools=[hidden, asked])
    result = await Runner.run(outer, "?", context="en")
    assert [spec.name for spec in requests_of(outer)[0].tools] == ["asked"]
    assert [waiting.name for waiting in result.interruptions] == ["asked"]
    context = RunContextWrapper("fr")
    assert [one.name for one in await outer.get_all_tools(context)] == ["hidden", "asked"]


# Approvals ----------------------------------------------------------------------------------------------------


async def test_a_tool_may_be_approved_for_the_rest_of_the_run() -> None:
    pay = tool(one.function, name_override="pay", needs_approval=True)  # type: ignore[arg-type]
    keep = tool(one.function, name_override="keep", needs_approval=True)  # type: ignore[arg-type]
    agent = scripted(
        [call("pay", n=1), call("pay", n=2)], [call("pay", n=3), call("keep", n=4)], "done", tools=[pay, keep]
    )
    state = (await Runner.run(agent, "?")).to_state()
    first, _ = state.get_interruptions()
    assert (first.agent, first.tool_name, first.arguments) == (agent, "pay", '{"n":1}')
    assert (first.type, first.raw_item.call_id) == ("tool_approval_item", first.call_id)
    state.approve(first, always_approve=True)
    assert state.interruptions == [], "the second call is of the same tool"
    result = await Runner.run(agent, state)
    (waiting,) = result.interruptions  # the decision goes on to hold, and only for that tool
    assert waiting.name == "keep"
    state = result.to_state()
    state.approve(waiting)
    result = await Runner.run(agent, state)
    assert result.final_output == "done"
    assert outcomes(result.new_items) == ["finished"] * 4


async def test_a_tool_may_be_rejected_for_the_rest_of_the_run() -> None:
    pay = tool(one.function, name_override="pay", needs_approval=True)  # type: ignore[arg-type]
    agent = scripted(call("pay", n=1), call("pay", n=2), "done", tools=[pay])
    state = (await Runner.run(agent, "?")).to_state()
    state.reject(state.interruptions[0], always_reject=True, rejection_message="Not today.")
    result = await Runner.run(agent, state)
    told = [item.output for item in result.new_items if isinstance(item, ToolResult)]
    assert told == ["Not today.", "Not today."]
    assert result.new_items[-1] == AssistantMessage("done")


async def test_one_decision_may_differ_from_the_one_that_holds_for_the_rest() -> None:
    pay = tool(one.function, name_override="pay", needs_approval=True)  # type: ignore[arg-type]
    agent = scripted([call("pay", n=1), call("pay", n=2)], "done", tools=[pay])
    state = (await Runner.run(agent, "?")).to_state()
    first, second = state.interruptions
    state.reject(second)
    state.approve(first, always_approve=True)
    result = await Runner.run(agent, state)
    assert outcomes(result.new_items) == ["finished", "rejected"]


async def test_events_of_a_run_with_an_agent_as_a_tool_are_its_own() -> None:
    inner = scripted(call("one", n=1), "done", name="inner", tools=[one])
    told: list[Any] = []
    outer = scripted(call("inner", input="go"), "ok", tools=[inner.as_tool(on_stream=told.append)])
    events = await all_events(Runner.run_streamed(outer, "?"))
    names = [event.name for event in events if event.type == "run_item_stream_event"]
    assert names == ["tool_called", "tool_output", "message_output_created"]
    assert told
