"""Streamed runs: typed events, in lockstep with who reads them, and the promises of "Streams"."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from quiesce import ChildCancelled, Scope
from quiesce.agents import (
    Agent,
    AgentUpdatedStreamEvent,
    MaxTurnsExceeded,
    RawResponseEvent,
    RunItemStreamEvent,
    Runner,
    RunResultStreaming,
    function_tool,
    input_guardrail,
    tool_input_guardrail,
)
from quiesce.agents import ToolGuardrailFunctionOutput as Verdict
from quiesce.models import (
    AssistantMessage,
    ModelEvent,
    ModelRequest,
    ResponseDone,
    TextDelta,
    ToolResult,
    UserMessage,
)
from quiesce.testing import Answer, ScriptedModel, call
from tests.agents.scenes import (
    Parked,
    SlowModel,
    all_events,
    assert_valid,
    consumed,
    guarded_input,
    outcomes,
    passes,
    requests_of,
    scripted,
    session_with,
)
from tests.kernel.temperaments import turns, virtual_worlds
from tests.world import asyncio_only


@function_tool
async def add(a: int, b: int) -> int:
    return a + b


# Events -------------------------------------------------------------------------------------------------------


async def test_events_are_typed_and_in_order() -> None:
    agent = scripted(call("add", a=1, b=2), Answer(["It ", "is 3."]), tools=[add])
    result = Runner.run_streamed(agent, "?")
    events = await all_events(result)
    first_done, second_done = result.responses
    asked, told, said = result.new_items
    assert events == [
        AgentUpdatedStreamEvent(agent),
        RunItemStreamEvent("tool_called", asked),
        RawResponseEvent(first_done),
        RunItemStreamEvent("tool_output", told),
        RawResponseEvent(TextDelta("It ")),
        RawResponseEvent(TextDelta("is 3.")),
        RunItemStreamEvent("message_output_created", said),
        RawResponseEvent(second_done),
    ]
    assert [event.type for event in events[:3]] == [
        "agent_updated_stream_event",
        "run_item_stream_event",
        "raw_response_event",
    ]
    assert result.final_output == "It is 3."
    assert result.is_complete
    assert result.current_turn == 2
    assert result.usage.requests == 2
    assert result.report is not None
    assert result.report.clean
    assert isinstance(second_done, ResponseDone)


async def test_every_new_item_is_told_once() -> None:
    @tool_input_guardrail
    async def rejects(data: object) -> Verdict:
        return Verdict.reject_content("no")

    @function_tool
    async def fails() -> str:
        raise ValueError

    @function_tool(tool_input_guardrails=[rejects])
    async def rejected() -> str:
        return "never"

    other = scripted(Answer(["ok"], reasoning="hm"), name="other")
    agent = scripted(
        [call("add", a=1, b=2), call("fails"), call("rejected"), call("unknown")],
        Answer(["over to "], [call("transfer_to_other"), call("transfer_to_other")]),
        tools=[add, fails, rejected],
        handoffs=[other],
    )
    result = Runner.run_streamed(agent, "?")
    told = [
        event.item
        for event in await all_events(result)
        if isinstance(event, RunItemStreamEvent) and event.name != "handoff_requested"
    ]
    assert sorted(map(repr, told)) == sorted(map(repr, result.new_items))


async def test_nothing_happens_before_the_first_event_is_asked_for() -> None:
    agent = scripted("hi")
    result = Runner.run_streamed(agent, "?")
    await turns(10)
    assert requests_of(agent) == []
    assert result.report is None
    assert [event.type async for event in result.stream_events()]
    assert result.final_output == "hi"


async def test_a_slow_reader_slows_the_model_down() -> None:
    made: list[int] = []

    class Fast:
        name = "fast"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            for number in range(20):
                made.append(number)
                yield TextDelta(str(number))
            async for event in ScriptedModel("end").stream(request):
                yield event

    read = 0
    result = Runner.run_streamed(Agent(name="a", model=Fast()), "?")
    async for event in result.stream_events():
        if isinstance(event, RawResponseEvent) and isinstance(event.data, TextDelta):
            read += 1
            await turns(10)
            assert len(made) <= read
    assert read == 21


async def test_a_tool_is_called_when_the_reader_has_asked_for_what_comes_next() -> None:
    called: list[str] = []

    @function_tool
    async def mail() -> str:
        called.append("mail")
        return "sent"

    result = Runner.run_streamed(scripted(call("mail"), "ok", tools=[mail]), "?")
    seen: list[list[str]] = []
    async for event in result.stream_events():
        await turns(10)
        if isinstance(event, RawResponseEvent) and isinstance(event.data, ResponseDone):
            seen.append(list(called))
    assert seen == [[], ["mail"]]


async def test_a_second_iteration_inside_the_block_goes_on_where_the_first_one_was() -> None:
    result = Runner.run_streamed(scripted(Answer(["a", "b", "c"])), "?")
    texts: list[str] = []
    async with result:
        for _ in range(3):
            async for event in result.stream_events():
                if isinstance(event, RawResponseEvent) and isinstance(event.data, TextDelta):
                    texts.append(event.data.text)
                    break
        async for _ in result.stream_events():
            pass
    assert texts == ["a", "b", "c"]
    assert result.final_output == "abc"


@pytest.mark.parametrize("with_block", [True, False])
async def test_an_error_is_raised_as_itself_once_and_the_stream_is_over(with_block: bool) -> None:
    failure = RuntimeError("boom")
    result = Runner.run_streamed(scripted(failure), "?")
    with pytest.raises(RuntimeError) as caught:
        if with_block:
            await all_events(result)
        else:
            async for _ in result.stream_events():
                pass
    assert caught.value is failure
    assert [event async for event in result.stream_events()] == []
    assert (await result.close()).clean


async def test_max_turns_holds_for_streamed_runs() -> None:
    with pytest.raises(MaxTurnsExceeded):
        await all_events(
            Runner.run_streamed(scripted(*[call("add", a=1, b=1)] * 3, tools=[add]), "?", max_turns=2)
        )


# cancel() -----------------------------------------------------------------------------------------------------


async def test_cancel_ends_the_events_after_the_drain() -> None:
    parked = Parked()
    result = Runner.run_streamed(scripted(parked.park), "?")
    async with consumed(result) as ended:
        await parked.reached.wait()
        result.cancel()
        result.cancel()
        await ended.wait()
        parked.assert_tidy()
    assert result.final_output is None
    assert result.is_complete
    assert result.report is not None
    assert result.report.reason is not None
    assert result.report.reason.kind == "user"


async def test_cancel_keeps_partial_text_and_marks_it() -> None:
    session = await session_with()
    result = Runner.run_streamed(scripted(Answer(["to be ", "or not ", "to be"])), "?", session=session)
    async for event in result.stream_events():
        if isinstance(event, RawResponseEvent) and event.data == TextDelta("or not "):
            result.cancel()
    assert result.new_items == [AssistantMessage("to be or not ", interrupted=True)]
    assert await session.get_items() == [UserMessage("?"), *result.new_items]
    assert result.usage.unreported == 1


async def test_cancel_after_turn_lets_the_turn_and_its_tools_finish() -> None:
    called: list[str] = []

    @function_tool
    async def mail() -> str:
        called.append("mail")
        await anyio.sleep(0.01)
        return "sent"

    agent = scripted(call("mail"), call("mail"), "ok", tools=[mail])
    result = Runner.run_streamed(agent, "?")
    async for event in result.stream_events():
        if isinstance(event, RunItemStreamEvent) and event.name == "tool_called":
            result.cancel("after_turn")
    assert called == ["mail"]
    assert len(requests_of(agent)) == 1
    assert outcomes(result.new_items) == ["finished"]
    assert_valid(result.to_input_list())
    assert result.final_output is None


@pytest.mark.parametrize("guardrail", [False, True])
async def test_cancel_after_turn_at_the_first_event_lets_the_first_turn_be_made(guardrail: bool) -> None:
    agent = scripted(
        call("add", a=1, b=2),
        "never said",
        tools=[add],
        input_guardrails=[guarded_input(passes(), 0.01, beside=False)] if guardrail else [],
    )
    session = await session_with()
    result = Runner.run_streamed(agent, "?", session=session)
    told: list[Any] = []
    async for event in result.stream_events():
        if not told:
            result.cancel("after_turn")
        told.append(event)
    assert [event.name for event in told if isinstance(event, RunItemStreamEvent)] == [
        "tool_called",
        "tool_output",
    ]
    assert len(requests_of(agent)) == 1
    assert result.final_output is None
    assert await session.get_items() == result.to_input_list()
    assert outcomes(result.new_items) == ["finished"]


async def test_cancel_after_turn_at_the_first_event_of_a_run_with_one_turn_lets_it_answer() -> None:
    result = Runner.run_streamed(scripted("hi"), "?")
    async for _ in result.stream_events():
        result.cancel("after_turn")
    assert result.final_output == "hi"
    assert result.is_complete


async def test_after_turn_and_then_immediate_stops_now() -> None:
    parked = Parked()

    @function_tool
    async def slow() -> str:
        await parked.park()
        return "never"

    result = Runner.run_streamed(scripted(call("slow"), tools=[slow]), "?")
    async with consumed(result) as ended:
        await parked.reached.wait()
        result.cancel("after_turn")
        await turns(10)
        assert not ended.is_set()
        result.cancel()
        await ended.wait()
    parked.assert_tidy()
    assert outcomes(result.new_items) == ["interrupted"]


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
async def test_cancelled_before_the_first_event_there_is_none_and_nothing_is_asked_of_the_model(
    mode: Any,
) -> None:
    agent, session = scripted("hi"), await session_with()
    result = Runner.run_streamed(agent, "?", session=session)
    result.cancel(mode)
    assert await all_events(result) == []
    assert requests_of(agent) == []
    assert await session.get_items() == []
    assert result.final_output is None
    assert result.report is not None
    assert result.report.clean


@virtual_worlds
@pytest.mark.parametrize("at_the_first_event", [False, True])
async def test_cancelled_before_the_run_has_started_not_even_its_guardrails_are_asked(
    at_the_first_event: bool,
) -> None:
    parked = Parked()
    agent = scripted(
        "hi",
        instructions=parked.park,
        input_guardrails=[input_guardrail(parked.park), input_guardrail(run_in_parallel=False)(parked.park)],
    )
    result = Runner.run_streamed(agent, "?")
    if not at_the_first_event:
        result.cancel()
    told: list[Any] = []
    with anyio.fail_after(5):
        async with result:
            async for event in result.stream_events():
                told.append(event)
                if at_the_first_event:
                    result.cancel()
    assert told == ([AgentUpdatedStreamEvent(agent)] if at_the_first_event else [])
    assert parked.begun == 0
    assert requests_of(agent) == []
    assert result.report is not None
    assert result.report.reason is not None
    assert (result.report.reason.kind, result.report.reason.message) == ("user", "cancel()")
    assert result.to_input_list() == [UserMessage("?")]


async def test_cancelled_after_its_end_nothing_changes() -> None:
    result = Runner.run_streamed(scripted("hi"), "?")
    await all_events(result)
    result.cancel()
    assert result.final_output == "hi"
    assert result.new_items == [AssistantMessage("hi")]


async def test_an_unknown_mode_is_refused() -> None:
    result = Runner.run_streamed(scripted("hi"), "?")
    with pytest.raises(ValueError, match='mode must be "immediate" or "after_turn", not \'now\''):
        result.cancel("now")  # type: ignore[arg-type]


@pytest.mark.real_time
async def test_cancel_works_from_any_thread() -> None:
    parked = Parked()
    result = Runner.run_streamed(scripted(parked.park), "?")
    async with consumed(result) as ended:
        await parked.reached.wait()
        thread = threading.Thread(target=result.cancel)
        thread.start()
        await ended.wait()
        thread.join()
    parked.assert_tidy()


# Closing ------------------------------------------------------------------------------------------------------


async def test_leaving_the_block_early_drains_the_run() -> None:
    model = SlowModel("one two three", pause=0.001)
    result = Runner.run_streamed(Agent(name="a", model=model), "?")
    async with result:
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                break
    assert model.cut == 1
    assert result.new_items == [AssistantMessage("one", interrupted=True)]


async def test_an_error_in_the_block_is_raised_after_the_drain() -> None:
    model = SlowModel("one two three", pause=0.001)
    with pytest.raises(KeyError, match="mine"):
        async with Runner.run_streamed(Agent(name="a", model=model), "?") as result:
            async for event in result.stream_events():
                if event.type == "raw_response_event":
                    raise KeyError("mine")
    assert model.cut == 1


async def test_aclose_drains_and_reports_as_often_as_you_like() -> None:
    model = SlowModel("one two three", pause=0.001)
    result = Runner.run_streamed(Agent(name="a", model=model), "?")
    async with aclosing(result):
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                break
    assert model.cut == 1
    for _ in range(2):
        report = await result.close()
        assert report.clean


async def test_close_from_another_task_ends_the_events_of_who_waits() -> None:
    parked = Parked()
    result = Runner.run_streamed(scripted(parked.park), "?")
    async with consumed(result) as ended:
        await parked.reached.wait()
        report = await result.close()
        parked.assert_tidy()
        await ended.wait()
    assert report.clean


async def test_close_before_the_first_event_starts_nothing() -> None:
    agent = scripted("hi")
    result = Runner.run_streamed(agent, "?")
    assert (await result.close()).clean
    assert [event async for event in result.stream_events()] == []
    assert requests_of(agent) == []


@virtual_worlds
async def test_a_deadline_bounds_the_close() -> None:
    from tests.kernel.temperaments import Stubborn

    stubborn = Stubborn()

    @function_tool
    async def deaf() -> str:
        await stubborn()
        return "never"

    async with Scope("app"):
        result = Runner.run_streamed(scripted(call("deaf"), tools=[deaf]), "?")
        async with anyio.create_task_group() as group:

            async def consume() -> None:
                async for _ in result.stream_events():
                    pass

            group.start_soon(consume)
            await anyio.sleep(0.1)
            began = anyio.current_time()
            report = await result.close(deadline=0.2)
            assert anyio.current_time() - began == pytest.approx(0.2, abs=0.01)
            assert not report.clean
            stubborn.let_go()


@asyncio_only
async def test_the_consumers_cancel_is_raised_after_the_drain() -> None:
    parked = Parked()
    result = Runner.run_streamed(scripted(parked.park), "?")

    async def consume() -> None:
        try:
            async for _ in result.stream_events():
                pass
        finally:
            parked.assert_tidy()

    task = asyncio.create_task(consume())
    await parked.reached.wait()
    task.cancel("mine")
    with pytest.raises(asyncio.CancelledError, match="mine"):
        await task


# Bare loops and dropped results -------------------------------------------------------------------------------


class Mailer:
    """An agent that goes on sending mail until it is stopped; it counts what it starts."""

    def __init__(self) -> None:
        self.started: list[str] = []

        @function_tool
        async def mail() -> str:
            self.started.append("tool")
            await anyio.sleep(0.001)
            return "sent"

        self.name = "mailer"
        self.agent: Agent[Any] = Agent(name="mailer", model=self, tools=[mail])

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.started.append("model")
        number = len(request.items)
        turn = Answer(["on we ", "go"], [call("mail", f"{number}-a"), call("mail", f"{number}-b")])
        async with aclosing(ScriptedModel([turn]).stream(request)) as answer:
            async for event in answer:
                yield event

    async def assert_nothing_starts(self) -> None:
        before = list(self.started)
        await turns(20)
        await anyio.sleep(0.1)
        assert self.started == before


@pytest.mark.parametrize("after", range(1, 16))
async def test_after_a_bare_break_no_model_and_no_tool_is_called(after: int) -> None:
    mailer = Mailer()
    result = Runner.run_streamed(mailer.agent, "?")
    async with Scope("app"):
        read = 0
        async for _ in result.stream_events():
            read += 1
            if read == after:
                break
        before = list(mailer.started)
        await mailer.assert_nothing_starts()
        assert mailer.started == before
        assert (await result.close()).clean
    assert_valid(result.to_input_list())


@pytest.mark.parametrize("after", range(1, 16))
async def test_after_a_result_is_dropped_no_model_and_no_tool_is_called(after: int) -> None:
    mailer = Mailer()

    async def read_some() -> None:
        result = Runner.run_streamed(mailer.agent, "?")
        events = aiter(result.stream_events())
        for _ in range(after):
            await anext(events)

    async with Scope("app"):
        await read_some()
        before = list(mailer.started)
        await mailer.assert_nothing_starts()
        assert mailer.started == before


async def test_an_exception_out_of_a_bare_loop_stops_the_run_too() -> None:
    mailer = Mailer()
    result = Runner.run_streamed(mailer.agent, "?")
    async with Scope("app"):
        with pytest.raises(KeyError):
            await _raises_at(result, 4)
        await mailer.assert_nothing_starts()


async def _raises_at(result: RunResultStreaming, number: int) -> None:
    read = 0
    async for _ in result.stream_events():
        read += 1
        if read == number:
            raise KeyError


async def test_a_result_that_nobody_reads_costs_nothing_and_warns_of_nothing() -> None:
    agent = scripted("hi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = Runner.run_streamed(agent, "?")
        del result
        result = Runner.run_streamed(agent, "?")
        result.stream_events()
        del result
        gc.collect()
    await turns(5)
    assert requests_of(agent) == []


async def test_a_run_belongs_to_the_scope_that_the_events_were_asked_for_in() -> None:
    parked = Parked()
    result = Runner.run_streamed(scripted(parked.park), "?")
    scope = await Scope.open("app")

    async def consume() -> None:
        async for _ in result.stream_events():
            pass

    handle = scope.spawn(consume)
    await parked.reached.wait()
    assert (await scope.close()).clean
    parked.assert_tidy()
    assert handle.done
    assert not [item for item in result.new_items if isinstance(item, ToolResult)]


@asyncio_only
@pytest.mark.parametrize("started", [False, True])
async def test_a_run_that_others_cancel_behind_its_owners_back_ends_the_events_with_an_error(
    started: bool,
) -> None:
    parked = Parked()
    result = Runner.run_streamed(scripted(parked.park), "?")
    events = aiter(result.stream_events())
    await anext(events)

    async def cancels_it() -> None:
        if started:
            await parked.reached.wait()
        while not (runs := [task for task in asyncio.all_tasks() if task.get_name() == "run of assistant"]):
            await asyncio.sleep(0)
        runs[0].cancel()

    waiting = asyncio.create_task(cancels_it())
    with pytest.raises(ChildCancelled):
        await anext(events)
    await waiting
    assert (await result.close()).clean
    assert parked.tidied == parked.begun
