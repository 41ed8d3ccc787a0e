"""Handoffs: another agent takes over, in the same run."""

from __future__ import annotations

from typing import Any, cast

import pytest

from quiesce.agents import Agent, Handoff, Runner, UserError, function_tool, handoff
from quiesce.models import AssistantMessage, Item, ToolCall, ToolResult, UserMessage
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
