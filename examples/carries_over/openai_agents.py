"""One program for two libraries: OpenAI's Agents SDK and quiesce.agents, by changing the import.

    python examples/carries_over/openai_agents.py quiesce.agents
    python examples/carries_over/openai_agents.py agents            # where openai-agents is installed

Each function below is written as users of that SDK write it. Both libraries print the same lines. Only the
scripted model is each library's own.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

LIBRARY = sys.argv[1] if len(sys.argv) > 1 else "quiesce.agents"
sdk: Any = importlib.import_module(LIBRARY)

Agent, Runner, RunConfig, RunHooks = sdk.Agent, sdk.Runner, sdk.RunConfig, sdk.RunHooks
RunContextWrapper, GuardrailFunctionOutput = sdk.RunContextWrapper, sdk.GuardrailFunctionOutput
Decorator = Callable[..., Callable[..., Any]]
function_tool: Decorator = sdk.function_tool
handoff: Decorator = sdk.handoff
input_guardrail: Decorator = sdk.input_guardrail
output_guardrail: Decorator = sdk.output_guardrail


def scripted(*turns: Any) -> Any:
    """Each library's own scripted model; a turn is text, or a tool's name with its arguments."""
    if LIBRARY == "quiesce.agents":
        from quiesce.testing import ScriptedModel, call

        return ScriptedModel([turn if isinstance(turn, str) else call(turn[0], **turn[1]) for turn in turns])
    testing: Any = importlib.import_module("agents.testing")
    return testing.ScriptedModel(
        [
            [
                testing.assistant_message(turn)
                if isinstance(turn, str)
                else testing.function_call(turn[0], turn[1], call_id=f"call_{number}")
            ]
            for number, turn in enumerate(turns)
        ]
    )


class Point(BaseModel):
    x: int
    y: int


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def a_text_turn() -> None:
    result = await Runner.run(
        Agent(name="assistant", instructions="Be brief.", model=scripted("Hello!")), "Hi"
    )
    print("final_output:", result.final_output)
    print("last_agent:", result.last_agent.name)


async def instructions_as_a_function() -> None:
    async def instructions(context: Any, agent: Any) -> str:
        print("instructions for", context.context["user"], "by", agent.name)
        return "Be brief."

    agent = Agent(name="assistant", instructions=instructions, model=scripted("Hello!"))
    await Runner.run(agent, "Hi", context={"user": "Ada"})


async def a_tool_and_its_context() -> None:
    @function_tool
    def whoami(context: RunContextWrapper[dict[str, str]]) -> str:  # type: ignore[valid-type]
        """Who am I?"""
        return context.context["user"]  # type: ignore[attr-defined, no-any-return]

    agent = Agent(
        name="assistant", tools=[add, whoami], model=scripted(("whoami", {}), ("add", {"a": 1, "b": 2}), "3")
    )
    result = await Runner.run(agent, "Hi", context={"user": "Ada"})
    print("after tools:", result.final_output)
    print("new items:", len(result.new_items))


async def a_tripwire_at_the_input() -> None:
    @input_guardrail
    async def on_topic(context: Any, agent: Any, said: Any) -> Any:
        return GuardrailFunctionOutput(output_info={"said": said}, tripwire_triggered=True)

    agent = Agent(name="assistant", input_guardrails=[on_topic], model=scripted("Hello!"))
    try:
        await Runner.run(agent, "a joke")
    except sdk.InputGuardrailTripwireTriggered as tripwire:
        print("input tripwire:", tripwire.guardrail_result.output.output_info)


async def a_tripwire_at_the_output() -> None:
    @output_guardrail
    async def polite(context: Any, agent: Any, output: Any) -> Any:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered="damn" in output)

    agent = Agent(name="assistant", output_guardrails=[polite], model=scripted("damn"))
    try:
        await Runner.run(agent, "Hi")
    except sdk.OutputGuardrailTripwireTriggered as tripwire:
        print("output tripwire:", tripwire.guardrail_result.guardrail.get_name())


async def a_handoff() -> None:
    spanish = Agent(name="spanish", model=scripted("Hola!"))
    triage = Agent(name="triage", handoffs=[handoff(spanish)], model=scripted(("transfer_to_spanish", {})))
    result = await Runner.run(triage, "Hola")
    print("handed over to:", result.last_agent.name, "who says", result.final_output)


async def an_agent_as_a_tool() -> None:
    inner = Agent(name="translator", model=scripted("Bonjour!"))
    tool = inner.as_tool(tool_name="translate", tool_description="Translate.")
    outer = Agent(name="outer", tools=[tool], model=scripted(("translate", {"input": "Hello"}), "done"))
    print("as a tool:", (await Runner.run(outer, "Hi")).final_output)


async def a_streamed_run() -> None:
    agent = Agent(name="assistant", tools=[add], model=scripted(("add", {"a": 1, "b": 2}), "3"))
    result = Runner.run_streamed(agent, "1 + 2")
    async for event in result.stream_events():
        if event.type == "agent_updated_stream_event":
            print("agent:", event.new_agent.name)
        elif event.type == "run_item_stream_event":
            print("item:", event.name)
    print("streamed:", result.final_output, result.is_complete)


async def too_many_turns() -> None:
    agent = Agent(name="assistant", tools=[add], model=scripted(*[("add", {"a": 1, "b": 2})] * 3))
    try:
        await Runner.run(agent, "Hi", max_turns=2)
    except sdk.MaxTurnsExceeded:
        print("max_turns")


async def structured_output() -> None:
    agent = Agent(name="assistant", output_type=Point, model=scripted('{"x": 1, "y": 2}'))
    print("structured:", (await Runner.run(agent, "Hi")).final_output_as(Point))


async def hooks() -> None:
    class Tell(RunHooks):  # type: ignore[misc, valid-type]
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            print("hook: start", agent.name)

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            print("hook: tool", tool.name)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            print("hook: tool says", result)

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            print("hook: end", output)

    agent = Agent(name="assistant", tools=[add], model=scripted(("add", {"a": 1, "b": 2}), "3"))
    await Runner.run(agent, "Hi", hooks=Tell())


async def a_tool_that_fails() -> None:
    @function_tool
    async def broken() -> str:
        """Always fails."""
        raise ValueError("no")

    agent = Agent(name="assistant", tools=[broken], model=scripted(("broken", {}), "I see."))
    print("after a failure:", (await Runner.run(agent, "Hi")).final_output)

    @function_tool(failure_error_function=None)
    async def raising() -> str:
        """Always raises."""
        raise ValueError("no")

    agent = Agent(name="assistant", tools=[raising], model=scripted(("raising", {})))
    try:
        await Runner.run(agent, "Hi")
    except Exception as error:  # one library wraps it
        print("raised:", "no" in str(error))


async def a_tool_with_a_timeout() -> None:
    @function_tool(timeout=0.05)
    async def slow() -> str:
        """Takes too long."""
        await asyncio.sleep(60)
        return "late"

    agent = Agent(name="assistant", tools=[slow], model=scripted(("slow", {}), "Too slow."))
    print("after a timeout:", (await Runner.run(agent, "Hi")).final_output)


async def an_approval() -> None:
    @function_tool(needs_approval=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return f"{path} is gone"

    agent = Agent(name="assistant", tools=[delete], model=scripted(("delete", {"path": "a.txt"}), "Done."))
    result = await Runner.run(agent, "Hi")
    print("waiting for approval:", len(result.interruptions), result.final_output)
    state = result.to_state()
    for waiting in result.interruptions:
        state.approve(waiting)
    print("approved:", (await Runner.run(agent, state)).final_output)


async def a_configured_run() -> None:
    config = RunConfig(model=scripted("by the run's own model"))
    print("run_config:", (await Runner.run(Agent(name="assistant"), "Hi", run_config=config)).final_output)


async def main() -> None:
    for show in (
        a_text_turn,
        instructions_as_a_function,
        a_tool_and_its_context,
        a_tripwire_at_the_input,
        a_tripwire_at_the_output,
        a_handoff,
        an_agent_as_a_tool,
        a_streamed_run,
        too_many_turns,
        structured_output,
        hooks,
        a_tool_that_fails,
        a_tool_with_a_timeout,
        an_approval,
        a_configured_run,
    ):
        await show()


if LIBRARY == "agents":
    sdk.set_tracing_disabled(True)
asyncio.run(main())
print("run_sync:", Runner.run_sync(Agent(name="assistant", model=scripted("Hello!")), "Hi").final_output)
