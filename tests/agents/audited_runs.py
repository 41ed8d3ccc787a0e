"""Scenarios of runs and streamed runs, for the audit to stop at every point. `SCENARIOS` is all of them.

Beside what the ledger knows (every clean-up that began came to its end, every scope has settled), the history must be valid after each of
these runs: in the session, which is where a stopped run leaves it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import anyio

from quiesce import Scope, shielded
from quiesce.agents import (
    Agent,
    AgentToolStreamEvent,
    CallModelData,
    FunctionTool,
    FunctionToolResult,
    GuardrailFunctionOutput,
    HandoffInputData,
    InputGuardrailTripwireTriggered,
    ModelInputData,
    RunConfig,
    RunHooks,
    Runner,
    RunResultStreaming,
    ToolsToFinalOutputResult,
    handoff,
    input_guardrail,
    output_guardrail,
)
from quiesce.agents.extensions.handoff_filters import remove_all_tools
from quiesce.models import (
    AssistantMessage,
    Item,
    ItemDone,
    ModelEvent,
    ModelRequest,
    ResponseDone,
    TextDelta,
    ToolCall,
    Usage,
)
from tests.agents.scenes import assert_valid
from tests.kernel.audited import WORLDS, Audited, ledger, pause, tidy_up, work

SCENARIOS: list[Audited] = []
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


class Kept:
    """A session: what a run was told to keep, with a wait before each read and write."""

    session_id = "kept"

    def __init__(self) -> None:
        self.items: list[Item] = []

    async def get_items(self, limit: int | None = None) -> list[Item]:
        await pause(0.1)
        return list(self.items)

    async def add_items(self, items: list[Item]) -> None:
        await pause(0.1)
        self.items += items

    async def pop_item(self) -> Item | None:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


kept = Kept()


def start() -> None:
    """A new run of a scenario."""
    ledger.start()
    kept.items.clear()


def check() -> None:
    """After it: nothing is half done, and the history is one that every provider takes."""
    ledger.check()
    assert_valid(kept.items)


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    """Take it into the list."""
    word = "run_streamed" if function.__name__.startswith("streamed") else "run"
    SCENARIOS.append(Audited(word, function, WORLDS, {}, {}, False, {"check": check}))
    return function


class Slow:
    """A model that gives its turns piece by piece, and has to tidy up when it is stopped.

    It does so as every `Model` must: a cancel that comes meanwhile does not cut it.
    """

    name = "slow"

    def __init__(self, *turns: str | list[ToolCall | AssistantMessage]) -> None:
        self._turns = turns
        self._asked = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        turn = self._turns[self._asked]
        self._asked += 1
        try:
            await pause(0.3)
            if isinstance(turn, str):
                for piece in turn.split(" "):
                    yield TextDelta(piece)
                    await pause(0.1)
                yield ItemDone(AssistantMessage(turn.replace(" ", "")))
            else:
                for item in turn:
                    yield ItemDone(item)
                    await pause(0.1)
            yield ResponseDone(Usage(requests=1))
        except (GeneratorExit, anyio.get_cancelled_exc_class()):
            await shielded(tidy_up)
            raise


def tool(name: str, seconds: float = 0.5, **options: Any) -> FunctionTool:
    """A tool that takes a while, and has to tidy up when it is stopped."""

    async def invoke(*_: object) -> str:
        await work(seconds)
        return "done"

    return FunctionTool(name, "", NO_ARGUMENTS, invoke, **options)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"{name}-{number}", name) for number, name in enumerate(names)]


def guard(seconds: float, *, trips: bool = False) -> Callable[..., Any]:
    async def looks(*_: object) -> GuardrailFunctionOutput:
        await work(seconds)
        return GuardrailFunctionOutput(None, trips)

    return looks


def agent(*turns: Any, name: str = "assistant", **options: Any) -> Agent[Any]:
    return Agent(name=name, model=Slow(*turns), **options)


class Slowly(RunHooks[Any]):
    """Hooks that take a while, too."""

    async def on_llm_start(self, *_: Any, **__: Any) -> None:
        await pause(0.1)

    async def on_tool_end(self, *_: Any, **__: Any) -> None:
        await pause(0.1)

    async def on_settled(self, *_: Any, **__: Any) -> None:
        with ledger.entry("on_settled", but_by_others=True):
            await pause(0.1)


# Runs ---------------------------------------------------------------------------------------------------------


@scenario
async def run_of_text() -> None:
    start()
    result = await Runner.run(agent("to be"), "?", session=kept)
    ledger.expect(result.final_output == "tobe", "the text is wrong")


@scenario
async def run_with_guardrails() -> None:
    start()
    guarded = agent(
        "to be",
        input_guardrails=[
            input_guardrail(run_in_parallel=False)(guard(0.2)),
            input_guardrail(guard(0.4)),
            input_guardrail(guard(2)),
        ],
        output_guardrails=[output_guardrail(guard(0.2))],
    )
    await Runner.run(guarded, "?", session=kept)


@scenario
async def run_whose_guardrail_trips() -> None:
    start()
    guarded = agent("to be or not", input_guardrails=[input_guardrail(guard(0.5, trips=True))])
    with suppress(InputGuardrailTripwireTriggered):
        await Runner.run(guarded, "?", session=kept)


@scenario
async def run_whose_text_waits_for_its_guardrail() -> None:
    start()
    guarded = agent(
        *([AssistantMessage("well"), *calls("one")], "to be"),
        tools=[tool("one", 0.2)],
        output_guardrails=[output_guardrail(guard(0.2))],
    )
    await Runner.run(guarded, "?", session=kept)


@scenario
async def run_with_tools_in_parallel() -> None:
    start()
    busy = agent(calls("one", "two", "three"), "ok", tools=[tool("one"), tool("two", 1), tool("three", 0.2)])
    result = await Runner.run(busy, "?", session=kept, hooks=Slowly())
    ledger.expect(result.final_output == "ok", "the text is wrong")


@scenario
async def run_whose_tool_fails() -> None:
    start()

    async def fails(*_: object) -> str:
        await pause(0.5)
        raise LookupError("no such page")

    failing = FunctionTool("fails", "", NO_ARGUMENTS, fails, failure_error_function=None)
    with suppress(LookupError):
        await Runner.run(agent(calls("one", "fails"), tools=[tool("one", 3), failing]), "?", session=kept)


@scenario
async def run_whose_tool_is_over_its_time() -> None:
    start()
    await Runner.run(agent(calls("one"), "ok", tools=[tool("one", 3, timeout=0.5)]), "?", session=kept)


@scenario
async def run_with_a_handoff() -> None:
    start()

    async def noted(context: object) -> None:
        await pause(0.1)

    other = agent("ok", name="other")
    first = agent(calls("transfer_to_other"), handoffs=[handoff(other, on_handoff=noted)])
    await Runner.run(first, "?", session=kept)


@scenario
async def run_with_a_handoff_that_is_looked_at() -> None:
    start()

    async def may(*_: object) -> bool:
        await pause(0.1)
        return True

    async def noted(context: object, given: list[int]) -> None:
        await work(0.1)

    async def shortened(data: HandoffInputData) -> HandoffInputData:
        await work(0.1)
        return remove_all_tools(data)

    other = agent("ok", name="other")
    to_other = handoff(other, on_handoff=noted, input_type=list[int], input_filter=shortened, is_enabled=may)
    asked = [*calls("one"), ToolCall("1", "transfer_to_other", '{"response": [1]}')]

    async def unchanged(data: CallModelData) -> ModelInputData:
        await work(0.1)
        return data.model_data

    config = RunConfig(workflow_name="audited", call_model_input_filter=unchanged)
    first = agent(asked, tools=[tool("one", 0.2)], handoffs=[to_other])
    result = await Runner.run(first, "?", session=kept, run_config=config)
    ledger.expect(result.final_output == "ok", "the text is wrong")


@scenario
async def run_whose_tools_decide_that_it_ends() -> None:
    start()

    async def decides(context: object, results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
        await work(0.2)
        return ToolsToFinalOutputResult(len(results) == 2, "enough")

    busy = agent(
        *(calls("one"), [ToolCall("a", "one"), ToolCall("b", "two")]),
        tools=[tool("one", 0.2), tool("two", 0.4)],
        tool_use_behavior=decides,
        output_guardrails=[output_guardrail(guard(0.2))],
    )
    result = await Runner.run(busy, "?", session=kept)
    ledger.expect(result.final_output == "enough", "the output is wrong")


@scenario
async def run_with_an_agent_as_a_tool_that_is_heard() -> None:
    start()

    async def hear(told: AgentToolStreamEvent) -> None:
        await work(0.1)

    inner = agent(calls("one"), "ok", name="inner", tools=[tool("one", 0.2)])
    asked = [ToolCall("1", "inner", '{"input": "x"}')]
    await Runner.run(agent(asked, "ok", tools=[inner.as_tool(on_stream=hear)]), "?", session=kept)


@scenario
async def run_with_an_agent_as_a_tool() -> None:
    start()
    inner = agent(calls("one"), "ok", name="inner", tools=[tool("one")])
    asked = [ToolCall("1", "inner", '{"input": "x"}')]
    await Runner.run(agent(asked, "ok", tools=[inner.as_tool()]), "?", session=kept)


# Streamed runs ------------------------------------------------------------------------------------------------


def streamed() -> RunResultStreaming:
    # Not more than this: a streamed run has about twice the points of a plain one, and each two of them are tried.
    busy = agent(calls("one"), "ok", tools=[tool("one")], input_guardrails=[input_guardrail(guard(0.5))])
    return Runner.run_streamed(busy, "?", session=kept)


@scenario
async def streamed_to_its_end() -> None:
    start()
    async with streamed() as result:
        async for _ in result.stream_events():
            pass
    ledger.expect(result.final_output == "ok", "the text is wrong")


@scenario
async def streamed_and_read_one_by_one() -> None:
    start()
    result = streamed()
    try:
        for _ in range(3):
            await anext(result.stream_events())
    finally:
        ledger.report(await result.close())


@scenario
async def streamed_and_left_early() -> None:
    start()
    async with streamed() as result:
        async for event in result.stream_events():
            if event.type == "run_item_stream_event" and event.name == "tool_output":
                break
    ledger.expect(result.final_output is None, "it has a final output")


@scenario
async def streamed_left_by_a_bare_break_and_closed() -> None:
    start()
    result = streamed()
    try:
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                break
    finally:
        ledger.report(await result.close())


@scenario
async def streamed_and_cancelled() -> None:
    start()
    result = streamed()

    async def stop() -> None:
        await pause(1)
        result.cancel()
        await pause(0.1)
        result.cancel()

    async with ledger.scope(Scope("around it")) as scope:
        scope.spawn(stop)
        async with result:
            async for _ in result.stream_events():
                pass


@scenario
async def streamed_and_closed_by_another_task() -> None:
    start()
    result = streamed()

    async def consume() -> None:
        async for _ in result.stream_events():
            pass

    async with ledger.scope(Scope("consumer")) as scope, result:
        scope.spawn(consume)
        await pause(1)
        ledger.report(await shielded(result.close))
