"""Runs that are stopped, in every way, have ended; and everything else is as with the SDK."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import pickle
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pydantic_ai
import pytest
from pydantic import TypeAdapter
from pydantic_ai.agent import AgentRunEvents
from pydantic_ai.models.test import TestModel
from pydantic_ai.result import StreamedRunResult
from tests.world import asyncio_only

import quiesce
from dropin_tests.pydantic_ai.made_up import Scripted, call, say
from quiesce import Grace, current_token
from quiesce.dropin import pydantic_ai as dropin
from quiesce.dropin.pydantic_ai import Agent, AgentRunResult, CancellationToken, RunCancelled, WrapperAgent

pytestmark = asyncio_only
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def forever() -> None:
    await asyncio.sleep(3600)


class Work:
    """A tool that needs half a second to clean up, and counts how often it was interrupted in that."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cleaned = self.interrupted = 0

    async def work(self) -> str:
        """Work."""
        self.begun.set()
        try:
            await forever()
        finally:
            try:
                await asyncio.sleep(0.5)
                self.cleaned += 1
            except asyncio.CancelledError:
                self.interrupted += 1
                raise
        return ""


def worker(work: Work, **options: Any) -> Agent:
    return Agent(Scripted([call("work")], [say("done")]), tools=[work.work], **options)


# The ways to use an agent, each until the end


async def run(agent: Any, **options: Any) -> Any:
    return (await agent.run("Go.", **options)).output


async def run_stream(agent: Any, **options: Any) -> Any:
    async with agent.run_stream("Go.", **options) as result:
        return "".join([text async for text in result.stream_text(delta=True, debounce_by=None)])


async def run_stream_events(agent: Any, **options: Any) -> Any:
    output = None
    async with agent.run_stream_events("Go.", **options) as events:
        async for event in events:
            if isinstance(event, dropin.AgentRunResultEvent):
                output = event.result.output
    return output


async def iterate(agent: Any, **options: Any) -> Any:
    async with agent.iter("Go.", **options) as run:
        async for _ in run:
            pass
    return run.result.output


async def in_a_generator(agent: Any, **options: Any) -> Any:
    async def texts() -> AsyncIterator[str]:
        async with agent.run_stream("Go.", **options) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                yield text

    return "".join([text async for text in texts()])


Use = Callable[..., Coroutine[Any, Any, Any]]
WAYS: list[Use] = [run, run_stream, run_stream_events, iterate, in_a_generator]
each_way = pytest.mark.parametrize("use", WAYS)


@each_way
async def test_an_agent_answers_as_with_the_sdk(use: Use) -> None:
    async def answer(sdk: Any) -> Any:
        agent = sdk.Agent(Scripted([call("nothing")], [say("one two")]), tools=[nothing])
        return await use(agent)

    assert await answer(dropin) == await answer(pydantic_ai) == "one two"


async def nothing() -> str:
    """Do nothing."""
    return "nothing"


# Stops


@each_way
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_cancelled_however_often_its_tools_have_cleaned_up(use: Use, times: int) -> None:
    work = Work()
    task = asyncio.create_task(use(worker(work)))
    await work.begun.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (work.cleaned, work.interrupted) == (1, 0)


@each_way
async def test_under_a_timeout_its_tools_have_cleaned_up(use: Use) -> None:
    work = Work()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await use(worker(work))
    assert (work.cleaned, work.interrupted) == (1, 0)


@each_way
async def test_what_a_cancelled_run_had_done_can_be_found_as_with_the_sdk(use: Use) -> None:
    work = Work()
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.2):
            await use(worker(work))
    done = RunCancelled.from_cancellation(raised.value)
    assert done is not None
    assert [part.part_kind for part in done.all_messages()[0].parts] == ["user-prompt"]
    assert done.response.tool_calls[0].tool_name == "work"


@each_way
async def test_the_sdks_own_cancel_raises_what_the_sdk_raises(use: Use) -> None:
    for sdk in (pydantic_ai, dropin):
        work, token = Work(), CancellationToken()
        agent = sdk.Agent(Scripted([call("work")], [say("done")]), tools=[work.work])
        task = asyncio.create_task(use(agent, cancellation_token=token))
        await work.begun.wait()
        token.cancel()
        with pytest.raises(RunCancelled):
            await task
        assert work.cleaned == 1
        assert not task.cancelling()


@pytest.mark.parametrize("use", [run_stream, in_a_generator])
async def test_the_sdks_own_cancel_in_the_middle_of_a_text_raises_what_the_sdk_raises(use: Use) -> None:
    for sdk in (pydantic_ai, dropin):
        begun, token = asyncio.Event(), CancellationToken()

        async def wait(begun: asyncio.Event = begun) -> None:
            begun.set()
            await forever()

        agent = sdk.Agent(Scripted([say("one two")], then=wait))
        task = asyncio.create_task(use(agent, cancellation_token=token))
        await begun.wait()
        token.cancel()
        with pytest.raises(RunCancelled):
            await task


@each_way
async def test_when_a_tool_fails_the_others_have_cleaned_up(use: Use) -> None:
    work = Work()

    async def fail() -> str:
        """Fail."""
        await asyncio.sleep(0.1)
        raise LookupError("no such page")

    agent = Agent(Scripted([call("fail"), call("work")]), tools=[fail, work.work])
    with pytest.raises(LookupError, match="no such page"):
        await use(agent)
    assert (work.cleaned, work.interrupted) == (1, 0)


@each_way
async def test_a_task_that_a_tool_has_started_ends_with_the_run(use: Use) -> None:
    cleaned: list[str] = []

    async def job() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.1)
            cleaned.append("job")

    jobs: list[asyncio.Task[None]] = []

    async def start() -> str:
        """Start a job."""
        jobs.append(asyncio.create_task(job()))
        await asyncio.sleep(0)
        return "started"

    await use(Agent(Scripted([call("start")], [say("done")]), tools=[start]))
    assert cleaned == ["job"]


async def test_a_job_in_a_scope_outlives_the_run() -> None:
    async with quiesce.Scope() as scope:

        async def start() -> str:
            """Start a job."""
            scope.spawn(forever)
            return "started"

        await Agent(Scripted([call("start")], [say("done")]), tools=[start]).run("Go.")
        assert len(scope.children) == 1
        scope.cancel()


@pytest.mark.real_time
@each_way
async def test_a_sync_tool_has_a_token_that_the_stop_cancels(use: Use) -> None:
    ended: list[str] = []

    def block() -> str:
        """Work in a thread."""
        token = current_token()
        token.wait_sync(10)
        time.sleep(0.1)
        ended.append(token.reason.kind if token.reason is not None else "none")
        return ""

    agent = Agent(Scripted([call("block")]), tools=[block])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await use(agent)
    assert len(ended) == 1
    assert ended[0] != "none"


@pytest.mark.real_time
@each_way
async def test_a_sync_tool_that_does_not_look_at_its_token_is_named(
    use: Use, caplog: pytest.LogCaptureFixture
) -> None:
    gone = False

    def deaf() -> str:
        """Do not listen."""
        while not gone:
            time.sleep(0.01)
        return ""

    agent = Agent(Scripted([call("deaf")]), tools=[deaf])
    with caplog.at_level(logging.WARNING, "quiesce"):
        async with quiesce.Scope(grace=Grace(cancel=0.2, terminate=0.1, kill=0.1)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await use(agent)
    gone = True
    assert "left: thread" in caplog.text
    assert "deaf" in caplog.text
    await asyncio.sleep(0.3)


async def test_the_agent_that_a_tool_asks_stops_with_the_run() -> None:
    work = Work()
    inner = worker(work)

    async def ask() -> str:
        """Ask another agent."""
        return (await inner.run("Go.")).output

    agent = Agent(Scripted([call("ask")], [say("done")]), tools=[ask])
    task = asyncio.create_task(agent.run("Go."))
    await work.begun.wait()
    task.cancel()
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (work.cleaned, work.interrupted) == (1, 0)


# Streams that are left, and closed


async def test_after_break_nothing_new_starts_and_nothing_is_left() -> None:
    model = Scripted([say("one two three")], then=forever)
    async with Agent(model).run_stream("Go.") as result:
        async for text in result.stream_text(delta=True, debounce_by=None):
            assert text == "one"
            break
    assert (model.calls, model.closed) == (1, 1)
    assert result.report is not None
    assert result.report.clean


async def test_after_break_in_the_events_its_tools_have_cleaned_up() -> None:
    work = Work()
    async with worker(work).run_stream_events("Go.") as events:
        assert isinstance(events, AgentRunEvents)
        async for event in events:
            if event.event_kind == "function_tool_call":
                await work.begun.wait()
                break
    assert (work.cleaned, work.interrupted) == (1, 0)
    assert events.report is not None
    assert events.report.clean


async def test_a_generator_around_a_stream_can_be_dropped() -> None:
    model = Scripted([say("one two three")], then=forever)

    async def texts() -> AsyncIterator[str]:
        async with Agent(model).run_stream("Go.") as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                yield text

    async for _ in texts():
        break
    await asyncio.sleep(1)
    assert model.closed == 1


@pytest.mark.parametrize("form", ["run_stream", "run_stream_events", "iter"])
async def test_another_task_can_close_it_and_its_reader_sees_the_end(form: str) -> None:
    work = Work()
    agent = worker(work) if form != "run_stream" else Agent(Scripted([say("one two")], then=forever))
    opened = getattr(agent, form)("Go.")
    value = await asyncio.create_task(opened.__aenter__())

    async def read() -> list[object]:
        items = value.stream_text(delta=True, debounce_by=None) if form == "run_stream" else value
        return [item async for item in items]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    report = await asyncio.create_task(value.close())
    assert report.clean
    if form == "iter":
        with pytest.raises(quiesce.NotHeld, match="it was left"):
            await reading
    else:
        assert len(await reading) > 0
    assert work.cleaned == (form != "run_stream")
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
    assert await opened.close() == report


async def test_two_streams_are_exited_first_in_first_out() -> None:
    agent = Agent(Scripted([say("one two")]))
    first, second = agent.run_stream("Go."), agent.run_stream("Go.")
    await first.__aenter__()
    result = await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert await result.get_output() == "one two"
    await second.__aexit__(None, None, None)


async def test_a_scope_that_is_closed_stops_the_runs_in_it() -> None:
    model = Scripted([say("one two")], then=forever)
    scope = await quiesce.Scope.open()

    async def start() -> Any:
        return await Agent(model).run_stream("Go.").__aenter__()

    handle = scope.spawn(start)
    await handle.wait()
    result = handle.result()
    reading = asyncio.create_task(anext(result.stream_text(debounce_by=None)))
    await reading
    await scope.close()
    assert (await result.close()).clean


async def test_a_run_is_entered_once() -> None:
    opened = Agent(TestModel()).run_stream("Go.")
    async with opened:
        pass
    with pytest.raises(RuntimeError, match=r"Agent\.run_stream was entered before"):
        await opened.__aenter__()


async def test_what_is_streamed_can_be_closed() -> None:
    model = Scripted([say("one two three")], then=forever)
    async with Agent(model).run_stream("Go.") as result:
        texts: Any = result.stream_text(delta=True, debounce_by=None)
        async with aclosing(texts):
            assert await anext(texts) == "one"
        with pytest.raises(StopAsyncIteration):
            await anext(texts)
    assert model.closed == 1


async def test_a_run_that_does_not_start_is_the_error_of_the_sdk() -> None:
    for agent in (pydantic_ai.Agent(), Agent()):
        for form in ("run_stream", "iter"):
            with pytest.raises(pydantic_ai.UserError, match="`model` must either be set"):
                async with getattr(agent, form)("Go."):
                    pass


async def test_an_error_in_the_body_is_raised_as_itself() -> None:
    for form in ("run_stream", "run_stream_events", "iter"):
        with pytest.raises(LookupError) as raised:
            async with getattr(Agent(TestModel()), form)("Go."):
                raise LookupError("mine")
        assert raised.value.args == ("mine",)


# What they give


async def test_a_result_is_the_sdks_and_has_a_report() -> None:
    result = await Agent(TestModel(custom_output_text="done")).run("Go.")
    assert isinstance(result, pydantic_ai.AgentRunResult)
    assert repr(result) == "AgentRunResult(output='done')"
    assert result.report.clean
    assert pickle.loads(pickle.dumps(result)).output == copy.deepcopy(result).output == "done"
    dumped = TypeAdapter(AgentRunResult[str]).dump_python(result)
    theirs = TypeAdapter(AgentRunResult[str]).dump_python(await pydantic_ai.Agent(TestModel()).run("Go."))
    assert dumped.keys() == theirs.keys()


async def test_what_the_forms_give_is_the_sdks() -> None:
    agent = Agent(TestModel())
    async with agent.run_stream("Go.") as result:
        assert isinstance(result, StreamedRunResult)
        assert await result.get_output() == "success (no tool calls)"
        assert result.is_complete
    async with agent.iter("Go.") as run:
        assert isinstance(run, pydantic_ai.AgentRun)
        node = run.next_node
        while not Agent.is_end_node(node):
            node = await run.next(node)  # type: ignore[arg-type, unused-ignore]
    assert run.result is not None
    assert run.result.output == "success (no tool calls)"
    assert run.report is not None


async def test_an_agent_gets_the_name_of_its_variable() -> None:
    one, two, three, four = (Agent(TestModel()) for _ in range(4))
    await one.run("Go.")
    async with two.run_stream("Go."):
        pass
    async with three.run_stream_events("Go."):
        pass
    async with four.iter("Go."):
        pass
    unnamed = Agent(TestModel())
    await unnamed.run("Go.", infer_name=False)
    assert [agent.name for agent in (one, two, three, four, unnamed)] == ["one", "two", "three", "four", None]


async def test_tools_see_the_callers_context() -> None:
    seen: list[str] = []

    async def look() -> str:
        """Look."""
        seen.append(variable.get())
        variable.set("inside")
        return ""

    variable.set("outside")
    for use in WAYS:
        await use(Agent(Scripted([call("look")], [say("done")]), tools=[look]))
    assert seen == ["outside"] * len(WAYS)
    assert variable.get() == "outside"


async def test_an_override_holds_in_every_form() -> None:
    agent = Agent(Scripted([say("real")]))
    with agent.override(model=TestModel(custom_output_text="test")):
        assert [await use(agent) for use in WAYS] == ["test"] * len(WAYS)


async def test_a_subclass_and_a_wrapper_are_contained_too() -> None:
    class Mine(Agent[None, str]):  # type: ignore[type-arg, unused-ignore]
        pass

    kinds: list[tuple[Any, list[Use]]] = [
        (lambda work: Mine(Scripted([call("work")]), tools=[work.work]), WAYS),
        (lambda work: WrapperAgent(worker(work)), WAYS),
        # The SDK's own runs the steps of a stream in the task of its user.
        (lambda work: pydantic_ai.agent.WrapperAgent(worker(work)), [run, iterate]),
    ]
    for kind, ways in kinds:
        for use in ways:
            work = Work()
            task = asyncio.create_task(use(kind(work)))
            await work.begun.wait()
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.1)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (work.cleaned, work.interrupted) == (1, 0), use.__name__


async def test_a_wrong_argument_is_the_same_error_as_with_the_sdk() -> None:
    for agent in (pydantic_ai.Agent(TestModel()), Agent(TestModel())):
        with pytest.raises(TypeError, match="max_turn"):
            await agent.run("Go.", max_turn=1)  # type: ignore[call-overload, unused-ignore]
        with pytest.raises(TypeError, match="max_turn"):
            agent.run_stream_events("Go.", max_turn=1)  # type: ignore[call-overload, unused-ignore]


async def test_everything_else_is_the_sdks_own() -> None:
    from quiesce.dropin.pydantic_ai import agent, models, tools

    assert agent.Agent is Agent
    assert tools.Tool is pydantic_ai.Tool is dropin.Tool
    assert models.Model is pydantic_ai.models.Model
