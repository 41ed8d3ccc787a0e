"""Handoffs: another agent takes over, in the same run."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from quiesce.agents import Agent, Handoff, HandoffInputData, Runner, UserError, function_tool, handoff
from quiesce.agents.extensions import handoff_prompt
from quiesce.agents.extensions.handoff_filters import remove_all_tools
from quiesce.models import AssistantMessage, Item, Reasoning, ToolCall, ToolResult, UserMessage
from quiesce.testing import ScriptedModel, call
from tests.agents.await_points import POINTS
from tests.agents.scenes import (
    Parked,
    all_events,
    assert_valid,
    consumed,
    guarded_input,
    outcomes,
    requests_of,
    scripted,
    trips,
)
from tests.kernel.temperaments import virtual_worlds


@function_tool
async def look() -> str:
    return "seen"


async def test_the_agent_that_takes_over_gives_the_final_output() -> None:
    billing = scripted("Paid.", name="Billing desk", handoff_description="Knows all bills.")
    triage = scripted(call("transfer_to_billing_desk"), name="triage", handoffs=[billing])
    result = await Runner.run(triage, "My bill?")
    assert result.final_output == "Paid."
    assert result.last_agent is billing
    (spec,) = requests_of(triage)[0].tools
    assert spec.name == "transfer_to_billing_desk"
    assert spec.description == "Hand over to the agent Billing desk. Knows all bills."
    said, asked, told = requests_of(billing)[0].items
    assert said == UserMessage("My bill?")
    assert isinstance(asked, ToolCall)
    assert isinstance(told, ToolResult)
    assert told.output == "The agent Billing desk takes over."
    assert_valid(result.to_input_list())


async def test_tools_beside_a_handoff_are_called_first() -> None:
    other = scripted("ok", name="other")
    first = scripted([call("transfer_to_other"), call("look")], name="first", handoffs=[other], tools=[look])
    result = await Runner.run(first, "?")
    assert [item.output for item in requests_of(other)[0].items if isinstance(item, ToolResult)] == [
        "The agent other takes over.",
        "seen",
    ]
    assert_valid(result.to_input_list())


async def test_of_two_handoffs_at_once_the_first_one_counts() -> None:
    one, two = scripted("one", name="one"), scripted("two", name="two")
    first = scripted([call("transfer_to_one"), call("transfer_to_two")], name="first", handoffs=[one, two])
    result = await Runner.run(first, "?")
    assert result.final_output == "one"
    assert outcomes(result.new_items) == ["finished", "rejected"]
    assert_valid(result.to_input_list())


async def test_a_handoff_may_have_a_name_a_callback_and_a_filter() -> None:
    log: list[Any] = []

    async def noted(context: Any) -> None:
        log.append(context.context)

    def only_the_question(items: list[Item]) -> list[Item]:
        return [item for item in items if isinstance(item, UserMessage)]

    other = scripted(call("look"), "ok", name="other", tools=[look])
    first = scripted(
        call("escalate"),
        name="first",
        handoffs=[
            handoff(
                other,
                tool_name="escalate",
                tool_description="Up.",
                on_handoff=noted,
                input_filter=only_the_question,
            )
        ],
    )
    result = await Runner.run(first, "Why?", context=3)
    assert log == [3]
    assert [(spec.name, spec.description) for spec in requests_of(first)[0].tools] == [("escalate", "Up.")]
    assert requests_of(other)[0].items == [UserMessage("Why?")]
    later = requests_of(other)[1].items
    assert later[0] == UserMessage("Why?")
    assert_valid(list(later))
    assert len(later) == 3
    assert len(result.to_input_list()) == 6  # the history itself is whole


async def test_a_handoff_is_told_to_who_listens() -> None:
    other = scripted("ok", name="other")
    first = scripted(call("transfer_to_other"), name="first", handoffs=[other])
    result = Runner.run_streamed(first, "?")
    events = await all_events(result)
    agents = [event.new_agent.name for event in events if event.type == "agent_updated_stream_event"]
    assert agents == ["first", "other"]
    names = [event.name for event in events if event.type == "run_item_stream_event"]
    assert names == ["tool_called", "handoff_requested", "handoff_occured", "message_output_created"]
    assert result.last_agent is other


async def test_only_the_first_agents_input_guardrails_look_at_the_input() -> None:
    other = scripted("ok", name="other", input_guardrails=[guarded_input(trips())])
    first = scripted(call("transfer_to_other"), name="first", handoffs=[other])
    assert (await Runner.run(first, "?")).final_output == "ok"


async def test_agents_may_hand_over_to_and_fro() -> None:
    model = ScriptedModel([call("transfer_to_b"), call("transfer_to_a"), "done"])
    a: Agent[Any] = Agent(name="a", model=model)
    b: Agent[Any] = Agent(name="b", model=model, handoffs=[a])
    a.handoffs = [b]
    result = await Runner.run(a, "?")
    assert result.last_agent is a
    assert result.final_output == "done"
    assert_valid(result.to_input_list())


async def test_a_handoff_beside_a_call_that_waits_for_approval_is_not_forgotten() -> None:
    called: list[str] = []

    @function_tool(needs_approval=True)
    async def pay() -> str:
        called.append("pay")
        return "paid"

    other = scripted("ok", name="other")
    first = scripted([call("transfer_to_other"), call("pay")], name="first", handoffs=[other], tools=[pay])
    result = await Runner.run(first, "?")
    state = result.to_state()
    state.approve(state.interruptions[0])
    final = await Runner.run(first, state)
    assert called == ["pay"]
    assert final.last_agent is other
    assert final.final_output == "ok"
    assert final.new_items[-1] == AssistantMessage("ok")


@virtual_worlds
@pytest.mark.parametrize("where", ["on_handoff_function", "run_hook_on_handoff", "agent_hook_on_handoff"])
async def test_a_handoff_that_is_stopped_in_a_hook_has_been_made(where: str) -> None:
    parked = Parked()
    first, options = POINTS[where](parked)
    result = Runner.run_streamed(first, "?", **options)
    async with consumed(result):
        await parked.reached.wait()
        result.cancel()
    parked.assert_tidy()
    assert result.last_agent.name == "other"
    assert outcomes(result.new_items) == ["finished"]  # the history says that the other agent takes over
    assert_valid(result.to_input_list())
    going_on = await Runner.run(result.last_agent, result.to_input_list())
    assert going_on.final_output == "hi"


async def test_what_is_no_agent_is_refused() -> None:
    agent = scripted("ok")
    agent.handoffs = cast(
        Any, ["other"]
    )  # after it was made; before, that is refused at once: see test_arguments
    with pytest.raises(UserError, match="handoffs are agents or Handoffs, not str"):
        await Runner.run(agent, "?")
    with pytest.raises(UserError, match="several tools named 'look'"):
        await Runner.run(
            scripted("ok", tools=[look], handoffs=[Handoff(scripted(name="other"), tool_name="look")]), "?"
        )


# The usual arguments ------------------------------------------------------------------------------------------


class Reason(msgspec.Struct):
    why: str


async def test_a_handoff_has_the_names_that_openais_sdk_gives_it() -> None:
    to_other = handoff(scripted(name="other"), "escalate", tool_description_override="Up.")
    assert (to_other.tool_name, to_other.tool_description) == ("escalate", "Up.")
    with pytest.raises(UserError, match="both tool_name and tool_name_override"):
        handoff(scripted(name="other"), "escalate", tool_name="rise")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handoff_with_input_gives_it_to_its_function(kind: str) -> None:
    log: list[Any] = []

    async def noted(context: Any, given: Reason) -> None:
        log.append((context.context, given))

    def noted_in_a_thread(context: Any, given: Reason) -> None:
        log.append((context.context, given))

    other = scripted("ok", name="other")
    to_other = handoff(other, on_handoff=noted if kind == "async" else noted_in_a_thread, input_type=Reason)
    first = scripted(call("transfer_to_other", why="angry"), name="first", handoffs=[to_other])
    result = await Runner.run(first, "?", context=3)
    assert log == [(3, Reason("angry"))]
    assert result.final_output == "ok"
    (spec,) = requests_of(first)[0].tools
    assert spec.parameters["properties"] == {"why": {"type": "string"}}
    assert spec.parameters["required"] == ["why"]


async def test_input_of_a_handoff_that_does_not_fit_is_told_to_the_model() -> None:
    log: list[Any] = []
    other = scripted("ok", name="other")
    to_other = handoff(other, on_handoff=lambda context, given: log.append(given), input_type=Reason)
    first = scripted(
        call("transfer_to_other", why=3), call("transfer_to_other", why="angry"), handoffs=[to_other]
    )
    result = await Runner.run(first, "?")
    assert log == [Reason("angry")]
    assert result.last_agent is other
    assert outcomes(result.new_items) == ["failed", "finished"]
    (told, _) = [item for item in result.new_items if isinstance(item, ToolResult)]
    assert "transfer_to_other needs a valid Reason: Expected `str`, got `int`" in told.output
    assert_valid(result.to_input_list())


def test_input_that_nobody_would_get_is_refused() -> None:
    with pytest.raises(UserError, match="an input_type, and no on_handoff that would get the input"):
        handoff(scripted(name="other"), input_type=Reason)


async def test_a_handoff_with_input_is_made_after_an_approval() -> None:
    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    log: list[Any] = []
    other = scripted("ok", name="other")
    to_other = handoff(other, on_handoff=lambda context, given: log.append(given.why), input_type=Reason)
    calls = [call("transfer_to_other", why="angry"), call("pay")]
    first = scripted(calls, name="first", handoffs=[to_other], tools=[pay])
    state = (await Runner.run(first, "?")).to_state()
    assert log == []
    state.approve(state.interruptions[0])
    assert (await Runner.run(first, state)).final_output == "ok"
    assert log == ["angry"]


@pytest.mark.parametrize("kind", ["value", "sync", "async"])
async def test_a_handoff_that_is_not_enabled_is_not_shown(kind: str) -> None:
    asked: list[Any] = []

    def sync_no(context: Any, agent: Any) -> bool:
        asked.append((context.context, agent.name))
        return False

    async def async_no(context: Any, agent: Any) -> bool:
        return sync_no(context, agent)

    enabled: Any = {"value": False, "sync": sync_no, "async": async_no}[kind]
    hidden = handoff(scripted(name="hidden"), is_enabled=enabled)
    shown = handoff(scripted(name="shown"), is_enabled=lambda context, agent: True)
    first = scripted(
        call("transfer_to_hidden"), "alone", name="first", handoffs=[hidden, shown, scripted(name="plain")]
    )
    result = await Runner.run(first, "?", context=3)
    assert [spec.name for spec in requests_of(first)[0].tools] == ["transfer_to_shown", "transfer_to_plain"]
    assert result.last_agent is first
    assert outcomes(result.new_items) == [
        "failed"
    ]  # a model that asks for it nevertheless is told that there is none
    assert asked == ([] if kind == "value" else [(3, "first")] * 2)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_filter_gets_the_history_in_three_parts(kind: str) -> None:
    parts: list[Any] = []

    def last_question(data: HandoffInputData) -> HandoffInputData:
        parts.append((data.input_history, data.pre_handoff_items, data.new_items, data.run_context))
        assert [*data.input_history, *data.pre_handoff_items, *data.new_items] == data
        return data.clone(input_history=data.input_history[-1:], pre_handoff_items=(), new_items=())

    async def slowly(data: HandoffInputData) -> HandoffInputData:
        return last_question(data)

    other = scripted("ok", name="other")
    to_other = handoff(other, input_filter=last_question if kind == "sync" else slowly)
    first = scripted(call("look"), call("transfer_to_other"), handoffs=[to_other], tools=[look])
    result = await Runner.run(first, [UserMessage("Hello"), UserMessage("Why?")])
    history, before, now, context = parts[0]
    assert history == (UserMessage("Hello"), UserMessage("Why?"))
    assert [type(item) for item in before] == [ToolCall, ToolResult]
    assert before[0].name == "look"
    assert [type(item) for item in now] == [ToolCall, ToolResult]
    assert now[0].name == "transfer_to_other"
    assert context is result.context_wrapper
    assert requests_of(other)[0].items == [UserMessage("Why?")]
    assert len(result.to_input_list()) == 7


async def test_a_second_filter_sees_what_the_first_one_has_left() -> None:
    seen: list[int] = []

    def note(data: HandoffInputData) -> list[Item]:
        seen.append(len(data.input_history))
        return data[-2:] if len(seen) == 1 else data

    third = scripted("ok", name="third")
    second = scripted(call("transfer_to_third"), name="second", handoffs=[handoff(third, input_filter=note)])
    first = scripted(call("transfer_to_second"), handoffs=[handoff(second, input_filter=note)])
    await Runner.run(first, [UserMessage("1"), UserMessage("2")])
    assert seen == [2, 2]
    assert len(requests_of(third)[0].items) == 4


async def test_a_filter_may_return_dicts_and_what_is_not_an_item_is_refused() -> None:
    other = scripted("ok", name="other")
    told: Any = lambda data: [{"role": "user", "content": "In short: why?"}]  # noqa: E731
    first = scripted(call("transfer_to_other"), handoffs=[handoff(other, input_filter=told)])
    await Runner.run(first, "?")
    assert requests_of(other)[0].items == [UserMessage("In short: why?")]
    wrong: Any = lambda data: [3]  # noqa: E731
    first = scripted(call("transfer_to_other"), handoffs=[handoff(other, input_filter=wrong)])
    with pytest.raises(TypeError, match="must be a str, an item or a list of items, not int"):
        await Runner.run(first, "?")


def test_the_filter_for_tools_leaves_what_was_said() -> None:
    said = UserMessage("Why?"), AssistantMessage("Let me see.")
    done = Reasoning("Hm."), ToolCall("c1", "look"), ToolResult("c1", "seen")
    data = HandoffInputData([*said, *done], done, [*done, *said])
    left = remove_all_tools(data)
    assert (left.input_history, left.pre_handoff_items, left.new_items) == (said, (), said)
    assert data.pre_handoff_items == done, "the filter has changed what it was given"
    assert HandoffInputData("Why?") == [UserMessage("Why?")]


def test_the_prompt_for_handoffs_stands_before_the_instructions() -> None:
    prompt = handoff_prompt.prompt_with_handoff_instructions("You sell seats.")
    assert prompt == f"{handoff_prompt.RECOMMENDED_PROMPT_PREFIX}\n\nYou sell seats."
    assert handoff(scripted(name="other")).tool_name.startswith("transfer_to_")
    assert "`transfer_to_`" in prompt  # which is how the model knows a handoff


async def test_agents_may_be_added_to_each_others_handoffs() -> None:
    model = ScriptedModel([call("transfer_to_b"), call("look"), call("transfer_to_a"), "done"])
    a: Agent[Any] = Agent(name="a", model=model)
    b: Agent[Any] = Agent(name="b", model=model, handoffs=(a,))  # type: ignore[arg-type]  # a tuple becomes a list
    a.handoffs.append(b)
    b.tools.append(look)
    b.handoffs.append(handoff(scripted(name="c")))
    result = await Runner.run(a, "?")
    assert result.last_agent is a
    assert outcomes(result.new_items) == ["finished"] * 3


def test_the_lists_of_two_agents_are_not_one_list() -> None:
    one, two = scripted(name="one"), scripted(name="two")
    for name in ("tools", "handoffs", "mcp_servers", "input_guardrails", "output_guardrails"):
        assert getattr(one, name) == []
        assert getattr(one, name) is not getattr(two, name)
    tools = [look]
    agent = scripted(tools=tools)
    assert agent.tools is tools
    copy = agent.clone(handoffs=[one])
    copy.tools.append(look)
    copy.handoffs.append(two)
    assert (agent.tools, agent.handoffs) == ([look], [])
    assert (copy.tools, copy.handoffs) == ([look, look], [one, two])
