"""An agent: a name, instructions, a model, and what it may use."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from quiesce.models import Model, ModelSettings

from .agent_tool import ONE_TEXT, OnStream, invoker
from .argument_checks import (
    check_each,
    check_function,
    check_hooks,
    check_max_turns,
    check_model,
    check_run_config,
    check_run_hooks,
    check_settings,
    check_text,
    check_yes_or_no,
    has,
    refuse,
)
from .context import C, RunContextWrapper
from .guardrails import call_function, check_input_guardrails, check_output_guardrails, name_of
from .invoke import is_enabled
from .output import OutputType
from .tool_use import ToolUseBehavior, check_tool_use

if TYPE_CHECKING:
    from .context import RunConfig
    from .guardrails import InputGuardrail, OutputGuardrail
    from .handoffs import Handoff
    from .hooks import AgentHooks, RunHooks
    from .tool import FunctionTool, IsEnabled, NeedsApproval

_LISTS = ("tools", "mcp_servers", "handoffs", "input_guardrails", "output_guardrails")

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
    - `tool_use_behavior`: what the outputs of tools mean. By default the model goes on. With `"stop_on_first_tool"`
      the output of the first tool is the final output; with `{"stop_at_tool_names": [...]}` that of the first of
      these; a function of the context and the results of a turn (`FunctionToolResult`) decides it itself.
    - `reset_tool_choice`: once it has used a tool in a run, `ModelSettings(tool_choice=...)` applies no more, or
      `"required"` would never let the model answer.

    `tools`, `handoffs` and the others that are lists may be added to later: `agent.handoffs.append(other)`.
    """

    name: str
    instructions: Instructions = None
    model: Model | None = None
    _: dataclasses.KW_ONLY
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    tools: list[FunctionTool] = field(default_factory=list)
    mcp_servers: list[ToolServer] = field(default_factory=list)
    handoffs: list[Agent[Any] | Handoff] = field(default_factory=list)
    handoff_description: str | None = None
    input_guardrails: list[InputGuardrail] = field(default_factory=list)
    output_guardrails: list[OutputGuardrail] = field(default_factory=list)
    output_type: Any = None
    hooks: AgentHooks[Any] | None = None
    tool_use_behavior: ToolUseBehavior = "run_llm_again"
    reset_tool_choice: bool = True

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
        self.tools = _as_list(check_tools(this, self.tools))
        self.mcp_servers = _as_list(
            check_each(this, "mcp_servers", self.mcp_servers, "an MCP server", _is_server, _instead_of_server)
        )
        self.handoffs = _as_list(
            check_each(
                this, "handoffs", self.handoffs, "an Agent or a Handoff", _can_take_over, instead_of_handoff
            )
        )
        check_text(f"the handoff_description of {this}", self.handoff_description)
        self.input_guardrails = _as_list(check_input_guardrails(this, self.input_guardrails))
        self.output_guardrails = _as_list(check_output_guardrails(this, self.output_guardrails))
        check_yes_or_no(f"reset_tool_choice of {this}", self.reset_tool_choice)
        check_hooks(
            f"the hooks of {this}",
            self.hooks,
            "AgentHooks",
            "on_start",
            "RunHooks are for a run: Runner.run(..., hooks=...)",
        )
        check_tool_use(self.name, self.tool_use_behavior)
        #: Decodes final answers; None if they are plain text.
        self.answer_type = OutputType(self.output_type) if self.output_type not in (None, str) else None

    def clone(self, **changes: Any) -> Agent[C]:
        """A copy with some fields changed. Its lists are its own: what is added to them is not added to these."""
        for name in _LISTS:
            changes.setdefault(name, list(getattr(self, name)))
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

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[FunctionTool]:
        """The tools that it may use now: its own that are enabled, and those of its MCP servers."""
        tools = [
            tool
            for tool in self.tools
            if tool.is_enabled is True or await is_enabled(tool, run_context, self)
        ]
        for server in self.mcp_servers:
            async with server.use():
                tools += await server.list_tools()
        return tools

    def as_tool(
        self,
        tool_name: str | None = None,
        tool_description: str | None = None,
        *,
        max_turns: int | None = 10,
        run_config: RunConfig | None = None,
        hooks: RunHooks[Any] | None = None,
        custom_output_extractor: Callable[[Any], Awaitable[str] | str] | None = None,
        on_stream: OnStream | None = None,
        needs_approval: NeedsApproval = False,
        is_enabled: IsEnabled = True,
        timeout: float | None = None,
    ) -> FunctionTool:
        """This agent as a tool of another one: it gets text, and its final output is the tool's result.

        Its run belongs to the tool call, and is stopped with it. `on_stream` is called with each of its events, and
        the run waits for it.
        """
        from .context import RunConfig
        from .tool import FunctionTool

        check_max_turns(max_turns)
        check_run_config(run_config, RunConfig)
        check_run_hooks(hooks)
        check_function(
            f"the custom_output_extractor of agent {self.name!r} as a tool", custom_output_extractor
        )
        check_function(f"on_stream of agent {self.name!r} as a tool", on_stream)
        return FunctionTool(
            tool_name or function_name(self.name),
            tool_description or self.handoff_description or f"Ask the agent {self.name}.",
            ONE_TEXT,
            invoker(self, max_turns, run_config, hooks, custom_output_extractor, on_stream),
            strict=True,
            needs_approval=needs_approval,
            is_enabled=is_enabled,
            timeout=timeout,
        )


def _as_list(values: Any) -> Any:
    """The very list that the user passed, which may be added to; or one that can be."""
    return values if isinstance(values, list) else list(values)


# What users pass instead


def check_tools(whose: str, tools: Any) -> Any:
    """The tools, or an error that says how to make one of what was passed."""
    return check_each(whose, "tools", tools, "a FunctionTool", _is_tool, _instead_of_tool)


def _is_tool(value: object) -> bool:
    return has(value, "invoke", "spec")


def _instead_of_tool(value: object) -> str:
    if isinstance(value, Agent):
        return "write agent.as_tool()"
    if _is_handoff(value):
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
    return isinstance(value, Agent) or _is_handoff(value)


def _is_handoff(value: object) -> bool:
    return has(value, "agent", "on_handoff")  # known by what it has, as its module imports this one


def instead_of_handoff(value: object) -> str:
    """What to write instead of this, which cannot be handed over to."""
    return "pass the agent itself, not its name" if isinstance(value, str) else ""


def function_name(text: str) -> str:
    """A name that providers accept for a function."""
    return re.sub(r"[^a-zA-Z0-9_]+", "_", text).strip("_").lower() or "agent"
