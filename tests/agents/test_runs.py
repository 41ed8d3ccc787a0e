"""Runs: what goes in, what comes out, what is remembered, and what they raise."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import threading
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope, current_scope, current_token
from quiesce.agents import (
    Agent,
    MaxTurnsExceeded,
    MemorySession,
    RunConfig,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    UserError,
    function_tool,
)
from quiesce.models import (
    AssistantMessage,
    Item,
    ItemDone,
    ModelBehaviorError,
    ModelEvent,
    ModelRefusalError,
    ModelRequest,
    ModelSettings,
    ModelTimeoutError,
    Reasoning,
    ResponseDone,
    TextDelta,
    Tokens,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from quiesce.testing import Answer, ScriptedModel, ScriptExhausted, call
from tests.agents.scenes import (
    Parked,
    SlowModel,
    assert_valid,
    consumed,
    outcomes,
    requests_of,
    scripted,
    session_with,
)
from tests.kernel.programs import program
from tests.kernel.temperaments import virtual_worlds
from tests.world import asyncio_only


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# A plain run --------------------------------------------------------------------------------------------------


async def test_a_run_gives_the_models_text_as_its_final_output() -> None:
    result = await Runner.run(scripted("Hello, you."), "Hello")
    assert result.final_output == "Hello, you."
    assert result.input == [UserMessage("Hello")]
    assert result.new_items == [AssistantMessage("Hello, you.")]
    assert result.to_input_list() == [UserMessage("Hello"), AssistantMessage("Hello, you.")]
    assert result.usage.requests == 1
    assert result.report is not None
    assert result.report.clean
    assert repr(result) == "<RunResult of 'assistant': 'Hello, you.'>"


async def test_the_results_of_tools_are_what_the_model_gets_next() -> None:
    agent = scripted(call("add", a=1, b=2), "It is 3.", tools=[add])
    result = await Runner.run(agent, "1 + 2?")
    assert result.final_output == "It is 3."
    first, second = requests_of(agent)
    assert first.items == [UserMessage("1 + 2?")]
    said, asked, answered = second.items
    assert (said, asked) == (UserMessage("1 + 2?"), ToolCall("call_1", "add", '{"a":1,"b":2}'))
    assert isinstance(answered, ToolResult)
    assert (answered.call_id, answered.output, answered.outcome) == ("call_1", "3", "finished")
    assert [spec.name for spec in first.tools] == ["add"]
    assert_valid(result.to_input_list())


async def test_a_run_goes_on_from_the_input_list_of_another() -> None:
    first = await Runner.run(scripted("Hi."), "Hello")
    agent = scripted("Fine.")
    second = await Runner.run(agent, [*first.to_input_list(), UserMessage("How are you?")])
    assert requests_of(agent)[0].items == [
        UserMessage("Hello"),
        AssistantMessage("Hi."),
        UserMessage("How are you?"),
    ]
    assert second.new_items == [AssistantMessage("Fine.")]


async def test_runs_do_not_change_the_lists_they_were_given() -> None:
    said: list[Item] = [UserMessage("Hello")]
    await Runner.run(scripted("Hi."), said)
    assert said == [UserMessage("Hello")]


async def test_usage_is_added_up_over_the_turns() -> None:
    agent = scripted(
        Answer(calls=[call("add", a=1, b=2)], usage=Usage(1, 10, 5)),
        Answer(["3"], usage=Usage(1, 20, 1, cached_input_tokens=10)),
        tools=[add],
    )
    result = await Runner.run(agent, "?")
    assert result.usage == Usage(2, 30, 6, cached_input_tokens=10)
    assert result.usage.total_tokens == 36
    assert [done.usage.input_tokens for done in result.responses] == [10, 20]


async def test_a_final_answer_without_text_is_the_empty_text_not_an_earlier_one() -> None:
    agent = scripted(["Let me see.", call("add", a=1, b=2)], Answer(), tools=[add])
    assert (await Runner.run(agent, "?")).final_output == ""


async def test_text_beside_tool_calls_stands_before_them() -> None:
    class Talkative(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            events = [event async for event in ScriptedModel.stream(self, request)]
            for event in sorted(events, key=lambda e: isinstance(e, ItemDone) and not _is_call(e.item)):
                yield event

    def _is_call(item: Item) -> bool:
        return isinstance(item, ToolCall)

    agent: Agent[Any] = Agent(
        name="a",
        model=Talkative([[call("add", a=1, b=1), "one moment", call("add", a=2, b=2)], "ok"]),
        tools=[add],
    )
    result = await Runner.run(agent, "?")
    assert [type(item).__name__ for item in result.new_items] == [
        "AssistantMessage",
        "ToolCall",
        "ToolCall",
        "ToolResult",
        "ToolResult",
        "AssistantMessage",
    ]
    assert_valid(result.to_input_list())


async def test_reasoning_is_kept_in_its_place() -> None:
    result = await Runner.run(scripted(Answer(["4"], reasoning="two and two")), "2 + 2?")
    assert result.new_items == [Reasoning("two and two"), AssistantMessage("4")]


# Instructions, settings, context ------------------------------------------------------------------------------


async def test_instructions_are_text_or_a_function_of_context_and_agent() -> None:
    async def for_you(context: RunContextWrapper[str], agent: Agent[Any]) -> str:
        return f"{agent.name} helps {context.context}"

    for instructions, expected in (
        (None, None),
        ("Be brief.", "Be brief."),
        (for_you, "assistant helps Ann"),
    ):
        agent = scripted("ok", instructions=instructions)
        await Runner.run(agent, "?", context="Ann")
        assert requests_of(agent)[0].instructions == expected


@pytest.mark.real_time
async def test_sync_instructions_run_in_a_thread() -> None:
    threads: list[int] = []

    def slow(context: object, agent: object) -> str:
        threads.append(threading.get_ident())
        return "Be brief."

    agent = scripted("ok", instructions=slow)
    await Runner.run(agent, "?")
    assert requests_of(agent)[0].instructions == "Be brief."
    assert threads[0] != threading.get_ident()


async def test_instructions_that_return_no_text_are_an_error_that_says_so() -> None:
    async def number(*_: object) -> int:
        return 3

    with pytest.raises(TypeError, match="instructions of agent 'assistant' returned int"):
        await Runner.run(scripted("ok", instructions=number), "?")


async def test_the_runs_model_and_settings_come_before_the_agents() -> None:
    agent = scripted("the agent's", model_settings=ModelSettings(temperature=0.5, top_p=0.9))
    other = ScriptedModel(["the run's"])
    config = RunConfig(model=other, model_settings=ModelSettings(temperature=0.0))
    assert (await Runner.run(agent, "?", run_config=config)).final_output == "the run's"
    assert (other.requests[0].settings.temperature, other.requests[0].settings.top_p) == (0.0, 0.9)
    assert requests_of(agent) == []


async def test_the_context_object_is_the_same_everywhere() -> None:
    @dataclasses.dataclass
    class Mine:
        seen: list[str]

    mine = Mine([])

    @function_tool
    async def look(context: RunContextWrapper[Mine]) -> str:
        context.context.seen.append("tool")
        return "looked"

    async def instructions(context: RunContextWrapper[Mine], agent: object) -> str:
        context.context.seen.append("instructions")
        return ""

    agent = scripted(call("look"), "ok", tools=[look], instructions=instructions)
    result = await Runner.run(agent, "?", context=mine)
    assert mine.seen == ["instructions", "tool", "instructions"]
    assert result.context_wrapper.context is mine


async def test_a_run_belongs_to_the_scope_it_is_awaited_in() -> None:
    seen: list[Any] = []

    async def instructions(*_: object) -> str:
        scope = current_scope()
        seen.append((scope.name, current_token().cancelled))
        return ""

    async with Scope("app"):
        await Runner.run(scripted("ok", instructions=instructions), "?")
    assert seen == [("run of assistant", False)]


# What is refused ----------------------------------------------------------------------------------------------


async def test_wrong_use_is_an_error_that_explains() -> None:
    agent = scripted("ok")
    with pytest.raises(TypeError, match="the first argument of a run is an Agent, not str"):
        await Runner.run("assistant", "?")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match="the input of a run must be a str, an item or a list of items, not int"
    ):
        await Runner.run(agent, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_turns must be a whole number from 1 on"):
        await Runner.run(agent, "?", max_turns=0)
    with pytest.raises(UserError, match="agent 'nobody' has no model"):
        await Runner.run(Agent(name="nobody"), "?")
    with pytest.raises(UserError, match="several tools named 'add'"):
        await Runner.run(scripted("ok", tools=[add, add]), "?")
    with pytest.raises(TypeError, match="the name of an agent must be a str"):
        Agent(name="")
    with pytest.raises(TypeError, match="must be a str or a function, not int"):
        Agent(name="a", instructions=3)  # type: ignore[arg-type]
    assert requests_of(agent) == []


async def test_a_model_that_goes_on_for_too_many_turns_is_stopped() -> None:
    agent = scripted(*[call("add", a=1, b=1)] * 3, "done", tools=[add])
    with pytest.raises(MaxTurnsExceeded, match="taken 3 turns") as caught:
        await Runner.run(agent, "?", max_turns=3)
    assert caught.value.run_data is not None
    assert_valid(caught.value.run_data.to_input_list())
    assert outcomes(caught.value.run_data.new_items) == ["finished"] * 3


async def test_max_turns_none_is_no_limit() -> None:
    agent = scripted(*[call("add", a=1, b=1)] * 15, "done", tools=[add])
    assert (await Runner.run(agent, "?", max_turns=None)).final_output == "done"


# Models that fail ---------------------------------------------------------------------------------------------


async def test_an_error_of_the_model_is_raised_as_itself() -> None:
    with pytest.raises(ScriptExhausted):
        await Runner.run(scripted(), "?")


async def test_a_refusal_is_an_error_and_its_text_is_kept() -> None:
    session = await session_with()
    with pytest.raises(ModelRefusalError, match=r"declines: I would rather not\."):
        await Runner.run(scripted(Answer(["I would rather not."], finish="refusal")), "?", session=session)
    assert (await session.get_items())[1:] == [AssistantMessage("I would rather not.")]


async def test_an_answer_that_is_cut_is_an_error_and_its_text_is_kept_as_partial() -> None:
    class Cut:
        name = "cut"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            yield TextDelta("to be or ")
            yield Tokens(Usage(1, 7, 2))

    session = await session_with()
    with pytest.raises(ModelBehaviorError, match="ended its answer without ResponseDone"):
        await Runner.run(Agent(name="a", model=Cut()), "?", session=session)
    assert (await session.get_items())[1:] == [AssistantMessage("to be or ", interrupted=True)]


@virtual_worlds
async def test_a_model_that_takes_longer_than_its_timeout_is_stopped_and_its_stream_closed() -> None:
    model = SlowModel("one two three", pause=2)
    agent: Agent[Any] = Agent(name="a", model=model, model_settings=ModelSettings(timeout=3))
    began = anyio.current_time()
    session = await session_with()
    with pytest.raises(ModelTimeoutError, match="longer than its timeout of 3 s"):
        await Runner.run(agent, "?", session=session)
    assert anyio.current_time() - began == pytest.approx(3.05)
    assert model.cut == 1
    assert (await session.get_items())[1:] == [AssistantMessage("one", interrupted=True)]


async def test_what_is_known_of_the_cost_of_a_cut_request_counts() -> None:
    parked = Parked()

    class Counting:
        name = "counting"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            yield Tokens(Usage(1, 100, 3))
            await parked.park()

    result = Runner.run_streamed(Agent(name="a", model=Counting()), "?")
    async with consumed(result):
        await parked.reached.wait()
    assert result.usage == Usage(1, 100, 3)


# Sessions -----------------------------------------------------------------------------------------------------


async def test_a_session_remembers_what_was_said_and_done() -> None:
    session = MemorySession("s")
    await Runner.run(scripted(call("add", a=1, b=2), "3", tools=[add]), "1 + 2?", session=session)
    agent = scripted("I said 3.")
    result = await Runner.run(agent, "What?", session=session)
    items = await session.get_items()
    assert [type(item).__name__ for item in items] == [
        "UserMessage",
        "ToolCall",
        "ToolResult",
        "AssistantMessage",
        "UserMessage",
        "AssistantMessage",
    ]
    assert requests_of(agent)[0].items == items[:-1]
    assert result.to_input_list() == items
    assert result.input == [UserMessage("What?")]


async def test_a_session_that_was_left_half_done_is_repaired_for_the_model_and_left_as_it_is() -> None:
    half_done: list[Item] = [UserMessage("first"), ToolCall("1", "work"), ToolCall("2", "work")]
    session = await session_with(*half_done)
    agent = scripted("ok", "ok again")
    result = await Runner.run(agent, "go on", session=session)
    assert_valid(requests_of(agent)[0].items)
    assert_valid(result.to_input_list())
    assert outcomes(requests_of(agent)[0].items) == ["interrupted", "interrupted"]
    assert await session.get_items() == [*half_done, UserMessage("go on"), AssistantMessage("ok")]
    await Runner.run(agent, "and on", session=session)
    first, second = requests_of(agent)
    assert second.items[: len(first.items)] == first.items  # the same each time: prompt caches hold
    assert_valid(second.items)


async def test_a_session_gets_calls_and_results_together() -> None:
    seen: list[int] = []

    class Watched(MemorySession):
        async def add_items(self, items: Iterable[Item]) -> None:
            given = list(items)
            await super().add_items(given)
            assert_valid(await self.get_items())
            seen.append(len(given))

    session = Watched("s")
    await Runner.run(scripted(call("add", a=1, b=2), "3", tools=[add]), "?", session=session)
    assert seen == [1, 2, 1]


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_cancel_during_a_write_neither_loses_nor_doubles_it(tmp_path: Any) -> None:
    async with SQLiteSession("s", tmp_path / "chat.db") as session:
        for number in range(12):
            before = await session.get_items()
            agent = scripted(call("add", f"call of {number}", a=1, b=2), "3", tools=[add])
            with anyio.move_on_after(0.0005 * number):
                await Runner.run(agent, f"turn {number}", session=session)
            items = await session.get_items()
            assert_valid(items)
            assert items[: len(before)] == before
            said = [item for item in items[len(before) :] if isinstance(item, UserMessage)]
            assert len(said) <= 1
            assert len([i for i in items[len(before) :] if isinstance(i, AssistantMessage)]) <= 1


@virtual_worlds
@pytest.mark.parametrize("nth", [1, 2, 3], ids=["input", "calls", "answer"])
@pytest.mark.parametrize("written", [True, False], ids=["written", "not-written"])
async def test_a_write_that_a_cancel_has_cut_is_made_exactly_once(nth: int, written: bool) -> None:
    class Slow(MemorySession):
        writes = 0

        async def add_items(self, items: Iterable[Item]) -> None:
            Slow.writes += 1
            if Slow.writes == nth and not written:
                await anyio.sleep(1)
            await super().add_items(items)
            if Slow.writes == nth and written:
                await anyio.sleep(1)

    session = Slow("s")
    await session.add_items([UserMessage("?"), AssistantMessage("What?")])
    Slow.writes = 0
    agent = scripted(call("add", a=1, b=2), "3", tools=[add])
    with anyio.move_on_after(0.5) as deadline:
        await Runner.run(agent, "?", session=session)
    assert deadline.cancelled_caught
    items = await session.get_items()
    assert_valid(items)
    assert len(items) == 2 + {1: 1, 2: 3, 3: 4}[nth]


async def test_a_write_that_fails_is_raised_and_tried_once_more_when_the_run_settles() -> None:
    class Flaky(MemorySession):
        attempts = 0

        async def add_items(self, items: Iterable[Item]) -> None:
            Flaky.attempts += 1
            if Flaky.attempts == 2:
                raise OSError("disk full")
            await super().add_items(items)

    session = Flaky("s")
    with pytest.raises(OSError, match="disk full"):
        await Runner.run(scripted("Hi."), "Hello", session=session)
    assert await session.get_items() == [UserMessage("Hello"), AssistantMessage("Hi.")]


# Cancelled ----------------------------------------------------------------------------------------------------


@asyncio_only
async def test_a_cancelled_run_is_drained_before_the_cancel_goes_on() -> None:
    model = SlowModel(pause=100)
    session = await session_with()
    task = asyncio.create_task(Runner.run(Agent(name="a", model=model), "?", session=session))
    await model.begun.wait()
    task.cancel("mine")
    with pytest.raises(asyncio.CancelledError, match="mine"):
        await task
    assert model.cut == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@asyncio_only
async def test_a_timeout_around_a_run_is_a_timeout() -> None:
    model = SlowModel(pause=100)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await Runner.run(Agent(name="a", model=model), "?")
    assert model.cut == 1
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@asyncio_only
async def test_a_cancel_that_comes_while_the_run_settles_after_an_error_is_not_lost() -> None:
    settling = anyio.Event()

    class Slow(MemorySession):
        async def add_items(self, items: Iterable[Item]) -> None:
            if any(isinstance(item, AssistantMessage) for item in items):
                settling.set()
                await asyncio.sleep(0.05)
            await super().add_items(items)

    class Cut:
        name = "cut"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            yield TextDelta("to be or ")

    session = Slow("s")
    task = asyncio.create_task(Runner.run(Agent(name="a", model=Cut()), "?", session=session))
    await settling.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await session.get_items()) == 2


@virtual_worlds
async def test_a_tool_that_ignores_its_cancel_is_named_in_bounded_time() -> None:
    from tests.kernel.temperaments import Stubborn

    stubborn = Stubborn()
    began = anyio.current_time()

    @function_tool
    async def stubborn_tool() -> str:
        await stubborn()
        return "at last"

    result = Runner.run_streamed(
        scripted(call("stubborn_tool"), tools=[stubborn_tool]),
        "?",
        run_config=RunConfig(grace=Grace(cancel=0.5, terminate=0.25, kill=0.25)),
    )
    async with Scope("app", grace=Grace(cancel=0.5, terminate=0.25, kill=0.25)) as scope:
        async with consumed(result):
            await anyio.sleep(1)
            report = await result.close()
        assert anyio.current_time() - began <= 4
        assert not report.clean
        assert any("stubborn_tool" in left.name for left in report.left), report
        assert_valid(result.to_input_list())
        stubborn.let_go()
    assert scope.report is not None
    assert scope.report.clean


@virtual_worlds
async def test_what_a_model_says_after_it_was_given_up_reaches_neither_the_result_nor_the_session() -> None:
    from tests.kernel.temperaments import Stubborn

    stubborn = Stubborn()
    work_done: list[str] = []

    class Late:
        name = "late"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            yield TextDelta("half ")
            await stubborn()
            yield ItemDone(AssistantMessage("half and whole"))
            yield ItemDone(ToolCall("1", "work"))
            yield ResponseDone(Usage(requests=1), "stop")

    @function_tool
    async def work() -> str:
        work_done.append("late")
        return "done"

    session = await session_with()
    short = Grace(cancel=0.5, terminate=0.25, kill=0.25)
    result = Runner.run_streamed(
        Agent(name="assistant", model=Late(), tools=[work]),
        "?",
        session=session,
        run_config=RunConfig(grace=short),
    )
    settled: list[Item] = []
    async with Scope("app", grace=short) as scope:
        async with consumed(result):
            await anyio.sleep(1)
            assert not (await result.close()).clean
        settled += result.to_input_list()
        assert settled[:2] == [UserMessage("?"), AssistantMessage("half ", interrupted=True)]
        assert await session.get_items() == settled
        stubborn.let_go()
        await anyio.sleep(1)
        assert stubborn.gone
    assert scope.report is not None
    assert scope.report.clean
    assert result.to_input_list() == settled
    assert await session.get_items() == settled
    assert work_done == []


# run_sync -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_run_sync_runs_an_event_loop_of_its_own(backend: Any) -> None:
    import sniffio

    seen: list[str] = []

    async def instructions(*_: object) -> str:
        seen.append(sniffio.current_async_library())
        return ""

    result = Runner.run_sync(scripted("ok", instructions=instructions), "?", backend=backend)
    assert result.final_output == "ok"
    assert seen == [backend]


async def test_run_sync_refuses_inside_a_running_event_loop() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)event loop|running"):
        Runner.run_sync(scripted("ok"), "?")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_run_sync_raises_what_the_run_raises(backend: Any) -> None:
    with pytest.raises(MaxTurnsExceeded):
        Runner.run_sync(
            scripted(*[call("add", a=1, b=1)] * 2, tools=[add]), "?", max_turns=1, backend=backend
        )


SYNC_PROGRAM = """
    import sys
    from quiesce.agents import Agent, Runner, function_tool
    from quiesce.testing import ScriptedModel, call

    @function_tool
    async def wait() -> str:
        ready()
        try:
            await sleep(100)
        finally:
            await tidy(0.1)
            print("tool is tidy,", current_token().reason, flush=True)
        return "never"

    agent = Agent(name="a", model=ScriptedModel([call("wait"), "done"]), tools=[wait])
    Runner.run_sync(agent, "?", backend=BACKEND)
    """


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_stops_run_sync_gracefully(backend: str) -> None:
    with program(backend, SYNC_PROGRAM.replace("BACKEND", repr(backend))) as running:
        running.send(signal.SIGINT)
        ended = running.wait()
    assert "tool is tidy, user: SIGINT" in ended.stdout
    assert ended.status == 130


@asyncio_only
async def test_many_runs_at_once_do_not_know_of_each_other() -> None:
    agent: Agent[Any] = Agent(name="a", model=SlowModel(pause=0.01))
    failing = scripted(RuntimeError("boom"))
    results = await asyncio.gather(
        *(Runner.run(agent, "?") for _ in range(20)),
        *(Runner.run(failing, "?") for _ in range(1)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, RuntimeError) for result in results) == 1
    assert len([result for result in results if not isinstance(result, BaseException)]) == 20
