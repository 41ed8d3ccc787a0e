"""One program for two libraries: OpenAI's Agents SDK and quiesce.agents, by changing the import.

    python examples/carries_over/openai_agents.py quiesce.agents
    python examples/carries_over/openai_agents.py agents            # where openai-agents is installed

Each function below is written as users of that SDK write it. Both libraries print the same lines. Only the
scripted model is each library's own.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
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
tool: Decorator = importlib.import_module(f"{LIBRARY}.decorators").tool
handoff: Decorator = sdk.handoff
input_guardrail: Decorator = sdk.input_guardrail
output_guardrail: Decorator = sdk.output_guardrail


numbers = itertools.count()


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
                else testing.function_call(turn[0], turn[1], call_id=f"call_{next(numbers)}")
            ]
            for turn in turns
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


async def a_tool_by_the_newer_name() -> None:
    @tool(name_override="shout", description_override="Say it loudly.")
    def louder(text: str) -> str:
        return text.upper()

    agent = Agent(name="assistant", tools=[louder], model=scripted(("shout", {"text": "hi"}), "done"))
    result = await Runner.run(agent, "Hi")
    print("tool output:", [item.output for item in result.new_items if item.type == "tool_call_output_item"])


async def dicts_in_and_what_was_said_fed_back() -> None:
    agent = Agent(name="assistant", model=scripted("Hello, Ada.", "Ada."))
    said = [{"role": "user", "content": "I am Ada."}]
    result = await Runner.run(agent, said)
    again = [*result.to_input_list(), {"content": "Who am I?", "role": "user"}]
    print("fed back:", len(again), (await Runner.run(agent, again)).final_output)


async def agents_that_know_each_other() -> None:
    one = Agent(name="one", model=scripted(("transfer_to_two", {}), "back at one"))
    two = Agent(name="two", model=scripted(("transfer_to_one", {})))
    one.handoffs.append(two)
    two.handoffs.append(handoff(one))
    one.tools.append(add)
    result = await Runner.run(one, "Hi")
    print("to and fro:", result.last_agent.name, result.final_output)


async def a_handoff_with_input_and_filter() -> None:
    filters = importlib.import_module(f"{LIBRARY}.extensions.handoff_filters")

    async def tell(context: Any, given: Point) -> None:
        print("on_handoff:", given.x, given.y)

    def shorten(data: Any) -> Any:
        print("filter:", len(data.input_history), len(data.pre_handoff_items), len(data.new_items))
        return filters.remove_all_tools(data).clone(input_history=data.input_history[-1:])

    expert = Agent(name="expert", model=scripted("Hm."), hooks=Counting())
    options = {"tool_name_override": "ask_expert", "tool_description_override": "Ask.", "input_type": Point}
    first = Agent(
        name="first",
        tools=[add],
        handoffs=[handoff(expert, on_handoff=tell, input_filter=shorten, **options)],
        model=scripted(("add", {"a": 1, "b": 2}), ("ask_expert", {"x": 3, "y": 4})),
    )
    said = [{"role": "user", "content": "Hello"}, {"role": "user", "content": "Why?"}]
    print("expert:", (await Runner.run(first, said)).final_output)


class Counting(sdk.AgentHooks):  # type: ignore[misc]
    async def on_start(self, context: Any, agent: Any) -> None:
        print("turn input:", len(context.turn_input))

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        print("asks with:", system_prompt, len(input_items))

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        print("answered with:", len(response.output))


async def hooks_around_the_model() -> None:
    agent = Agent(name="assistant", instructions="Be brief.", model=scripted("Hello!"), hooks=Counting())
    await Runner.run(agent, "Hi")


async def what_the_model_has_said() -> None:
    agent = Agent(name="assistant", tools=[add], model=scripted(("add", {"a": 1, "b": 2}), "It is 3."))
    result = await Runner.run(agent, "1 + 2")
    print("responses:", [len(response.output) for response in result.raw_responses])
    print("items:", [item.type for item in result.new_items])
    print("text:", sdk.ItemHelpers.text_message_outputs(result.new_items))


async def items_as_they_come() -> None:
    agent = Agent(name="assistant", tools=[add], model=scripted(("add", {"a": 1, "b": 2}), "It is 3."))
    result = Runner.run_streamed(agent, "1 + 2")
    first = await anext(result.stream_events())
    print("first event:", first.type, result.current_agent.name, result.is_complete)
    async for event in result.stream_events():
        if event.type != "run_item_stream_event":
            continue
        if event.item.type == "tool_call_item":
            print("calls", event.item.raw_item.name, event.item.raw_item.arguments)
        elif event.item.type == "message_output_item":
            print("says", sdk.ItemHelpers.text_message_output(event.item))


async def a_handoff_in_a_stream() -> None:
    other = Agent(name="other", model=scripted("Hello!"))
    result = Runner.run_streamed(
        Agent(name="first", handoffs=[other], model=scripted(("transfer_to_other", {}))), "Hi"
    )
    names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
    print("names:", [name for name in names if name.startswith("handoff_occ")], result.current_agent.name)


async def a_stream_that_is_cancelled() -> None:
    result = Runner.run_streamed(Agent(name="assistant", model=scripted("Hello!")), "Hi")
    async for _ in result.stream_events():
        result.cancel()
    print("cancelled:", result.final_output, result.is_complete)


async def tools_that_end_the_run() -> None:
    def turns() -> Any:
        return scripted(("add", {"a": 1, "b": 2}))

    behavior: Any = {"stop_at_tool_names": ["add"]}
    agent = Agent(name="assistant", tools=[add], model=turns(), tool_use_behavior=behavior)
    print("stop at tools:", (await Runner.run(agent, "1 + 2")).final_output)

    def decide(context: Any, results: Any) -> Any:
        said = f"{results[0].tool.name} says {results[0].output}"
        return sdk.ToolsToFinalOutputResult(is_final_output=True, final_output=said)

    agent = agent.clone(model=turns(), tool_use_behavior=decide)
    print("decided:", (await Runner.run(agent, "1 + 2")).final_output)


async def a_tool_that_must_be_used() -> None:
    chosen: list[Any] = []
    model = scripted(("add", {"a": 1, "b": 2}), "It is 3.")

    class Watching(RunHooks):  # type: ignore[misc, valid-type]
        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            chosen.append(agent.model_settings.tool_choice)

    settings = sdk.ModelSettings(tool_choice="required", parallel_tool_calls=False)
    agent = Agent(name="assistant", tools=[add], model=model, model_settings=settings)
    print("required once:", (await Runner.run(agent, "1 + 2", hooks=Watching())).final_output, chosen)


async def an_agent_as_a_tool_that_is_heard() -> None:
    heard: list[str] = []
    inner = Agent(name="translator", model=scripted("Bonjour!"))
    tool = inner.as_tool(
        tool_name="translate",
        tool_description="Translate.",
        on_stream=lambda told: heard.append(f"{told['agent'].name} {told['event'].type}"),
        is_enabled=lambda context, agent: context.context == "fr",
    )
    outer = Agent(name="outer", tools=[tool], model=scripted(("translate", {"input": "Hello"}), "done"))
    await Runner.run(outer, "Hi", context="fr")
    print("heard:", "translator run_item_stream_event" in heard)
    print("tools:", [one.name for one in await outer.get_all_tools(RunContextWrapper("en"))])


async def always_approved() -> None:
    @tool(needs_approval=True)
    async def delete(path: str) -> str:
        return f"{path} is gone"

    agent = Agent(
        name="cleaner",
        tools=[delete],
        model=scripted(("delete", {"path": "a"}), ("delete", {"path": "b"}), "Done."),
    )
    result = await Runner.run(agent, "Hi")
    (waiting,) = result.interruptions
    print(f"{waiting.agent.name} wants {waiting.name} {waiting.arguments}")
    state = result.to_state()
    state.approve(waiting, always_approve=True)
    print("approved for good:", (await Runner.run(agent, state)).final_output)


async def a_session_of_ones_own() -> None:
    memory = importlib.import_module(f"{LIBRARY}.memory")

    class Kept(memory.Session):  # type: ignore[name-defined, misc]
        def __init__(self, session_id: str) -> None:
            self.session_id = session_id
            self.items: list[Any] = [{"role": "user", "content": "I am Ada."}]

        async def get_items(self, limit: int | None = None) -> list[Any]:
            return list(self.items)

        async def add_items(self, items: list[Any]) -> None:
            self.items += items

        async def pop_item(self) -> Any:
            return self.items.pop()

        async def clear_session(self) -> None:
            self.items = []

    session = Kept("ada")
    agent = Agent(name="assistant", model=scripted("Ada.", "Still Ada."))
    await Runner.run(agent, "Who am I?", session=session)
    result = await Runner.run(agent, "And now?", session=session)
    print("session:", session.session_id, len(session.items), result.final_output)


async def what_the_model_is_sent() -> None:
    made = importlib.import_module(f"{LIBRARY}.run").ModelInputData

    def last_only(data: Any) -> Any:
        print("would send:", len(data.model_data.input), data.model_data.instructions, data.context)
        return made(input=data.model_data.input[-1:], instructions="Be kind.")

    agent = Agent(name="assistant", instructions="Be brief.", model=scripted("Hello!"), hooks=Counting())
    said = [{"role": "user", "content": "One"}, {"role": "user", "content": "Two"}]
    config = RunConfig(call_model_input_filter=last_only)
    print("sent:", len((await Runner.run(agent, said, context=7, run_config=config)).to_input_list()))


async def a_traced_workflow() -> None:
    agent = Agent(name="assistant", model=scripted("Hello!", "Bye!"))
    with sdk.trace("Greet", trace_id=sdk.gen_trace_id(), group_id="ada"), sdk.custom_span("twice"):
        await Runner.run(agent, "Hi")
        config = RunConfig(workflow_name="Greet", tracing_disabled=True)
        print("traced:", (await Runner.run(agent, "Bye", run_config=config)).final_output)


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
        a_tool_by_the_newer_name,
        dicts_in_and_what_was_said_fed_back,
        agents_that_know_each_other,
        a_handoff_with_input_and_filter,
        hooks_around_the_model,
        what_the_model_has_said,
        items_as_they_come,
        a_handoff_in_a_stream,
        a_stream_that_is_cancelled,
        tools_that_end_the_run,
        a_tool_that_must_be_used,
        an_agent_as_a_tool_that_is_heard,
        always_approved,
        a_session_of_ones_own,
        what_the_model_is_sent,
        a_traced_workflow,
    ):
        await show()


sdk.set_tracing_disabled(True)
asyncio.run(main())
print("run_sync:", Runner.run_sync(Agent(name="assistant", model=scripted("Hello!")), "Hi").final_output)
