"""Once a stop was asked for, nothing new starts: no model call, no tool call and no run, at any depth and on any rung of the ladder."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope, ScopeClosed, current_token, shielded
from quiesce.agents import Agent, Conversation, FunctionTool, RunConfig, Runner, function_tool
from quiesce.models import ModelRequest
from quiesce.testing import ScriptedModel, call
from tests.kernel.temperaments import cancellation

GRACE = Grace(cooperate=0.2, cancel=0.2, terminate=1.0, kill=1.0)


class Stage:
    """Agents one inside the other; the innermost has a tool that leaves on a given rung, as if it had not been stopped."""

    def __init__(self, depth: int, rung: str) -> None:
        self.rung = rung
        self.reached = anyio.Event()
        self.stopped = False
        self.late: list[str] = []
        tool = self.step()
        agent = self.agent(depth, tool, call("step"))
        for level in reversed(range(depth)):
            agent = self.agent(level, agent.as_tool("ask"), call("ask", input="go"))
        self.outermost = agent

    def agent(self, level: int, tool: FunctionTool, asks: Any) -> Agent[Any]:
        stage = self

        class Watched(ScriptedModel):
            def stream(self, request: ModelRequest) -> Any:
                if stage.stopped:
                    stage.late.append(f"model {level}")
                return super().stream(request)

        return Agent(name=f"agent {level}", model=Watched([asks, asks, "done"]), tools=[tool])

    def step(self) -> FunctionTool:
        @function_tool
        async def step() -> str:
            if self.stopped:
                self.late.append("tool")
            self.reached.set()
            with anyio.CancelScope(shield=True):
                await current_token().wait()  # on the way through `cooperate`
            if self.rung != "cooperate":
                await self._swallow_cancel()
            if self.rung == "terminate":
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.3)  # into the time after the second cancel
            return "done"

        return step

    async def _swallow_cancel(self) -> None:
        try:
            await anyio.sleep_forever()
        except cancellation():
            pass

    def ask_to_stop(self) -> None:
        self.stopped = True


ways = pytest.mark.parametrize("way", ["conversation", "scope"])


@ways
@pytest.mark.parametrize("rung", ["cooperate", "cancel", "terminate"])
@pytest.mark.parametrize("depth", range(4))
async def test_nothing_new_starts_after_a_stop_was_asked_for(depth: int, rung: str, way: str) -> None:
    stage = Stage(depth, rung)
    async with anyio.create_task_group() as group:
        if way == "conversation":
            conversation = Conversation(stage.outermost, run_config=RunConfig(grace=GRACE))
            conversation.send_message("go")
            group.start_soon(conversation.arun)
            await stage.reached.wait()
            stage.ask_to_stop()
            await conversation.interrupt()
        else:
            scope = await Scope.open(grace=GRACE)
            scope.spawn(Runner.run, stage.outermost, "go")
            await stage.reached.wait()
            stage.ask_to_stop()
            await scope.close()
    assert stage.late == []


async def test_calls_that_wait_for_their_turn_do_not_begin() -> None:
    begun: list[int] = []
    reached = anyio.Event()

    @function_tool
    async def step(number: int) -> str:
        begun.append(number)
        reached.set()
        with anyio.CancelScope(shield=True):
            await current_token().wait()
        return "done"

    model = ScriptedModel([[call("step", number=1), call("step", number=2)], "done"])
    config = RunConfig(grace=GRACE, max_tool_concurrency=1)
    conversation = Conversation(Agent(name="clerk", model=model, tools=[step]), run_config=config)
    conversation.send_message("go")
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.arun)
        await reached.wait()
        await conversation.interrupt()
    assert len(begun) == 1
    outcomes = [item.outcome for item in conversation.items if hasattr(item, "outcome")]
    assert sorted(outcomes) == ["finished", "not_started"]


@pytest.mark.parametrize("inside", ["plain", "scope", "shielded"])
async def test_a_run_is_refused_in_clean_up_unless_it_is_shielded(inside: str) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["done"]))
    said: list[object] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    if inside == "plain":
                        result: Any = await Runner.run(agent, "go")
                    elif inside == "scope":
                        async with Scope("tidy"):
                            result = await Runner.run(agent, "go")
                    else:
                        result = await shielded(Runner.run, agent, "go")
                    said.append(result.final_output)
                except (ScopeClosed, ExceptionGroup) as error:
                    said.append(repr(error))

    scope = await Scope.open("server")
    scope.spawn(child)
    await anyio.wait_all_tasks_blocked()
    await scope.close()
    if inside == "shielded":
        assert said == ["done"]
    else:
        assert "cannot start a run of 'clerk'" in str(said[0])
