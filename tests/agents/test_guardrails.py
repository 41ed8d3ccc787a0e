"""Guardrails: a tripwire or any other error stops and drains everything beside it, and is then raised as itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from quiesce import StopReport
from quiesce.agents import (
    Agent,
    AgentsException,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunHooks,
    Runner,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    function_tool,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from quiesce.models import AssistantMessage, ModelError, ModelSettings, ModelTimeoutError, UserMessage
from quiesce.testing import call
from tests.agents.scenes import (
    Parked,
    SlowModel,
    all_events,
    assert_valid,
    guarded_input,
    guarded_output,
    outcomes,
    passes,
    requests_of,
    results_in,
    scripted,
    session_with,
    trips,
)
from tests.kernel.temperaments import forever, tidy_up, virtual_worlds
from tests.world import asyncio_only

Start = Callable[..., Awaitable[Any]]


async def run(agent: Agent[Any], **options: Any) -> Any:
    return await Runner.run(agent, "Hello", **options)


async def run_streamed(agent: Agent[Any], **options: Any) -> Any:
    result = Runner.run_streamed(agent, "Hello", **options)
    await all_events(result)
    return result


async def run_streamed_bare(agent: Agent[Any], **options: Any) -> Any:
    result = Runner.run_streamed(agent, "Hello", **options)
    async for _ in result.stream_events():
        pass
    return result


both = pytest.mark.parametrize("start", [run, run_streamed], ids=["run", "streamed"])
all_three = pytest.mark.parametrize(
    "start", [run, run_streamed, run_streamed_bare], ids=["run", "streamed", "streamed-bare"]
)

# The seed: a guardrail that fails must not orphan the model call beside it ------------------------------------


@all_three
async def test_parallel_guardrail_non_tripwire_error_cancels_model_task(start: Start) -> None:
    model_started, model_cancelled, model_finished = anyio.Event(), anyio.Event(), anyio.Event()
    failure = RuntimeError("guardrail boom")

    async def slow_turn(request: object) -> str:
        model_started.set()
        try:
            await anyio.sleep(0.5)
        except anyio.get_cancelled_exc_class():
            await tidy_up(0.05)
            model_cancelled.set()
            raise
        model_finished.set()
        return "an answer nobody waits for"

    @input_guardrail
    async def errors_once_the_model_runs(*_: object) -> GuardrailFunctionOutput:
        await model_started.wait()
        raise failure

    with pytest.raises(RuntimeError) as caught:
        await start(scripted(slow_turn, input_guardrails=[errors_once_the_model_runs]))
    assert caught.value is failure
    assert model_cancelled.is_set()
    assert not model_finished.is_set()


@both
async def test_the_report_calls_a_guardrail_by_its_name(start: Start) -> None:
    reports: list[StopReport] = []

    class Keeping(RunHooks[Any]):
        async def on_settled(self, context: Any, agent: Any, report: StopReport) -> None:
            reports.append(report)

    @input_guardrail(name="policy")
    async def fails(*_: object) -> GuardrailFunctionOutput:
        raise LookupError("no such policy")

    with pytest.raises(LookupError):
        await start(scripted("Hello", input_guardrails=[fails]), hooks=Keeping())
    assert "guardrail policy" in str(reports[0].reason)


@all_three
async def test_parallel_guardrail_trip_cancels_model_task(start: Start) -> None:
    model = SlowModel(pause=0.5)

    @input_guardrail
    async def trips_once_the_model_runs(*_: object) -> GuardrailFunctionOutput:
        await model.begun.wait()
        return trips("off topic")

    with pytest.raises(InputGuardrailTripwireTriggered, match="trips_once_the_model_runs") as caught:
        await start(Agent(name="a", model=model, input_guardrails=[trips_once_the_model_runs]))
    assert caught.value.guardrail_result.output.output_info == "off topic"
    assert (model.started, model.finished, model.cut) == (1, 0, 1)


@virtual_worlds
@all_three
@pytest.mark.parametrize("verdict", [trips(), ValueError("broken")], ids=["tripwire", "error"])
async def test_a_model_that_is_silent_for_thirty_seconds_does_not_delay_the_verdict(
    start: Start, verdict: Any
) -> None:
    model = SlowModel(pause=30)
    agent: Agent[Any] = Agent(name="a", model=model, input_guardrails=[guarded_input(verdict, after=0.1)])
    began = anyio.current_time()
    with pytest.raises((InputGuardrailTripwireTriggered, ValueError)):
        await start(agent)
    assert anyio.current_time() - began == pytest.approx(0.1 + 0.05)  # the guard, and the model's clean-up
    assert model.cut == 1


@all_three
async def test_an_error_of_the_model_cancels_the_guardrails(start: Start) -> None:
    parked, failure = Parked(), ModelError("the model is down")
    agent = scripted(failure, input_guardrails=[input_guardrail(parked.park)])
    with pytest.raises(ModelError) as caught:
        await start(agent)
    assert caught.value is failure
    parked.assert_tidy()


@virtual_worlds
@all_three
async def test_if_both_fail_at_once_the_guards_verdict_wins(start: Start) -> None:
    async def fails_too(request: object) -> str:
        await anyio.sleep(1)
        raise ModelError("the model is down")

    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await start(scripted(fails_too, input_guardrails=[guarded_input(trips(), after=1)]))
    assert "the model is down" in "".join(caught.value.__notes__)


@both
async def test_the_first_guard_to_fail_stops_the_other_guards(start: Start) -> None:
    parked = Parked()
    agent: Agent[Any] = Agent(
        name="a",
        model=SlowModel(),
        input_guardrails=[input_guardrail(parked.park), guarded_input(KeyError("x"), after=0.01)],
    )
    with pytest.raises(KeyError):
        await start(agent)
    parked.assert_tidy()


# The gate for engines that replay a recorded history ----------------------------------------------------------

LEFT_TO_FINISH = RunConfig(cancel_model_on_guardrail_failure=False)


@virtual_worlds
@all_three
@pytest.mark.parametrize("verdict", [trips(), ValueError("broken")], ids=["tripwire", "error"])
async def test_with_the_gate_off_the_model_turn_is_left_to_finish_and_awaited(
    start: Start, verdict: Any
) -> None:
    model = SlowModel(pause=2)
    agent: Agent[Any] = Agent(name="a", model=model, input_guardrails=[guarded_input(verdict, after=0.1)])
    began = anyio.current_time()
    with pytest.raises((InputGuardrailTripwireTriggered, ValueError)):
        await start(agent, run_config=LEFT_TO_FINISH)
    assert anyio.current_time() - began == pytest.approx(2.05)
    assert (model.finished, model.cut, model.closed) == (1, 0, 1)


@virtual_worlds
@all_three
async def test_with_the_gate_off_the_models_timeout_bounds_the_wait(start: Start) -> None:
    model = SlowModel(pause=3600)
    agent: Agent[Any] = Agent(
        name="a",
        model=model,
        model_settings=ModelSettings(timeout=5),
        input_guardrails=[guarded_input(trips(), after=0.1)],
    )
    began = anyio.current_time()
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await start(agent, run_config=LEFT_TO_FINISH)
    assert anyio.current_time() - began == pytest.approx(5.05)
    assert "ModelTimeoutError" in "".join(caught.value.__notes__)
    assert model.cut == 1


@virtual_worlds
@both
async def test_with_the_gate_off_no_tool_is_called_after_the_verdict(start: Start) -> None:
    called: list[str] = []

    @function_tool
    async def send_mail() -> str:
        called.append("mail")
        return "sent"

    async def slow_turn(request: object) -> Any:
        await anyio.sleep(1)
        return call("send_mail")

    agent = scripted(slow_turn, tools=[send_mail], input_guardrails=[guarded_input(trips(), after=0.1)])
    session = await session_with()
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await start(agent, run_config=LEFT_TO_FINISH, session=session)
    assert called == []
    assert caught.value.run_data is not None
    assert outcomes(caught.value.run_data.new_items) == ["not_started"]
    assert_valid(await session.get_items())


@both
async def test_with_the_gate_off_several_failing_guards_are_told_as_one_with_notes(start: Start) -> None:
    agent = scripted(
        "hi",
        input_guardrails=[guarded_input(KeyError("first")), guarded_input(ValueError("second"), after=0.01)],
    )
    with pytest.raises(KeyError) as caught:
        await start(agent, run_config=LEFT_TO_FINISH)
    assert "second" in "".join(caught.value.__notes__)


@both
async def test_with_the_gate_off_the_callers_cancel_still_cuts_everything(start: Start) -> None:
    model = SlowModel(pause=3600)
    agent: Agent[Any] = Agent(name="a", model=model, input_guardrails=[guarded_input(trips())])
    with anyio.move_on_after(1) as deadline:
        await start(agent, run_config=LEFT_TO_FINISH)
    assert deadline.cancelled_caught
    assert model.cut == 1


# Nothing has an effect before the input guardrails have passed ------------------------------------------------


@virtual_worlds
@both
async def test_tools_and_the_final_output_wait_for_the_guards(start: Start) -> None:
    when: list[float] = []
    began = anyio.current_time()

    @function_tool
    async def note_the_time() -> str:
        when.append(anyio.current_time() - began)
        return "noted"

    agent = scripted(
        call("note_the_time"),
        "done",
        tools=[note_the_time],
        input_guardrails=[guarded_input(passes(), after=3)],
    )
    result = await start(agent)
    assert when == [pytest.approx(3)]
    assert result.final_output == "done"
    assert [verdict.guardrail.get_name() for verdict in result.input_guardrail_results] == ["guard"]


@both
async def test_a_guard_that_fails_after_the_models_answer_takes_it_back(start: Start) -> None:
    agent = scripted("a quick answer", input_guardrails=[guarded_input(trips(), after=0.02)])
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await start(agent)
    assert caught.value.run_data is not None
    assert caught.value.run_data.new_items == [AssistantMessage("a quick answer")]


@both
async def test_a_guardrail_before_the_model_keeps_it_from_being_asked(start: Start) -> None:
    agent = scripted("never said", input_guardrails=[guarded_input(trips(), after=0.01, beside=False)])
    with pytest.raises(InputGuardrailTripwireTriggered):
        await start(agent)
    assert requests_of(agent) == []


@virtual_worlds
@both
async def test_guardrails_before_the_model_stand_side_by_side(start: Start) -> None:
    agent = scripted(
        "hi", input_guardrails=[guarded_input(passes(), after=2, beside=False) for _ in range(3)]
    )
    began = anyio.current_time()
    assert (await start(agent)).final_output == "hi"
    assert anyio.current_time() - began == pytest.approx(2)


async def test_guardrails_see_text_as_text_and_items_as_items() -> None:
    seen: list[Any] = []

    @input_guardrail
    async def looks(context: Any, agent: Any, said: Any) -> GuardrailFunctionOutput:
        seen.append((context.context, agent.name, said))
        return passes()

    agent = scripted("hi", "hi", input_guardrails=[looks])
    await Runner.run(agent, "Hello", context=7)
    await Runner.run(agent, [UserMessage("Hello")], context=7)
    assert seen == [(7, "assistant", "Hello"), (7, "assistant", [UserMessage("Hello")])]


async def test_guardrails_of_the_run_stand_beside_the_agents_own() -> None:
    seen: list[str] = []

    def guard(name: str) -> Any:
        @input_guardrail(name=name)
        async def sees(*_: object) -> GuardrailFunctionOutput:
            seen.append(name)
            return passes()

        return sees

    agent = scripted("hi", input_guardrails=[guard("agent's")])
    await Runner.run(agent, "Hello", run_config=RunConfig(input_guardrails=[guard("run's")]))
    assert sorted(seen) == ["agent's", "run's"]


@pytest.mark.real_time
async def test_a_sync_guardrail_runs_in_a_thread_and_does_not_block() -> None:
    threads: list[int] = []

    @input_guardrail
    def thinks(*_: object) -> GuardrailFunctionOutput:
        threads.append(threading.get_ident())
        return passes()

    assert (await Runner.run(scripted("hi", input_guardrails=[thinks]), "Hello")).final_output == "hi"
    assert threads
    assert threads[0] != threading.get_ident()


async def test_a_guardrail_that_returns_something_else_is_told_what_to_return() -> None:
    @input_guardrail
    async def wrong(*_: object) -> bool:
        return True

    with pytest.raises(TypeError, match="'wrong' returned bool, and must return a GuardrailFunctionOutput"):
        await Runner.run(scripted("hi", input_guardrails=[wrong]), "Hello")


@asyncio_only
@both
async def test_a_guard_that_was_cancelled_by_others_has_not_passed(start: Start) -> None:
    from quiesce import ChildCancelled

    @input_guardrail
    async def gives_up(*_: object) -> GuardrailFunctionOutput:
        raise asyncio.CancelledError

    model = SlowModel()
    with pytest.raises(ChildCancelled):
        await start(Agent(name="a", model=model, input_guardrails=[gives_up]))
    assert model.cut == model.started


# Output guardrails --------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("verdict", [trips(), ValueError("broken")], ids=["tripwire", "error"])
async def test_an_output_guardrail_that_fails_stops_its_siblings_and_is_raised(
    start: Start, verdict: Any
) -> None:
    parked = Parked()
    agent = scripted(
        "an answer", output_guardrails=[output_guardrail(parked.park), guarded_output(verdict, after=0.01)]
    )
    with pytest.raises((OutputGuardrailTripwireTriggered, ValueError)) as caught:
        await start(agent)
    if isinstance(verdict, ValueError):
        assert caught.value is verdict
    parked.assert_tidy()


async def test_the_output_is_nobodys_before_the_output_guardrails_have_passed() -> None:
    agent = scripted("an answer", output_guardrails=[guarded_output(trips(), after=0.01)])
    result = Runner.run_streamed(agent, "Hello")
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await all_events(result)
    assert result.final_output is None
    assert result.is_complete


async def test_output_guardrails_see_the_typed_output_of_the_last_agent() -> None:
    seen: list[Any] = []

    @output_guardrail
    async def looks(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        seen.append((agent.name, output))
        return passes()

    result = await Runner.run(
        scripted('{"response": 3}', output_type=int), "?", run_config=RunConfig(output_guardrails=[looks])
    )
    assert seen == [("assistant", 3)]
    assert result.output_guardrail_results[0].agent_output == 3


# Tool guardrails ----------------------------------------------------------------------------------------------


def guarded_tool(called: list[str], **guardrails: Any) -> Any:
    @function_tool(**guardrails)
    async def pay(amount: int) -> str:
        called.append(f"pay {amount}")
        return f"paid {amount}"

    return pay


@both
async def test_a_tool_input_guardrail_may_give_the_model_a_text_instead_of_calling(start: Start) -> None:
    called: list[str] = []

    @tool_input_guardrail
    async def too_much(data: Any) -> ToolGuardrailFunctionOutput:
        assert (data.agent.name, data.context.tool_name) == ("assistant", "pay")
        if '"amount":9' in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("too much")
        return ToolGuardrailFunctionOutput.allow()

    pay = guarded_tool(called, tool_input_guardrails=[too_much])
    agent = scripted([call("pay", amount=9), call("pay", amount=1)], "done", tools=[pay])
    result = await start(agent)
    assert called == ["pay 1"]
    assert [r.output for r in results_in(result.new_items)] == ["too much", "paid 1"]
    assert outcomes(result.new_items) == ["rejected", "finished"]


@both
async def test_a_tool_output_guardrail_may_hide_the_output(start: Start) -> None:
    called: list[str] = []

    @tool_output_guardrail
    async def secret(data: Any) -> ToolGuardrailFunctionOutput:
        assert data.output == "paid 1"
        return ToolGuardrailFunctionOutput.reject_content("(hidden)")

    pay = guarded_tool(called, tool_output_guardrails=[secret])
    result = await start(scripted(call("pay", amount=1), "done", tools=[pay]))
    assert called == ["pay 1"]
    assert [r.output for r in results_in(result.new_items)] == ["(hidden)"]


@both
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("how", ["tripwire", "error"])
async def test_a_tool_guardrail_that_fails_drains_the_siblings_and_is_raised(
    start: Start, side: str, how: str
) -> None:
    parked, failure = Parked(), ZeroDivisionError("in the guardrail")
    called: list[str] = []

    async def fails(data: Any) -> ToolGuardrailFunctionOutput:
        await parked.reached.wait()
        if how == "error":
            raise failure
        return ToolGuardrailFunctionOutput.raise_exception("no")

    @function_tool
    async def sibling() -> str:
        await parked.park()
        return "never"

    decorate: Any = tool_input_guardrail if side == "input" else tool_output_guardrail
    pay = guarded_tool(called, **{f"tool_{side}_guardrails": [decorate(fails)]})
    session = await session_with()
    with pytest.raises(
        (ToolInputGuardrailTripwireTriggered, ToolOutputGuardrailTripwireTriggered, ZeroDivisionError)
    ) as caught:
        await start(scripted([call("sibling"), call("pay", amount=1)], tools=[pay, sibling]), session=session)
    if how == "error":
        assert caught.value is failure
    parked.assert_tidy()
    assert called == ([] if side == "input" else ["pay 1"])
    items = await session.get_items()
    assert_valid(items)
    assert outcomes(items) == ["interrupted", "not_started" if side == "input" else "interrupted"]


# What an error tells ------------------------------------------------------------------------------------------


@both
async def test_an_error_of_the_run_says_how_far_it_came(start: Start) -> None:
    async def hangs(request: object) -> str:
        await forever()
        return ""

    agent = scripted(
        [call("look"), "Let me see. "],
        hangs,
        tools=[function_tool(forever, name_override="look", timeout=0.01)],
        output_guardrails=[],
        model_settings=ModelSettings(timeout=0.05),
    )
    with pytest.raises(ModelTimeoutError):
        await start(agent)
    agent = scripted("fine", output_guardrails=[guarded_output(trips())])
    with pytest.raises(AgentsException) as caught:
        await start(agent)
    details = caught.value.run_data
    assert details is not None
    assert details.new_items == [AssistantMessage("fine")]
    assert details.to_input_list() == [UserMessage("Hello")]
    assert details.usage.requests == 1
    assert details.last_agent is agent
    assert details.report is not None
    assert details.report.clean


@both
async def test_partial_text_of_a_model_that_a_guard_has_cut_is_told_and_marked_but_not_kept(
    start: Start,
) -> None:
    model = SlowModel("so far so good", pause=0.4)
    agent: Agent[Any] = Agent(name="a", model=model, input_guardrails=[guarded_input(trips(), after=1.0)])
    session = await session_with()
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await start(agent, session=session)
    assert caught.value.run_data is not None
    partial = caught.value.run_data.new_items
    assert len(partial) == 1
    assert isinstance(partial[0], AssistantMessage)
    assert partial[0].interrupted
    assert "sofarsogood".startswith(partial[0].text)
    assert partial[0].text
    assert caught.value.run_data.blocked == partial
    assert await session.get_items() == [UserMessage("Hello")]
    assert caught.value.run_data.usage.unreported == 1
