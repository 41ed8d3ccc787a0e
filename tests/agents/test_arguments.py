"""What is passed wrongly is refused at the call, with the name of the thing and what to write instead."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from quiesce import Grace
from quiesce.agents import (
    Agent,
    AgentHooks,
    Conversation,
    FunctionTool,
    Handoff,
    InputGuardrail,
    LogSession,
    MCPServerStdio,
    MemorySession,
    MemoryStore,
    RunConfig,
    RunHooks,
    Runner,
    UserError,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from quiesce.models import (
    AssistantMessage,
    ItemDone,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    ResponseDone,
    Usage,
)
from quiesce.testing import ScriptedModel, call
from tests.agents.scenes import passes, scripted

MODEL = ScriptedModel(["ok"])
INPUT, OUTPUT = input_guardrail(passes), output_guardrail(passes)
BEFORE, AFTER = tool_input_guardrail(passes), tool_output_guardrail(passes)


class Told(RunHooks[Any]):
    pass


class Heard(AgentHooks[Any]):
    pass


def weather(city: str) -> str:
    """Forecast the weather."""
    return "rain"


async def aweather(*_: Any) -> str:
    return "rain"


def made(by: Any, *args: Any, **options: Any) -> Any:
    """What a type checker would refuse is what these tests are about."""
    return by(*args, **options)


def agent(**options: Any) -> Agent[Any]:
    return Agent(name="poet", **{"model": MODEL, **options})


def tool(**options: Any) -> FunctionTool:
    return function_tool(weather, **options)


def a_run(**options: Any) -> Any:
    return Runner.run_streamed(agent(), "?", **options)


def a_conversation(**options: Any) -> Conversation:
    return Conversation(agent(), **options)


WRONG: list[tuple[Callable[[], Any], str]] = [
    # Agents
    (
        lambda: agent(tools=[weather]),
        "each of the tools of agent 'poet' must be a FunctionTool, not the function weather: decorate it with @function_tool, or write "
        "function_tool(weather)",
    ),
    (lambda: agent(tools=[agent()]), "not Agent: write agent.as_tool()"),
    (lambda: agent(tools=[handoff(agent())]), "not Handoff: write handoffs=[...]"),
    (lambda: agent(tools=[MCPServerStdio({"command": "x"})]), "write mcp_servers=[...]"),
    (lambda: agent(tools=[FunctionTool]), "not the class FunctionTool"),
    (
        lambda: agent(tools=tool()),
        "tools of agent 'poet' must be a list, not FunctionTool: write tools=[...]",
    ),
    (lambda: agent(tools="weather"), "tools of agent 'poet' must be a list, not 'weather'"),
    (lambda: agent(tools=None), "tools of agent 'poet' must be a list, not None: leave it out"),
    (
        lambda: agent(model="gpt-5"),
        "the model of agent 'poet' must be a Model, not 'gpt-5': write OpenAIModel('gpt-5')",
    ),
    (lambda: agent(model=ScriptedModel), "not the class ScriptedModel: write ScriptedModel(...)"),
    (lambda: agent(model=weather), "must be a Model, not the function weather: a Model has a name"),
    (
        lambda: agent(model_settings={"temperature": 0.2}),
        "the model_settings of agent 'poet' must be ModelSettings, not dict: write ModelSettings(temperature=0.2)",
    ),
    (lambda: agent(model_settings=None), "not None: leave it out"),
    (
        lambda: agent(tool_use_behavior="stop_on_first"),
        "the tool_use_behavior of agent 'poet' must be 'run_llm_again', 'stop_on_first_tool', "
        "{'stop_at_tool_names': [...]} or a function, not 'stop_on_first'",
    ),
    (lambda: agent(tool_use_behavior={"stop_at_tool_names": "weather"}), "{'stop_at_tool_names': [...]}"),
    (
        lambda: agent(input_guardrails=[passes]),
        "each of the input_guardrails of agent 'poet' must be an InputGuardrail, not the function passes: decorate it with @input_guardrail, "
        "or write input_guardrail(passes)",
    ),
    (lambda: agent(input_guardrails=[OUTPUT]), "what @output_guardrail makes goes into output_guardrails"),
    (lambda: agent(input_guardrails=INPUT), "input_guardrails of agent 'poet' must be a list"),
    (lambda: agent(output_guardrails=[passes]), "write output_guardrail(passes)"),
    (
        lambda: agent(output_guardrails=[BEFORE]),
        "@tool_input_guardrail makes goes into tool_input_guardrails",
    ),
    (
        lambda: agent(handoffs=["critic"]),
        "each of the handoffs of agent 'poet' must be an Agent or a Handoff, not 'critic': pass the agent itself",
    ),
    (lambda: agent(handoffs=agent()), "handoffs of agent 'poet' must be a list, not Agent"),
    (
        lambda: agent(mcp_servers=[{"command": "x"}]),
        "must be an MCP server, not dict: write MCPServerStdio({",
    ),
    (lambda: agent(mcp_servers={"x": {}}), "mcp_servers of agent 'poet' must be a list, not dict"),
    (lambda: agent(hooks=Told()), "must be AgentHooks, not Told: RunHooks are for a run: Runner.run("),
    (
        lambda: agent(hooks=Heard),
        "the hooks of agent 'poet' must be AgentHooks, not the class Heard: write Heard()",
    ),
    (lambda: agent(instructions=3), "the instructions of agent 'poet' must be a str or a function, not int"),
    (lambda: agent(handoff_description=3), "the handoff_description of agent 'poet' must be a str, not int"),
    (lambda: agent().clone(tools=[weather]), "write function_tool(weather)"),
    (lambda: agent().as_tool(max_turns=0), "max_turns must be a whole number from 1 on"),
    (lambda: made(agent().as_tool, run_config={}), "run_config must be a RunConfig, not dict"),
    (lambda: made(agent().as_tool, hooks=Told), "write Told()"),
    (
        lambda: made(agent().as_tool, custom_output_extractor="text"),
        "the custom_output_extractor of agent 'poet' as a tool must be a function, not 'text'",
    ),
    (
        lambda: made(handoff, "critic"),
        "what a handoff goes to must be an Agent, not 'critic': pass the agent",
    ),
    (
        lambda: made(handoff, agent(), on_handoff="x"),
        "on_handoff of the handoff to 'poet' must be a function, not 'x'",
    ),
    (
        lambda: made(Handoff, agent(), input_filter=3),
        "input_filter of the handoff to 'poet' must be a function",
    ),
    # Tools
    (lambda: made(function_tool, "weather"), "write @function_tool(name_override='weather')"),
    (lambda: made(function_tool, tool()), "must be a function, not FunctionTool: it is a tool already"),
    (lambda: made(function_tool, agent()), "write agent.as_tool()"),
    (lambda: made(function_tool, aweather()), "pass the function itself, not what calling it gives"),
    (lambda: tool(tool_input_guardrails=[passes]), "of tool 'weather' must be a ToolInputGuardrail"),
    (lambda: tool(tool_input_guardrails=[INPUT]), "what @input_guardrail makes goes into input_guardrails"),
    (lambda: tool(tool_output_guardrails=AFTER), "write tool_output_guardrails=[...]"),
    (lambda: tool(needs_approval="no"), "needs_approval of tool 'weather' must be True or False, not 'no'"),
    (lambda: tool(is_enabled="no"), "is_enabled of tool 'weather' must be True or False, not 'no'"),
    (
        lambda: tool(failure_error_function="x"),
        "the failure_error_function of tool 'weather' must be a function",
    ),
    (lambda: made(FunctionTool, "x", "", "{}", aweather), "the parameters of tool 'x' must be a JSON schema"),
    (lambda: made(FunctionTool, "x", "", {}, "y"), "invoke of tool 'x' must be a function, not 'y'"),
    # Guardrails
    (lambda: made(input_guardrail, "topic"), "write @input_guardrail(name='topic')"),
    (lambda: made(output_guardrail, OUTPUT), "it is a guardrail already"),
    (lambda: made(tool_input_guardrail(name="topic"), 3), "must be a function, not int"),
    (lambda: made(InputGuardrail, passes, 3), "the name of guardrail 'passes' must be a str, not int"),
    (
        lambda: made(InputGuardrail, passes, run_in_parallel="no"),
        "run_in_parallel of 'passes' must be True or",
    ),
    # Runs
    (lambda: made(RunConfig, model="gpt-5"), "the model of a RunConfig must be a Model, not 'gpt-5'"),
    (lambda: made(RunConfig, model_settings={"top_p": 1}), "write ModelSettings(top_p=1)"),
    (lambda: made(RunConfig, input_guardrails=[passes]), "write input_guardrail(passes)"),
    (lambda: made(RunConfig, output_guardrails=OUTPUT), "output_guardrails of a RunConfig must be a list"),
    (lambda: made(RunConfig, approve=True), "approve of a RunConfig must be a function"),
    (lambda: made(RunConfig, cancel_model_on_guardrail_failure="no"), "must be True or False, not 'no'"),
    (
        lambda: a_run(session="user-7"),
        "session must be a Session, not 'user-7': write SQLiteSession('user-7'",
    ),
    (
        lambda: a_run(session=MemorySession),
        "session must be a Session, not the class MemorySession: write Mem",
    ),
    (lambda: a_run(session=MemoryStore()), "session must be a Session, not MemoryStore"),
    (
        lambda: a_run(run_config={"grace": Grace()}),
        "run_config must be a RunConfig, not dict: write RunConfig(grace=...)",
    ),
    (lambda: a_run(hooks=Heard()), "hooks must be RunHooks, not Heard: AgentHooks are for an agent"),
    (lambda: a_run(hooks=Told), "hooks must be RunHooks, not the class Told: write Told()"),
    (lambda: made(Runner.run_sync, agent(), "?", run_config={}), "run_config must be a RunConfig, not dict"),
    (
        lambda: made(Runner.run_sync, agent(), "?", session="user-7"),
        "write SQLiteSession('user-7', 'chat.db')",
    ),
    # Conversations and sessions
    (lambda: a_conversation(run_config={}), "run_config must be a RunConfig, not dict"),
    (lambda: a_conversation(hooks=Told), "write Told()"),
    (lambda: a_conversation(max_turns=0), "max_turns must be a whole number from 1 on"),
    (
        lambda: a_conversation(callbacks=print),
        "callbacks of a conversation must be a list, not the function print",
    ),
    (
        lambda: a_conversation(callbacks=[aweather]),
        "must be a sync function of an event, not the function aweather",
    ),
    (
        lambda: made(a_conversation().approve, call("pay")),
        "must be the id of a call, not ToolCall: write call.call_id",
    ),
    (lambda: made(a_conversation().arun, on_event=3), "on_event must be a function, not int"),
    (
        lambda: made(LogSession, MemoryStore()),
        "must be a Log, not MemoryStore: write LogSession(store.open('user-7'))",
    ),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG, ids=[f"{number}" for number, _ in enumerate(WRONG)])
def test_what_is_passed_wrongly_is_refused_at_once_with_what_to_write_instead(
    wrong: Callable[[], Any], told: str
) -> None:
    with pytest.raises(UserError, match=re.escape(told)) as caught:
        wrong()
    assert isinstance(caught.value, (TypeError, ValueError))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"temperature": "hot"}, "temperature of ModelSettings must be a number, not 'hot'"),
        ({"max_tokens": 1.5}, "max_tokens of ModelSettings must be a whole number, not 1.5"),
        ({"max_retries": True}, "max_retries of ModelSettings must be a whole number, not True"),
        ({"max_retries": -1}, "max_retries of ModelSettings must be 0 or more, not -1"),
        ({"timeout": 0}, "timeout of ModelSettings must be a number of seconds greater than 0, not 0"),
        ({"stop": "END"}, "stop of ModelSettings must be a tuple, not a str: write stop=('END',)"),
        ({"tool_choice": ["weather"]}, "tool_choice of ModelSettings must be a str, not ['weather']"),
        ({"extra": ["seed"]}, "extra of ModelSettings must be a dict, not ['seed']"),
    ],
)
def test_settings_that_no_provider_takes_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(told)):
        ModelSettings(**settings)


async def test_a_decision_on_something_that_is_not_a_call_is_refused() -> None:
    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    result = await Runner.run(scripted(call("pay", "c1"), tools=[pay]), "?")
    with pytest.raises(TypeError, match="must be a ToolCall, not 'c1': pass one of `interruptions`"):
        made(result.to_state().approve, "c1")


async def test_a_tool_that_is_added_later_is_looked_at_when_it_is_used() -> None:
    late: Any = scripted("ok")
    late.tools = [weather]
    with pytest.raises(TypeError, match=re.escape("write function_tool(weather)")):
        await Runner.run(late, "?")


# What fits without being one of ours


class Echo:
    """Has what a model needs, by delegation."""

    def __getattr__(self, name: str) -> Any:
        return {"name": "echo", "stream": self._answer}[name]

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ItemDone(AssistantMessage("you said something"))
        yield ResponseDone(Usage(requests=1))


class Notes:
    """Remembers, and no more than a run needs."""

    session_id = "notes"

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return self.items

    async def add_items(self, items: list[Any]) -> None:
        self.items += items


class Lenient:
    """A guardrail of somebody's own."""

    run_in_parallel = True

    def get_name(self) -> str:
        return "lenient"

    async def run(self, *args: Any) -> Any:
        return await INPUT.run(*args)


async def test_what_has_all_that_a_run_uses_is_not_refused() -> None:
    notes: Any = Notes()
    lenient = Lenient()
    mixed: Agent[Any] = made(
        Agent,
        name="mixed",
        model=Echo(),
        tools=(function_tool(weather, name_override=name) for name in ("here", "there")),
        input_guardrails=[lenient],
        output_guardrails={"lenient": lenient}.values(),
    )
    for _ in range(2):  # the generator of tools too is there twice
        result = await Runner.run(mixed, "?", session=notes)
        assert result.final_output == "you said something"
        assert [one.name for one in mixed.tools] == ["here", "there"]
    assert len(notes.items) == 4


async def test_a_model_may_have_its_name_later() -> None:
    class Itself:
        name: str

        def __init__(self) -> None:
            self.agent: Agent[Any] = Agent(name="itself", model=self)
            self.name = "itself"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            yield ItemDone(AssistantMessage("here"))
            yield ResponseDone(Usage(requests=1))

    assert (await Runner.run(Itself().agent, "?")).final_output == "here"


def test_what_is_true_or_false_in_python_is_so_here() -> None:
    assert tool(needs_approval=None).needs_approval is None
    assert tool(is_enabled=1).is_enabled == 1
