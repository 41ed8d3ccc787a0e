"""A model that answers from a script, as tests of agents use it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce.agents import Agent, Runner, function_tool
from quiesce.models import (
    AssistantMessage,
    ItemDone,
    Model,
    ModelEvent,
    ModelRequest,
    Reasoning,
    ResponseDone,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from quiesce.testing import Answer, ScriptedModel, ScriptExhausted, Turn, call

ASKED = ModelRequest([UserMessage("hello")])


async def answer(model: ScriptedModel, request: ModelRequest = ASKED) -> list[ModelEvent]:
    return [event async for event in model.stream(request)]


async def answers(*turns: Turn) -> list[ModelEvent]:
    return await answer(ScriptedModel(turns))


def asked_for(*calls: ToolCall) -> list[ModelEvent]:
    return [*map(ItemDone, calls), ResponseDone(Usage(requests=1), "tool_calls")]


def test_it_is_a_model() -> None:
    assert isinstance(ScriptedModel(), Model)
    assert ScriptedModel().name == "scripted"
    assert ScriptedModel(name="critic").name == "critic"


async def test_a_text_is_streamed_and_then_complete() -> None:
    assert await answers("It rains.") == [
        TextDelta("It rains."),
        ItemDone(AssistantMessage("It rains.")),
        ResponseDone(Usage(requests=1), "stop"),
    ]


async def test_a_single_text_is_a_script_of_one_turn() -> None:
    model = ScriptedModel("It rains.")
    assert model.remaining == 1
    assert ItemDone(AssistantMessage("It rains.")) in await answer(model)
    assert model.remaining == 0


async def test_a_call_is_numbered_and_its_arguments_are_json() -> None:
    model = ScriptedModel([call("add", a=1, b=[2, "x"]), call("add"), call("add", "mine", call_id=1)])
    assert await answer(model) == asked_for(ToolCall("call_1", "add", '{"a":1,"b":[2,"x"]}'))
    assert await answer(model) == asked_for(ToolCall("call_2", "add", "{}"))
    assert await answer(model) == asked_for(ToolCall("mine", "add", '{"call_id":1}'))


@pytest.mark.parametrize("kind", [list, tuple])
async def test_a_turn_can_be_text_and_several_calls(kind: type[list[Any] | tuple[Any, ...]]) -> None:
    turn: Any = kind(["I look ", "twice.", call("read", path="a"), call("read", path="b")])
    assert await answers(turn) == [
        TextDelta("I look "),
        TextDelta("twice."),
        ItemDone(AssistantMessage("I look twice.")),
        *asked_for(ToolCall("call_1", "read", '{"path":"a"}'), ToolCall("call_2", "read", '{"path":"b"}')),
    ]


async def test_an_answer_in_full_says_what_it_thought_what_it_cost_and_how_it_ended() -> None:
    spent = Usage(requests=1, input_tokens=10, output_tokens=2)
    assert await answers(Answer(["It r"], usage=spent, reasoning="Hm.", finish="length")) == [
        ItemDone(Reasoning("Hm.")),
        TextDelta("It r"),
        ItemDone(AssistantMessage("It r")),
        ResponseDone(spent, "length"),
    ]


async def test_an_exception_is_raised_and_the_script_goes_on() -> None:
    lost = ConnectionError("the wire is cut")
    model = ScriptedModel([lost, "It rains."])
    with pytest.raises(ConnectionError) as caught:
        await answer(model)
    assert caught.value is lost
    assert ItemDone(AssistantMessage("It rains.")) in await answer(model)


@pytest.mark.worlds("asyncio", "asyncio-eager", "trio")  # uvloop has no virtual time
async def test_a_function_of_the_request_writes_the_turn() -> None:
    async def echo(request: ModelRequest) -> Turn:
        await anyio.sleep(30)
        said = request.items[-1]
        assert isinstance(said, UserMessage)
        return f"You said {said.content}."

    before = anyio.current_time()
    assert (await answers(echo))[0] == TextDelta("You said hello.")
    assert anyio.current_time() - before == pytest.approx(30)


async def test_what_a_function_returns_may_be_any_turn_again() -> None:
    async def fails(request: ModelRequest) -> Turn:
        return TimeoutError("too slow")

    async def calls(request: ModelRequest) -> Turn:
        return call("add", a=1)

    async def passes_on(request: ModelRequest) -> Turn:
        return calls

    model = ScriptedModel([fails, passes_on])
    with pytest.raises(TimeoutError, match="too slow"):
        await answer(model)
    assert await answer(model) == asked_for(ToolCall("call_1", "add", '{"a":1}'))


async def test_it_remembers_what_it_was_asked() -> None:
    model = ScriptedModel(["one", "two"])
    second = ModelRequest([UserMessage("again")], instructions="Be brief.")
    await answer(model)
    await answer(model, second)
    assert model.requests == [ASKED, second]
    assert model.remaining == 0


async def test_nothing_happens_before_the_first_event_is_asked_for() -> None:
    model = ScriptedModel(["one"])
    stream = model.stream(ASKED)
    assert model.requests == []
    assert model.remaining == 1
    await stream.aclose()
    assert model.requests == []


async def test_a_script_that_is_too_short_says_so() -> None:
    model = ScriptedModel(["one"], name="critic")
    await answer(model)
    with pytest.raises(ScriptExhausted, match="'critic' got 2 requests, but its script has 1 turn"):
        await answer(model)


async def test_a_script_may_be_any_iterable_and_is_read_once() -> None:
    model = ScriptedModel(f"answer {number}" for number in range(2))
    assert (await answer(model))[0] == TextDelta("answer 0")
    assert (await answer(model))[0] == TextDelta("answer 1")


async def test_one_model_serves_runs_at_the_same_time_each_its_turn() -> None:
    async def slow(request: ModelRequest) -> Turn:
        await anyio.sleep(0.01)
        return call("add")

    model = ScriptedModel([slow, call("add"), "done"])
    given: list[list[ModelEvent]] = []

    async def ask() -> None:
        given.append(await answer(model))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
    assert len(given) == 3
    assert sum(isinstance(event, TextDelta) for events in given for event in events) == 1
    ids = [
        event.item.call_id
        for events in given
        for event in events
        if isinstance(event, ItemDone) and isinstance(event.item, ToolCall)
    ]
    assert sorted(ids) == ["call_1", "call_2"]


async def test_a_run_with_it_needs_nothing_else() -> None:
    @function_tool
    async def add(a: int, b: int) -> int:
        return a + b

    model = ScriptedModel([call("add", a=1, b=2), "It is 3."])
    result = await Runner.run(Agent(name="calculator", model=model, tools=[add]), "1 + 2?")
    assert result.final_output == "It is 3."
    told = model.requests[1].items[-1]
    assert isinstance(told, ToolResult)
    assert (told.call_id, told.output, told.outcome) == ("call_1", "3", "finished")


async def test_a_turn_that_never_comes_is_cancelled_like_any_model_call() -> None:
    cleaned_up = []

    async def silent(request: ModelRequest) -> Turn:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned_up.append(True)
        raise AssertionError("it slept for ever")

    with anyio.move_on_after(1):
        await Runner.run(Agent(name="silent", model=ScriptedModel([silent])), "hello?")
    assert cleaned_up == [True]
