"""Every place where a run waits for somebody else's code: `POINTS`, each an agent and options that make a run park there.

Each gives what `Runner.run` takes. Which of them keep what they are doing through a stop, and which a stop does not reach, is said
with each.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from quiesce.agents import (
    Agent,
    AgentHooks,
    FunctionTool,
    MemorySession,
    RunConfig,
    RunHooks,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from quiesce.models import Item, ModelEvent, ModelRequest, TextDelta, Tokens, Usage
from quiesce.testing import call
from tests.agents.scenes import Parked, scripted

Options = dict[str, Any]
Point = Callable[[Parked], tuple[Agent[Any], Options]]
POINTS: dict[str, Point] = {}

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


def point(build: Point) -> Point:
    """Take it into the list."""
    POINTS[build.__name__] = build
    return build


def parking_tool(parked: Parked, name: str = "work", **options: Any) -> FunctionTool:
    """An async tool that parks."""
    return FunctionTool(name, "", NO_ARGUMENTS, parked.park, **options)


def plain_tool(name: str = "work", **options: Any) -> FunctionTool:
    """A tool that returns at once."""

    async def answer(*_: object) -> str:
        return "done"

    return FunctionTool(name, "", NO_ARGUMENTS, answer, **options)


class ParkingSession(MemorySession):
    """Parks where it is read, or in one of its writes, before it has written."""

    def __init__(self, parked: Parked, *, at_read: bool = False, at_write: int = 0) -> None:
        super().__init__("parking")
        self._parked = parked
        self._at_read = at_read
        self._at_write = at_write
        self._writes = 0
        self.armed = True

    async def get_items(self, limit: int | None = None) -> list[Item]:
        if self._at_read and self.armed:
            self.armed = False
            await self._parked.park()
        return await super().get_items(limit)

    async def add_items(self, items: Iterable[Item]) -> None:
        self._writes += 1
        if self._writes == self._at_write:
            await self._parked.park()
        await super().add_items(items)


# Before the model is asked ------------------------------------------------------------------------------------


@point
def instructions(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted("hi", instructions=_async(parked)), {}


@point
def session_read(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted("hi"), {"session": ParkingSession(parked, at_read=True)}


@point
def session_write_of_the_input(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted("hi"), {"session": ParkingSession(parked, at_write=1)}


@point
def input_guardrail_before(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted("hi", input_guardrails=[input_guardrail(run_in_parallel=False)(parked.park)]), {}


@point
def is_enabled(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted("hi", tools=[plain_tool(is_enabled=_async(parked))]), {}


# The model ----------------------------------------------------------------------------------------------------


@point
def input_guardrail_beside(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(
        [call("work"), "hi"], tools=[plain_tool()], input_guardrails=[input_guardrail(parked.park)]
    ), {}


@point
def input_guardrail_beside_a_model(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(parked.park, input_guardrails=[input_guardrail(parked.park)]), {}


@point
def model_that_is_silent(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(parked.park), {}


@point
def model_that_talks(parked: Parked) -> tuple[Agent[Any], Options]:
    class Talking:
        name = "talking"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            yield TextDelta("to be or ")
            yield Tokens(Usage(requests=1, input_tokens=10))
            await parked.park()

    return Agent(name="assistant", model=Talking()), {}


@point
def model_that_has_called_a_tool(parked: Parked) -> tuple[Agent[Any], Options]:
    class Calling:
        name = "calling"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            from quiesce.models import ItemDone, ToolCall

            yield ItemDone(ToolCall("1", "work"))
            yield TextDelta("and then ")
            await parked.park()

    return Agent(name="assistant", model=Calling(), tools=[plain_tool()]), {}


@point
def session_write_of_an_answer(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted("hi"), {"session": ParkingSession(parked, at_write=2)}


# Tools --------------------------------------------------------------------------------------------------------


@point
def async_tool(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(call("work"), tools=[parking_tool(parked)]), {}


@point
def async_tool_with_a_sibling(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(
        [call("work"), call("other"), call("work")], tools=[parking_tool(parked), plain_tool("other")]
    ), {}


@point
def async_tool_with_a_timeout(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(call("work"), tools=[parking_tool(parked, timeout=100)]), {}


@point
def tool_input_guardrail_(parked: Parked) -> tuple[Agent[Any], Options]:
    guardrail = tool_input_guardrail(parked.park)
    return scripted(
        [call("work"), call("other")],
        tools=[plain_tool("other"), plain_tool(tool_input_guardrails=[guardrail])],
    ), {}


@point
def tool_output_guardrail_(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(
        call("work"), tools=[plain_tool(tool_output_guardrails=[tool_output_guardrail(parked.park)])]
    ), {}


@point
def failure_error_function(parked: Parked) -> tuple[Agent[Any], Options]:
    @function_tool(failure_error_function=_async(parked))
    async def fails() -> str:
        raise ValueError

    return scripted(call("fails"), tools=[fails]), {}


@point
def needs_approval(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(
        [call("other"), call("work")], tools=[plain_tool("other"), plain_tool(needs_approval=_async(parked))]
    ), {}


@point
def approval_callback(parked: Parked) -> tuple[Agent[Any], Options]:
    config = RunConfig(approve=_async(parked))
    return scripted(call("work"), tools=[plain_tool(needs_approval=True)]), {"run_config": config}


@point
def agent_as_tool_in_its_model(parked: Parked) -> tuple[Agent[Any], Options]:
    inner = scripted(parked.park, name="inner")
    return scripted(call("inner", input="x"), tools=[inner.as_tool()]), {}


@point
def agent_as_tool_in_its_tool(parked: Parked) -> tuple[Agent[Any], Options]:
    inner = scripted(call("work"), name="inner", tools=[parking_tool(parked)])
    return scripted(
        [call("inner", input="x"), call("other")], tools=[inner.as_tool(), plain_tool("other")]
    ), {}


@point
def output_extractor(parked: Parked) -> tuple[Agent[Any], Options]:
    inner = scripted("hi", name="inner")
    return scripted(
        call("inner", input="x"), tools=[inner.as_tool(custom_output_extractor=_async(parked))]
    ), {}


@point
def session_write_of_calls(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(call("work"), "hi", tools=[plain_tool()]), {"session": ParkingSession(parked, at_write=2)}


@point
def on_handoff_function(parked: Parked) -> tuple[Agent[Any], Options]:
    other = scripted("hi", name="other")
    return scripted(call("transfer_to_other"), handoffs=[handoff(other, on_handoff=_async(parked))]), {}


@point
def handoff_input_filter(parked: Parked) -> tuple[Agent[Any], Options]:
    other = scripted("hi", name="other")
    return scripted(call("transfer_to_other"), handoffs=[handoff(other, input_filter=_async(parked))]), {}


@point
def handoff_is_enabled(parked: Parked) -> tuple[Agent[Any], Options]:
    other = scripted("hi", name="other")
    return scripted("hi", handoffs=[handoff(other, is_enabled=_async(parked))]), {}


@point
def call_model_input_filter(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted("hi"), {"run_config": RunConfig(call_model_input_filter=_async(parked))}


@point
def tool_use_behavior(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(call("work"), tools=[plain_tool()], tool_use_behavior=_async(parked)), {}


@point
def tool_use_behavior_before_an_output_guardrail(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(
        call("work"),
        tools=[plain_tool()],
        tool_use_behavior=_async(parked),
        output_guardrails=[output_guardrail(parked.park)],
    ), {}


@point
def agent_as_a_tool_that_is_heard(parked: Parked) -> tuple[Agent[Any], Options]:
    inner = scripted("hi", name="inner").as_tool(on_stream=_async(parked))
    return scripted(call("inner", input="?"), tools=[inner]), {}


# The end ------------------------------------------------------------------------------------------------------


@point
def output_guardrail_(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted("hi", output_guardrails=[output_guardrail(parked.park)]), {}


@point
def output_guardrail_after_a_tool(parked: Parked) -> tuple[Agent[Any], Options]:
    return scripted(
        call("work"), "hi", tools=[plain_tool()], output_guardrails=[output_guardrail(parked.park)]
    ), {}


# Hooks --------------------------------------------------------------------------------------------------------

RUN_HOOKS = (
    "on_agent_start",
    "on_agent_end",
    "on_llm_start",
    "on_llm_end",
    "on_tool_start",
    "on_tool_end",
    "on_handoff",
)
AGENT_HOOKS = (
    "on_start",
    "on_end",
    "on_llm_start",
    "on_llm_end",
    "on_tool_start",
    "on_tool_end",
    "on_handoff",
)


def _hooked(base: type[Any], hook: str, parked: Parked) -> Any:
    return type("Parking", (base,), {hook: lambda self, *_: parked.park()})()


def _script(hook: str, **options: Any) -> Agent[Any]:
    if hook == "on_handoff":
        other = scripted("hi", name="other", hooks=options.pop("hooks", None))
        return scripted(call("transfer_to_other"), handoffs=[other])
    if "tool" in hook:
        return scripted(
            [call("work"), call("other")], "hi", tools=[plain_tool(), plain_tool("other")], **options
        )
    return scripted("hi", **options)


def _run_hook(hook: str) -> Point:
    return lambda parked: (_script(hook), {"hooks": _hooked(RunHooks, hook, parked)})


def _agent_hook(hook: str) -> Point:
    return lambda parked: (_script(hook, hooks=_hooked(AgentHooks, hook, parked)), {})


POINTS.update({f"run_hook_{hook}": _run_hook(hook) for hook in RUN_HOOKS})
POINTS.update({f"agent_hook_{hook}": _agent_hook(hook) for hook in AGENT_HOOKS})


def _async(parked: Parked) -> Any:
    """What parks, as a plain async function of anything."""

    async def parks(*_: object) -> Any:
        return await parked.park()

    return parks
