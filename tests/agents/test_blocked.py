"""What no guardrail has passed is kept nowhere, and is not sent again; what has passed is kept as if there were no guardrails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from quiesce.agents import (
    AgentsException,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    InvalidFinalOutput,
    MaxTurnsExceeded,
    MemorySession,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    function_tool,
    handoff,
)
from quiesce.models import (
    AssistantMessage,
    Item,
    ModelRefusalError,
    Reasoning,
    ToolCall,
    ToolResult,
    UserMessage,
)
from quiesce.testing import Answer, call
from tests.agents.scenes import (
    all_events,
    assert_valid,
    guarded_output,
    outcomes,
    passes,
    requests_of,
    results_in,
    scripted,
    trips,
)
from tests.agents.talks import SECRET, TWO_TURNS, Once, Reports, Talk, every_way, look
from tests.kernel.temperaments import forever

# A verdict --------------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("gate", [True, False], ids=["model is cut", "model is left to finish"])
@pytest.mark.parametrize("wait", [0.0, 0.1], ids=["after the answer", "in the middle of it"])
async def test_an_answer_that_an_input_guardrail_blocks_is_neither_kept_nor_sent_again(
    how: str, gate: bool, wait: float
) -> None:
    async def answer(request: object) -> Any:
        await anyio.sleep(wait)
        return TWO_TURNS[0]

    agent = scripted(answer, "fine", tools=[look], input_guardrails=[InputGuardrail(Once())])
    talk = Talk(how, agent, run_config=RunConfig(cancel_model_on_guardrail_failure=gate))
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await talk.say()
    assert await talk.kept() == [UserMessage("Hello")]
    assert SECRET not in await talk.written()
    data = caught.value.run_data
    assert data is not None
    assert data.to_input_list() == [UserMessage("Hello")]
    assert data.usage.requests == 1
    if not gate or not wait:
        assert SECRET in str(data.blocked)
        assert [item for item in data.new_items if item in data.blocked] == data.blocked
        assert outcomes(data.new_items) == ["not_started"]
    await talk.say("Again")
    assert SECRET not in str(requests_of(agent)[-1])
    assert (await talk.kept())[-2:] == [UserMessage("Again"), AssistantMessage("fine")]


@every_way
@pytest.mark.parametrize("whose", ["agent", "config"])
async def test_text_that_an_output_guardrail_blocks_is_neither_kept_nor_sent_again_but_its_tool_calls_are(
    how: str, whose: str
) -> None:
    guardrails = [OutputGuardrail(Once())]
    mine = {"output_guardrails": guardrails} if whose == "agent" else {}
    config = RunConfig(output_guardrails=guardrails) if whose == "config" else RunConfig()
    agent = scripted(*TWO_TURNS, "fine", tools=[look], **mine)
    talk = Talk(how, agent, run_config=config)
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await talk.say()
    asked, seen = ToolCall("call_1", "look"), "a door"
    kept = await talk.kept()
    assert kept[:2] == [UserMessage("Hello"), asked]
    assert [(result.output, result.outcome) for result in results_in(kept)] == [(seen, "finished")]
    assert len(kept) == 3
    assert SECRET not in await talk.written()
    data = caught.value.run_data
    assert data is not None
    assert data.to_input_list() == kept
    assert [type(item) for item in data.blocked] == [Reasoning, AssistantMessage, AssistantMessage]
    assert [item for item in data.new_items if item not in kept] == data.blocked
    assert data.usage.requests == 2
    await talk.say("Again")
    assert SECRET not in str(requests_of(agent)[-1])
    assert (await talk.kept())[3:] == [UserMessage("Again"), AssistantMessage("fine")]


@every_way
@pytest.mark.parametrize("error", [ValueError("broken"), trips()], ids=["error", "tripwire"])
async def test_a_guardrail_that_fails_has_not_passed(how: str, error: Any) -> None:
    agent = scripted(SECRET, output_guardrails=[guarded_output(error, after=0.01)])
    talk = Talk(how, agent)
    with pytest.raises((ValueError, OutputGuardrailTripwireTriggered)):
        await talk.say()
    assert await talk.kept() == [UserMessage("Hello")]
    assert SECRET not in await talk.written()


async def test_what_was_blocked_is_in_no_later_look_at_a_streamed_result() -> None:
    result = Runner.run_streamed(
        scripted(*TWO_TURNS, tools=[look], output_guardrails=[guarded_output(trips())]), "Hello"
    )
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await all_events(result)
    assert SECRET not in str(result.new_items)
    assert SECRET not in str(result.to_input_list())
    assert outcomes(result.new_items) == ["finished"]


@every_way
async def test_what_passes_is_kept_where_it_was_said_and_nothing_of_it_before(how: str) -> None:
    seen: list[list[Item]] = []

    async def looks(*_: object) -> GuardrailFunctionOutput:
        seen.append(await talk.kept())
        if talk.conversation is not None:
            assert talk.conversation.items == seen[-1]
        return passes()

    turns = [
        Answer(["One. "], [call("look"), call("look")], reasoning="hm"),
        Answer(["Two. "], [call("look")]),
        "Three.",
    ]
    agent = scripted(*turns, tools=[look], output_guardrails=[OutputGuardrail(looks)])
    talk = Talk(how, agent)
    await talk.say()
    plain = Talk(how, scripted(*turns, tools=[look]))
    await plain.say()
    (before,) = seen
    assert [type(item).__name__ for item in before] == [
        "UserMessage",
        *["ToolCall", "ToolCall", "ToolResult", "ToolResult"],
        *["ToolCall", "ToolResult"],
    ]
    assert without_times(await talk.kept()) == without_times(await plain.kept())
    # In the run itself the model goes on from what it has said.
    assert [str(item) for item in without_times(list(requests_of(agent)[-1].items))] == [
        str(item) for item in without_times((await plain.kept())[:-1])
    ]


def without_times(items: list[Item]) -> list[Item]:
    return [ToolResult(i.call_id, i.output, i.outcome) if isinstance(i, ToolResult) else i for i in items]


async def test_a_result_has_no_text_before_its_guardrails_have_passed() -> None:
    seen: list[Any] = []

    async def looks(*_: object) -> GuardrailFunctionOutput:
        seen.append((result.new_items, result.to_input_list()))
        return passes()

    agent = scripted(*TWO_TURNS, tools=[look], output_guardrails=[OutputGuardrail(looks)])
    result = Runner.run_streamed(agent, "Hello")
    await all_events(result)
    assert SECRET not in str(seen)
    assert [type(item) for item in result.new_items] == [
        *[Reasoning, AssistantMessage, ToolCall, ToolResult],
        AssistantMessage,
    ]


async def test_a_session_that_can_only_add_gets_text_behind_the_results() -> None:
    class Own(MemorySession):
        async def add_items(self, items: Any) -> None:
            await super().add_items(items)

    session = Own("s")
    agent = scripted(*TWO_TURNS, "fine", tools=[look], output_guardrails=[guarded_output(passes())])
    await Runner.run(agent, "Hello", session=session)
    kept = await session.get_items()
    assert [type(item).__name__ for item in kept] == [
        *["UserMessage", "ToolCall", "ToolResult", "AssistantMessage", "AssistantMessage"]
    ]
    assert_valid(kept)
    await Runner.run(agent, "Again", session=session)
    assert_valid(requests_of(agent)[-1].items)


async def test_a_run_that_takes_too_many_turns_keeps_its_tool_calls_alone() -> None:
    agent = scripted(*TWO_TURNS, tools=[look], output_guardrails=[guarded_output(passes())])
    session = MemorySession("s")
    with pytest.raises(MaxTurnsExceeded) as caught:
        await Runner.run(agent, "Hello", session=session, max_turns=1)
    assert SECRET not in str(await session.get_items())
    assert outcomes(await session.get_items()) == ["finished"]
    assert caught.value.run_data is not None
    assert SECRET in str(caught.value.run_data.blocked)


@every_way
@pytest.mark.parametrize("turn", [Answer([SECRET], finish="refusal"), SECRET], ids=["refusal", "no number"])
async def test_errors_that_are_recorded_do_not_quote_what_no_guardrail_has_passed(
    how: str, turn: Any
) -> None:
    agent = scripted(turn, output_type=int, output_guardrails=[guarded_output(passes())])
    talk = Talk(how, agent)
    with pytest.raises((ModelRefusalError, InvalidFinalOutput)) as caught:
        await talk.say()
    assert SECRET not in await talk.written()
    if isinstance(caught.value, AgentsException):
        assert caught.value.run_data is not None
        assert SECRET in str(caught.value.run_data.blocked)
    open_agent = scripted(turn, output_type=int)
    with pytest.raises((ModelRefusalError, InvalidFinalOutput), match=SECRET):
        await Talk(how, open_agent).say()


# Several agents -----------------------------------------------------------------------------------------------------------


@every_way
async def test_after_a_handoff_the_verdict_is_that_of_the_agent_which_answers(how: str) -> None:
    async def never(*_: object) -> GuardrailFunctionOutput:
        raise AssertionError("this agent gives no final output")

    other = scripted("Done.", name="other")
    first = scripted(
        ["Over to you.", call("transfer_to_other")],
        handoffs=[other],
        output_guardrails=[OutputGuardrail(never)],
    )
    talk = Talk(how, first)
    await talk.say()
    assert [getattr(item, "text", "") for item in await talk.kept()] == [
        "",
        "Over to you.",
        *["", ""],
        "Done.",
    ]


@every_way
async def test_after_a_handoff_the_text_of_an_agent_without_guardrails_is_kept_as_it_is_said(
    how: str,
) -> None:
    other = scripted(SECRET, name="other", output_guardrails=[guarded_output(trips())])
    shown: list[Any] = []

    def all_of_it(items: list[Item]) -> list[Item]:
        shown.append(list(items))
        return items

    first = scripted(
        ["Over to you.", call("transfer_to_other")], handoffs=[handoff(other, input_filter=all_of_it)]
    )
    talk = Talk(how, first)
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await talk.say()
    assert [getattr(item, "text", "") for item in await talk.kept()] == ["", "Over to you.", "", ""]
    assert SECRET not in await talk.written()
    assert len(shown) == 1


@every_way
@pytest.mark.parametrize("turn", [SECRET, Answer([SECRET], finish="refusal")], ids=["blocked", "refusal"])
async def test_what_is_blocked_in_a_sub_agent_is_not_told_to_the_agent_that_asked(
    how: str, turn: Any
) -> None:
    inner = scripted(turn, name="inner", output_guardrails=[guarded_output(trips())])
    agent = scripted(call("inner", input="?"), "It said no.", tools=[inner.as_tool()])
    talk = Talk(how, agent)
    await talk.say()
    assert outcomes(await talk.kept()) == ["failed"]
    assert SECRET not in await talk.written()
    assert SECRET not in str(requests_of(agent))


async def test_the_error_of_a_sub_agent_that_ends_the_run_still_has_what_was_blocked() -> None:
    inner = scripted(SECRET, name="inner", output_guardrails=[guarded_output(trips())])
    raising = replace(inner.as_tool(), failure_error_function=None)
    agent = scripted(call("inner", input="?"), tools=[raising])
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await Runner.run(agent, "Hello")
    data = caught.value.run_data
    assert data is not None
    assert data.last_agent is agent
    assert data.blocked == [AssistantMessage(SECRET)]
    assert SECRET not in str(data.to_input_list())


# A tool's output as the answer --------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("how_it_ends", ["passes", "trips", "stopped"])
async def test_what_a_tool_returns_as_the_final_output_is_kept_when_it_has_passed(
    how: str, how_it_ends: str
) -> None:
    @function_tool
    async def find() -> str:
        return SECRET

    seen: list[str] = []

    async def looks(*_: object) -> GuardrailFunctionOutput:
        seen.append(await talk.written())
        if how_it_ends == "stopped":
            await forever()
        return trips() if how_it_ends == "trips" else passes()

    agent = scripted(
        ["I look.", call("find"), call("look")],
        tools=[find, look],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=[OutputGuardrail(looks)],
    )
    hooks = Reports()
    talk = Talk(how, agent, hooks=hooks)
    if how_it_ends == "trips":
        with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
            await talk.say()
        data = caught.value.run_data
        assert data is not None
        assert [result.output for result in results_in(data.new_items)] == [SECRET, "a door"]
        assert SECRET not in str(data.to_input_list())
    else:
        with anyio.move_on_after(1):
            await talk.say()
        assert (SECRET in "".join(hooks.texts)) is (how_it_ends == "stopped")
    assert SECRET not in seen[0]
    assert_valid(await talk.kept())
    told = [result.output for result in results_in(await talk.kept())]
    if how_it_ends == "passes":
        assert told == [SECRET, "a door"]
    else:
        assert told[0].startswith("Finished. What it returned is withheld")
        assert told[1] == "a door"
        assert SECRET not in await talk.written()
