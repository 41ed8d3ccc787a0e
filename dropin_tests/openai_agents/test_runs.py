"""Runs that are stopped, in every way, have ended; and everything else is as with the SDK."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import agents
import pytest
from agents.tracing import TracingProcessor
from agents.tracing.processor_interface import TracingExporter
from agents.tracing.processors import BatchTraceProcessor
from peers.agents_matrix import POINTS, STOPS, cell
from tests.world import asyncio_only

import quiesce
from dropin_tests.openai_agents.made_up import UNTRACED, Scripted, call, say
from quiesce import Grace, current_token
from quiesce.dropin import agents as dropin
from quiesce.dropin.agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    Runner,
    function_tool,
    input_guardrail,
)

pytestmark = asyncio_only
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def forever() -> None:
    await asyncio.sleep(3600)


@input_guardrail
async def trip(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    await asyncio.sleep(0.05)
    return GuardrailFunctionOutput(output_info="no", tripwire_triggered=True)


@pytest.mark.real_time
@pytest.mark.time_limit(60)
@pytest.mark.parametrize("stop", STOPS)
async def test_whatever_a_run_waits_for_it_has_ended_when_its_stop_is_over(stop: str) -> None:
    cells = [await cell(dropin, point, stop) for point in POINTS]
    assert [one for one in cells if one["faults"]] == []


# What a run gives


async def test_a_result_is_the_sdks_and_has_a_report() -> None:
    result = await Runner.run(Agent(name="a", model=Scripted([say("done")])), "Go.", run_config=UNTRACED)
    assert isinstance(result, agents.RunResult)
    assert result.final_output == "done"
    assert result.report.clean
    assert result.to_input_list()[0] == {"content": "Go.", "role": "user"}


async def test_a_streamed_result_is_the_sdks_and_its_events_are_the_same() -> None:
    async def events_of(sdk: Any) -> list[tuple[str, str]]:
        agent = Agent(
            name="a", tools=[nothing], model=Scripted([call("nothing")], [say("done")], words=["d", "one"])
        )
        result = sdk.Runner.run_streamed(agent, "Go.", run_config=UNTRACED)
        events = [(event.type, getattr(event, "name", "")) async for event in result.stream_events()]
        assert result.final_output == "done"
        assert (result.is_complete, agents.RunResultStreaming in type(result).__mro__) == (True, True)
        return events

    assert await events_of(dropin) == await events_of(agents)


@function_tool
async def nothing() -> str:
    """Do nothing."""
    return "nothing"


async def test_a_streamed_result_that_was_read_to_the_end_has_a_report() -> None:
    result = Runner.run_streamed(Agent(name="a", model=Scripted([say("done")])), "Go.", run_config=UNTRACED)
    before = result.report
    async for _ in result.stream_events():
        pass
    assert before is None
    assert result.report is not None
    assert result.report.clean
    assert (await result.close()).clean


async def test_the_first_event_can_be_taken_with_anext() -> None:
    result = Runner.run_streamed(Agent(name="a", model=Scripted([say("done")])), "Go.", run_config=UNTRACED)
    events = result.stream_events()
    assert (await anext(events)).type == "agent_updated_stream_event"
    async with aclosing(events):
        assert (await anext(events)).type == "raw_response_event"
    assert result.report is not None


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_arguments_of_the_sdk_are_handed_on(streamed: bool) -> None:
    agent = Agent(name="a", tools=[nothing], model=Scripted([call("nothing")]))
    with pytest.raises(MaxTurnsExceeded, match=r"Max turns \(2\) exceeded"):
        await run(agent, streamed=streamed, max_turns=2)


async def run(agent: Agent[Any], *, streamed: bool, **options: Any) -> None:
    if streamed:
        await read(Runner.run_streamed(agent, "Go.", run_config=UNTRACED, **options))
    else:
        await Runner.run(agent, "Go.", run_config=UNTRACED, **options)


async def test_a_wrong_argument_is_the_same_error_as_with_the_sdk() -> None:
    for sdk in (agents, dropin):
        with pytest.raises(TypeError, match="max_turn"):
            sdk.Runner.run_streamed(Agent(name="a"), "Go.", max_turn=1)  # type: ignore[call-arg, unused-ignore]
        with pytest.raises(TypeError, match="max_turn"):
            await sdk.Runner.run(Agent(name="a"), "Go.", max_turn=1)  # type: ignore[call-arg, unused-ignore]


async def test_tools_see_the_callers_context() -> None:
    seen: list[str] = []

    @function_tool
    async def look() -> str:
        """Look."""
        seen.append(variable.get())
        variable.set("inside")
        return ""

    variable.set("outside")
    agent = Agent(name="a", tools=[look], model=Scripted([call("look")], [say("done")]))
    await Runner.run(agent, "Go.", run_config=UNTRACED)
    async for _ in Runner.run_streamed(agent, "Go.", run_config=UNTRACED).stream_events():
        pass
    assert seen == ["outside"] * len(seen) != []
    assert variable.get() == "outside"


class Recorder(TracingProcessor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_trace_start(self, trace: Any) -> None:
        self.seen.append(f"trace {trace.name}")

    def on_trace_end(self, trace: Any) -> None:
        self.seen.append("end")

    def on_span_start(self, span: Any) -> None:
        self.seen.append(span.span_data.type)

    def on_span_end(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self) -> None: ...


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    agents.set_trace_processors([recorder])
    agents.set_tracing_disabled(False)
    yield recorder
    agents.set_trace_processors([])


async def test_traces_are_those_of_the_sdk(recorder: Recorder) -> None:
    async def trace(sdk: Any) -> list[str]:
        recorder.seen.clear()
        agent = Agent(name="a", tools=[nothing], model=Scripted([call("nothing")], [say("done")]))
        with agents.trace("workflow"):
            await sdk.Runner.run(agent, "Go.")
        result = sdk.Runner.run_streamed(agent, "Go.")
        async for _ in result.stream_events():
            pass
        return recorder.seen.copy()

    theirs = await trace(agents)
    assert "trace workflow" in theirs
    assert await trace(dropin) == theirs


async def test_the_sdks_thread_for_traces_is_not_left_by_the_first_run_that_is_traced() -> None:
    exporting = BatchTraceProcessor(Nowhere())
    agents.set_trace_processors([exporting])
    agents.set_tracing_disabled(False)
    try:
        result = await dropin.Runner.run(Agent(name="a", model=Scripted([say("done")])), "Go.")
        assert exporting._worker_thread is not None
        assert exporting._worker_thread.is_alive()
        assert result.report.clean, str(result.report)
    finally:
        agents.set_trace_processors([])
        exporting.shutdown()


class Nowhere(TracingExporter):
    def export(self, items: Any) -> None: ...


# Stops


async def test_a_streamed_tripwire_ends_the_model_at_once_and_is_raised_itself() -> None:
    model = Scripted([say("too late")], first=forever)
    result = Runner.run_streamed(
        Agent(name="a", model=model, input_guardrails=[trip]), "Go.", run_config=UNTRACED
    )
    began = asyncio.get_running_loop().time()
    with pytest.raises(InputGuardrailTripwireTriggered) as raised:
        async for _ in result.stream_events():
            pass
    assert raised.value.guardrail_result.output.output_info == "no"
    assert asyncio.get_running_loop().time() - began < 1
    assert model.cancelled == 1
    assert [found.output.tripwire_triggered for found in result.input_guardrail_results] == [True]


async def test_a_tripwire_is_raised_itself_when_the_model_has_ended() -> None:
    model = Scripted([say("too late")], first=forever)
    with pytest.raises(InputGuardrailTripwireTriggered):
        await Runner.run(Agent(name="a", model=model, input_guardrails=[trip]), "Go.", run_config=UNTRACED)
    assert model.cancelled == 1


async def test_when_a_tool_fails_the_others_have_cleaned_up() -> None:
    cleaned: list[str] = []

    @function_tool(failure_error_function=None)
    async def fail() -> str:
        """Fail."""
        await asyncio.sleep(0.01)
        raise LookupError("no such page")

    @function_tool
    async def work() -> str:
        """Work."""
        try:
            await forever()
        finally:
            await asyncio.sleep(2)
            cleaned.append("work")
        return ""

    agent = Agent(name="a", tools=[fail, work], model=Scripted([call("fail"), call("work")]))
    with pytest.raises(agents.UserError, match="no such page"):
        await Runner.run(agent, "Go.", run_config=UNTRACED)
    assert cleaned == ["work"]


async def test_what_does_not_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    released = asyncio.Event()

    @function_tool
    async def deaf() -> str:
        """Do not listen."""
        while not released.is_set():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
        return ""

    agent = Agent(name="a", tools=[deaf], model=Scripted([call("deaf")]))
    result = Runner.run_streamed(agent, "Go.", run_config=UNTRACED)
    reading = asyncio.create_task(read(result))
    await asyncio.sleep(0.1)
    with caplog.at_level(logging.WARNING, "quiesce"):
        report = await result.close(grace=Grace(cancel=0.2, terminate=0.1, kill=0.1))
    assert not report.clean
    assert any("deaf" in left.stuck_at for left in report.left)
    assert "left: task" in caplog.text
    released.set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # it looks whether it is released
    await asyncio.wait([reading])
    await asyncio.sleep(1)


async def read(result: Any) -> None:
    async for _ in result.stream_events():
        pass


async def test_a_task_that_a_tool_has_started_ends_with_the_run_and_is_in_the_report() -> None:
    cleaned: list[str] = []

    async def job() -> None:
        try:
            await forever()
        finally:
            cleaned.append("job")

    jobs: list[asyncio.Task[None]] = []

    @function_tool
    async def start() -> str:
        """Start a job."""
        jobs.append(asyncio.create_task(job()))
        await asyncio.sleep(0)
        return "started"

    agent = Agent(name="a", tools=[start], model=Scripted([call("start")], [say("done")]))
    result = await Runner.run(agent, "Go.", run_config=UNTRACED)
    assert cleaned == ["job"]
    assert [outcome.state for outcome in result.report.outcomes] == ["cancelled"]


async def test_a_job_in_a_scope_outlives_the_run() -> None:
    async with quiesce.Scope() as scope:

        @function_tool
        async def start() -> str:
            """Start a job."""
            scope.spawn(forever)
            return "started"

        agent = Agent(name="a", tools=[start], model=Scripted([call("start")], [say("done")]))
        await Runner.run(agent, "Go.", run_config=UNTRACED)
        assert len(scope.children) == 1
        scope.cancel()


async def test_after_break_nothing_new_starts() -> None:
    mails: list[str] = []

    @function_tool
    async def send_mail() -> str:
        """Send."""
        mails.append("sent")
        return "sent"

    model = Scripted([call("send_mail")], first=lambda: asyncio.sleep(0.1), words=["a", "b"])
    result = Runner.run_streamed(Agent(name="a", model=model, tools=[send_mail]), "Go.", run_config=UNTRACED)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            break
    assert result.is_complete
    await asyncio.sleep(10)
    assert (model.calls, mails) == (1, [])
    assert (await result.close()).clean


async def test_a_result_that_is_dropped_unread_goes_on_as_with_the_sdk_and_leaves_nothing() -> None:
    model = Scripted([call("nothing")], [say("done")], first=lambda: asyncio.sleep(0.1))
    Runner.run_streamed(Agent(name="a", model=model, tools=[nothing]), "Go.", run_config=UNTRACED)
    await asyncio.sleep(10)
    assert model.calls == 2
    gc.collect()
    await asyncio.sleep(1)  # the world of the test sees that nothing is left


async def test_a_scope_that_is_closed_stops_the_runs_in_it() -> None:
    model = Scripted([say("done")], first=forever)
    scope = await quiesce.Scope.open()

    async def start() -> Any:
        result = Runner.run_streamed(Agent(name="a", model=model), "Go.", run_config=UNTRACED)
        await asyncio.sleep(0.1)
        return result

    handle = scope.spawn(start)
    await handle.wait()
    result = handle.result()
    await scope.close()
    assert model.cancelled == 1
    assert (await result.close()).clean


async def test_close_right_after_the_start_stops_the_run() -> None:
    model = Scripted([say("done")], first=forever)
    result = Runner.run_streamed(Agent(name="a", model=model), "Go.", run_config=UNTRACED)
    assert (await result.close()).clean
    assert model.calls == model.cancelled


async def test_cancel_after_the_turn_ends_as_with_the_sdk() -> None:
    async def use(sdk: Any) -> tuple[int, list[str]]:
        model = Scripted([call("nothing")], first=lambda: asyncio.sleep(0.1), words=["a"])
        result = sdk.Runner.run_streamed(
            Agent(name="a", model=model, tools=[nothing]), "Go.", run_config=UNTRACED
        )
        types = []
        async for event in result.stream_events():
            types.append(event.type)
            if event.type == "raw_response_event":
                result.cancel(mode="after_turn")
        return model.calls, types

    assert await use(dropin) == await use(agents)


async def test_a_tool_may_close_its_own_run() -> None:
    runs: list[Any] = []

    @function_tool
    async def give_up() -> str:
        """Give up."""
        await runs[0].close()
        return ""

    agent = Agent(name="a", tools=[give_up], model=Scripted([call("give_up")], [say("done")]))
    runs.append(Runner.run_streamed(agent, "Go.", run_config=UNTRACED))
    began = asyncio.get_running_loop().time()
    async for _ in runs[0].stream_events():
        pass
    assert asyncio.get_running_loop().time() - began < 1
    assert (await runs[0].close()).clean


@pytest.mark.real_time
async def test_a_sync_tool_has_a_token_that_the_stop_cancels() -> None:
    reasons: list[str] = []
    loop = asyncio.get_running_loop()
    is_up = asyncio.Event()

    @function_tool
    def block() -> str:
        """Work in a thread."""
        token = current_token()
        loop.call_soon_threadsafe(is_up.set)
        token.wait_sync(10)
        reasons.append(token.reason.kind if token.reason is not None else "none")
        return ""

    agent = Agent(name="a", tools=[block], model=Scripted([call("block")]))
    for stop in ("timeout", "close"):
        is_up.clear()
        if stop == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await Runner.run(agent, "Go.", run_config=UNTRACED)
        else:
            async with Runner.run_streamed(agent, "Go.", run_config=UNTRACED):
                await is_up.wait()
    assert reasons == ["cancelled", "user"]
