"""An agent: a name, instructions, a model, and what it may use."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias

import msgspec

from quiesce._lazy import from_above
from quiesce._safe.nested import decoder_of
from quiesce.models import Item, Model, ModelSettings, ToolSpec

from .argument_checks import (
    check_each,
    check_function,
    check_hooks,
    check_max_turns,
    check_model,
    check_one_of,
    check_run_config,
    check_run_hooks,
    check_settings,
    check_text,
    has,
    refuse,
)
from .context import C, RunContextWrapper, ToolContext
from .errors import InvalidToolArguments, UserError
from .guardrails import call_function, check_input_guardrails, check_output_guardrails, name_of
from .output import OutputType

if TYPE_CHECKING:
    from .context import RunConfig
    from .guardrails import InputGuardrail, OutputGuardrail
    from .hooks import AgentHooks, RunHooks
    from .tool import FunctionTool

Instructions: TypeAlias = "str | Callable[[RunContextWrapper[Any], Agent[Any]], Awaitable[str] | str] | None"


class ToolServer(Protocol):
    """An MCP server, as runs use it: the first that needs it connects it, and the last one closes it."""

    name: str

    def use(self) -> AbstractAsyncContextManager[Any]:
        """Keep it connected while the block runs."""
        ...

    async def list_tools(self) -> list[FunctionTool]:
        """The tools that it offers now."""
        ...


@dataclass
class Agent(Generic[C]):
    """What answers: instructions and a model, with tools, guardrails and other agents to hand over to.

    ```python
    agent = Agent(name="assistant", instructions="Be brief.", model=model, tools=[weather])
    result = await Runner.run(agent, "How is the weather in Paris?")
    ```

    - `instructions`: text, or a function of `(context, agent)`, async or sync.
    - `output_type`: the type of the final answer, any that msgspec or pydantic can describe; plain text if
      None.
    - `handoffs`: agents that it may hand over to. To make a tool of an agent instead, which answers while
      this agent goes on, use `as_tool()`.
    - `mcp_servers`: servers whose tools it may use. A run connects those that are not connected, and closes
      them again.
    - `tool_use_behavior="stop_on_first_tool"`: the output of the first tool is the final output.
    """

    name: str
    instructions: Instructions = None
    model: Model | None = None
    _: dataclasses.KW_ONLY
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    tools: Sequence[FunctionTool] = ()
    mcp_servers: Sequence[ToolServer] = ()
    handoffs: Sequence[Agent[Any] | Handoff] = ()
    handoff_description: str | None = None
    input_guardrails: Sequence[InputGuardrail] = ()
    output_guardrails: Sequence[OutputGuardrail] = ()
    output_type: Any = None
    hooks: AgentHooks[Any] | None = None
    tool_use_behavior: Literal["run_llm_again", "stop_on_first_tool"] = "run_llm_again"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"the name of an agent must be a str, not {self.name!r}")
        this = f"agent {self.name!r}"
        if not (
            self.instructions is None or isinstance(self.instructions, str) or callable(self.instructions)
        ):
            refuse(f"the instructions of {this}", "a str or a function", self.instructions)
        check_model(this, self.model)
        check_settings(this, self.model_settings)
        self.tools = check_tools(this, self.tools)
        self.mcp_servers = check_each(
            this, "mcp_servers", self.mcp_servers, "an MCP server", _is_server, _instead_of_server
        )
        self.handoffs = check_each(
            this, "handoffs", self.handoffs, "an Agent or a Handoff", _can_take_over, _instead_of_handoff
        )
        check_text(f"the handoff_description of {this}", self.handoff_description)
        self.input_guardrails = check_input_guardrails(this, self.input_guardrails)
        self.output_guardrails = check_output_guardrails(this, self.output_guardrails)
        check_hooks(
            f"the hooks of {this}",
            self.hooks,
            "AgentHooks",
            "on_start",
            "RunHooks are for a run: Runner.run(..., hooks=...)",
        )
        check_one_of(
            f"the tool_use_behavior of {this}", self.tool_use_behavior, "run_llm_again", "stop_on_first_tool"
        )
        #: Decodes final answers; None if they are plain text.
        self.answer_type = OutputType(self.output_type) if self.output_type not in (None, str) else None

    def clone(self, **changes: Any) -> Agent[C]:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    async def get_system_prompt(self, context: RunContextWrapper[Any]) -> str | None:
        """The instructions for this run."""
        if self.instructions is None or isinstance(self.instructions, str):
            return self.instructions
        text: Any = await call_function(self.instructions, context, self)
        if not isinstance(text, str):
            raise TypeError(
                f"the instructions of agent {self.name!r} returned {type(text).__name__}, and must return a str"
            )
        return text

    def as_tool(
        self,
        tool_name: str | None = None,
        tool_description: str | None = None,
        *,
        max_turns: int | None = 10,
        run_config: RunConfig | None = None,
        hooks: RunHooks[Any] | None = None,
        custom_output_extractor: Callable[[Any], Awaitable[str] | str] | None = None,
        needs_approval: bool = False,
        timeout: float | None = None,
    ) -> FunctionTool:
        """This agent as a tool of another one: it gets text, and its final output is the tool's result.

        Its run belongs to the tool call, and is stopped with it.
        """
        from .context import RunConfig
        from .tool import FunctionTool

        check_max_turns(max_turns)
        check_run_config(run_config, RunConfig)
        check_run_hooks(hooks)
        check_function(
            f"the custom_output_extractor of agent {self.name!r} as a tool", custom_output_extractor
        )

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            # The room `run` is above this one and imports it, so it is looked up when it is needed.
            run_as_tool = from_above("quiesce.agents.run.runner", "run_as_tool")
            result = await run_as_tool(self, _said(arguments), context, max_turns, hooks, run_config)
            if result.interruptions:
                names = ", ".join(asked.name for asked in result.interruptions)
                raise UserError(
                    f"agent {self.name!r} is a tool, and nobody can approve its call of {names}: "
                    "pass as_tool(run_config=RunConfig(approve=...))"
                )
            if custom_output_extractor is not None:
                text = custom_output_extractor(result)
                return await text if inspect.isawaitable(text) else text
            return result.final_output

        return FunctionTool(
            tool_name or function_name(self.name),
            tool_description or self.handoff_description or f"Ask the agent {self.name}.",
            _ONE_TEXT,
            invoke,
            strict=True,
            needs_approval=needs_approval,
            timeout=timeout,
        )


_ONE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class _OneText(msgspec.Struct):
    input: str


_decode = decoder_of(_OneText)


def _said(arguments: str) -> str:
    try:
        given: _OneText = _decode(arguments)
        return given.input
    except msgspec.DecodeError as error:
        raise InvalidToolArguments(f'this tool takes one text, {{"input": "..."}}: {error}') from None


@dataclass(slots=True)
class Handoff:
    """How one agent may hand over to another: under which tool name, and with which part of the history.

    `input_filter` gets the items of the run so far, and returns those that the next agent sees.
    """

    agent: Agent[Any]
    tool_name: str = ""
    tool_description: str = ""
    on_handoff: Callable[[RunContextWrapper[Any]], Any] | None = None
    input_filter: Callable[[list[Item]], list[Item]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.agent, Agent):
            refuse("what a handoff goes to", "an Agent", self.agent, _instead_of_handoff(self.agent))
        this = f"the handoff to {self.agent.name!r}"
        check_text(f"the tool_name of {this}", self.tool_name)
        check_text(f"the tool_description of {this}", self.tool_description)
        check_function(f"on_handoff of {this}", self.on_handoff)
        check_function(f"input_filter of {this}", self.input_filter)
        self.tool_name = self.tool_name or f"transfer_to_{function_name(self.agent.name)}"
        if not self.tool_description:
            about = self.agent.handoff_description
            self.tool_description = f"Hand over to the agent {self.agent.name}." + (
                f" {about}" if about else ""
            )

    @property
    def spec(self) -> ToolSpec:
        """The handoff as a tool, which is how the model asks for it."""
        return ToolSpec(self.tool_name, self.tool_description, {"type": "object", "properties": {}})


def handoff(agent: Agent[Any], **options: Any) -> Handoff:
    """A handoff to `agent`, with options: see `Handoff`."""
    return Handoff(agent, **options)


def as_handoff(target: Agent[Any] | Handoff) -> Handoff:
    """An agent or a handoff, as a `Handoff`."""
    if isinstance(target, Handoff):
        return target
    if isinstance(target, Agent):
        return Handoff(target)
    raise UserError(f"handoffs are agents or Handoffs, not {type(target).__name__}")


# What users pass instead


def check_tools(whose: str, tools: Any) -> Any:
    """The tools, or an error that says how to make one of what was passed."""
    return check_each(whose, "tools", tools, "a FunctionTool", _is_tool, _instead_of_tool)


def _is_tool(value: object) -> bool:
    return has(value, "invoke", "spec")


def _instead_of_tool(value: object) -> str:
    if isinstance(value, Agent):
        return "write agent.as_tool()"
    if isinstance(value, Handoff):
        return "write handoffs=[...]"
    if _is_server(value):
        return "write mcp_servers=[...]"
    if callable(value) and not inspect.isclass(value):
        return f"decorate it with @function_tool, or write function_tool({name_of(value)})"
    return "make one of a function with @function_tool"


def _is_server(value: object) -> bool:
    return has(value, "use", "list_tools")


def _instead_of_server(value: object) -> str:
    return "write MCPServerStdio({'command': ...}) or MCPServerStreamableHttp({'url': ...})"


def _can_take_over(value: object) -> bool:
    return isinstance(value, (Agent, Handoff))


def _instead_of_handoff(value: object) -> str:
    return "pass the agent itself, not its name" if isinstance(value, str) else ""


def function_name(text: str) -> str:
    """A name that providers accept for a function."""
    return re.sub(r"[^a-zA-Z0-9_]+", "_", text).strip("_").lower() or "agent"
