"""Hooks: called in order, awaited where they are; `on_cancel` and `on_settled` when everything has been drained."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from quiesce import Reason, StopReport
from quiesce.agents import AgentHooks, FunctionTool, RunHooks, Runner, function_tool
from quiesce.testing import call
from tests.agents.scenes import (
    Parked,
    SlowModel,
    all_events,
    consumed,
    guarded_input,
    outcomes,
    scripted,
    session_with,
    trips,
)
from tests.kernel.temperaments import tidy_up, virtual_worlds
from tests.world import asyncio_only


@function_tool
async def add(a: int, b: int) -> int:
    return a + b


class Log(RunHooks[Any]):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.reasons: list[Reason] = []
        self.reports: list[StopReport] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.heard.append(f"{agent.name} starts")

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.heard.append(f"{agent.name} ends: {output}")

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        self.heard.append(f"asks with {len(input_items)}")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.heard.append(f"answered: {response.finish}")

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.heard.append(f"{tool.name} {context.tool_call_id} starts")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: str) -> None:
        self.heard.append(f"{tool.name} ends: {result}")

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        self.heard.append(f"{from_agent.name} to {to_agent.name}")

    async def on_cancel(self, context: Any, agent: Any, reason: Reason) -> None:
        self.heard.append(f"cancelled: {reason.kind}")
        self.reasons.append(reason)

    async def on_settled(self, context: Any, agent: Any, report: StopReport) -> None:
        self.heard.append("settled")
        self.reports.append(report)


class AgentLog(AgentHooks[Any]):
    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    async def on_start(self, context: Any, agent: Any) -> None:
        self.heard.append(f"({agent.name} starts)")

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        self.heard.append(f"({agent.name} ends)")

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        self.heard.append("(asks)")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.heard.append("(answered)")

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.heard.append(f"({tool.name} starts)")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: str) -> None:
        self.heard.append(f"({tool.name} ends)")

    async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
        self.heard.append(f"({source.name} to {agent.name})")


@pytest.mark.parametrize("streamed", [False, True])
async def test_hooks_hear_of_everything_in_order(streamed: bool) -> None:
    log = Log()
    other = scripted("done", name="other", hooks=AgentLog(log.heard))
    first = scripted(
        call("add", a=1, b=2), call("transfer_to_other"), name="first", tools=[add], handoffs=[other]
    )
    if streamed:
        await all_events(Runner.run_streamed(first, "?", hooks=log))
    else:
        await Runner.run(first, "?", hooks=log)
    assert log.heard == [
        "first starts",
        "asks with 1",
        "answered: tool_calls",
        "add call_1 starts",
        "add ends: 3",
        "asks with 3",
        "answered: tool_calls",
        "first to other",
        "(first to other)",
        "other starts",
        "(other starts)",
        "asks with 5",
        "(asks)",
        "answered: stop",
        "(answered)",
        "other ends: done",
        "(other ends)",
        "settled",
    ]
    assert log.reports[0].clean


async def test_an_agents_hooks_hear_of_its_own_tools() -> None:
    heard: list[str] = []
    agent = scripted(call("add", a=1, b=2), "done", tools=[add], hooks=AgentLog(heard))
    await Runner.run(agent, "?")
    assert heard == [
        "(assistant starts)",
        "(asks)",
        "(answered)",
        "(add starts)",
        "(add ends)",
        "(asks)",
        "(answered)",
        "(assistant ends)",
    ]


async def test_an_agent_that_waited_for_an_approval_does_not_start_twice() -> None:
    log = Log()
    tool = function_tool(add.function, name_override="add", needs_approval=True)  # type: ignore[arg-type]
    agent = scripted(call("add", a=1, b=2), "done", tools=[tool])
    state = (await Runner.run(agent, "?", hooks=log)).to_state()
    state.approve(state.interruptions[0])
    await Runner.run(agent, state)
    assert log.heard.count("assistant starts") == 1
    assert log.heard.count("settled") == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_hook_that_raises_ends_the_run_with_its_error(streamed: bool) -> None:
    failure = ZeroDivisionError("in the hook")

    class Raises(RunHooks[Any]):
        async def on_tool_start(self, *_: Any, **__: Any) -> None:
            raise failure

    session = await session_with()
    agent = scripted(call("add", a=1, b=2), tools=[add])
    with pytest.raises(ZeroDivisionError) as caught:
        if streamed:
            await all_events(Runner.run_streamed(agent, "?", hooks=Raises(), session=session))
        else:
            await Runner.run(agent, "?", hooks=Raises(), session=session)
    assert caught.value is failure
    assert outcomes(await session.get_items()) == ["not_started"]


# on_cancel and on_settled -------------------------------------------------------------------------------------


async def test_a_cancelled_run_is_told_when_everything_is_drained_and_complete() -> None:
    parked = Parked()
    seen: list[Any] = []
    session = await session_with()

    class Looks(Log):
        async def on_cancel(self, context: Any, agent: Any, reason: Reason) -> None:
            await super().on_cancel(context, agent, reason)
            seen.append((parked.begun, parked.tidied))
            seen.append([type(item).__name__ for item in await session.get_items()])

    log = Looks()
    tool = FunctionTool("slow", "", {"type": "object", "properties": {}}, parked.park)
    with anyio.move_on_after(1):
        await Runner.run(scripted(call("slow"), tools=[tool]), "?", hooks=log, session=session)
    assert log.heard[-2:] == ["cancelled: cancelled", "settled"] or log.heard[-2:] == [
        "cancelled: timeout",
        "settled",
    ]
    assert seen == [(1, 1), ["UserMessage", "ToolCall", "ToolResult"]]
    assert log.reports[0].clean


@asyncio_only
async def test_they_are_not_cut_by_further_cancels() -> None:
    parked = Parked()
    finished: list[str] = []

    class Slow(RunHooks[Any]):
        async def on_cancel(self, *_: Any, **__: Any) -> None:
            await asyncio.sleep(0.05)
            finished.append("on_cancel")

        async def on_settled(self, *_: Any, **__: Any) -> None:
            await asyncio.sleep(0.05)
            finished.append("on_settled")

    agent = scripted(parked.park)
    task = asyncio.create_task(Runner.run(agent, "?", hooks=Slow()))
    await parked.reached.wait()
    for _ in range(12):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    parked.assert_tidy()
    assert finished == ["on_cancel", "on_settled"]


async def test_a_stop_by_cancel_says_that_the_user_asked() -> None:
    log, parked = Log(), Parked()
    result = Runner.run_streamed(scripted(parked.park), "?", hooks=log)
    async with consumed(result) as ended:
        await parked.reached.wait()
        result.cancel()
        await ended.wait()
    assert [reason.kind for reason in log.reasons] == ["user"]
    assert log.heard[-1] == "settled"


async def test_an_error_is_no_cancel() -> None:
    log = Log()
    with pytest.raises(Exception, match="guard"):
        await Runner.run(scripted("hi", input_guardrails=[guarded_input(trips())]), "?", hooks=log)
    assert log.reasons == []
    assert log.heard[-1] == "settled"


async def test_what_they_raise_is_a_note_on_what_the_run_raises() -> None:
    class Raises(RunHooks[Any]):
        async def on_settled(self, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError("in on_settled")

    with pytest.raises(RuntimeError, match="boom") as caught:
        await Runner.run(scripted(RuntimeError("boom")), "?", hooks=Raises())
    assert "in on_settled" in "".join(caught.value.__notes__)
    with pytest.raises(ZeroDivisionError):
        await Runner.run(scripted("fine"), "?", hooks=Raises())


async def test_an_on_cancel_that_raises_does_not_keep_on_settled_from_being_called() -> None:
    parked = Parked()

    class Raises(Log):
        async def on_cancel(self, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError("in on_cancel")

    log = Raises()
    with anyio.move_on_after(1):
        await Runner.run(scripted(parked.park), "?", hooks=log)
    parked.assert_tidy()
    assert log.heard[-1] == "settled"


@virtual_worlds
async def test_an_on_settled_that_never_returns_is_bounded() -> None:
    class Hangs(RunHooks[Any]):
        async def on_settled(self, *_: Any, **__: Any) -> None:
            try:
                await anyio.sleep(3600)
            finally:
                await tidy_up(0.01)

    began = anyio.current_time()
    with pytest.raises(TimeoutError):
        await Runner.run(scripted("fine"), "?", hooks=Hangs())
    assert anyio.current_time() - began < 6


async def test_the_model_is_closed_before_on_settled() -> None:
    model = SlowModel(pause=100)
    closed: list[int] = []

    class Looks(RunHooks[Any]):
        async def on_settled(self, context: Any, agent: Any, report: Any) -> None:
            closed.append(model.closed)

    agent = scripted(name="a")
    agent.model = model
    with anyio.move_on_after(1):
        await Runner.run(agent, "?", hooks=Looks())
    assert closed == [1]
