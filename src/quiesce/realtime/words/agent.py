"""An agent that speaks, and handing over from one agent to another.

The two are in one module because each refers to the other: an agent lists its handoffs, and a handoff has an
agent.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from quiesce.agents import (
    FunctionTool,
    InvalidFinalOutput,
    InvalidToolArguments,
    OutputGuardrail,
    UserError,
)
from quiesce.agents.inner import C, OutputType, call_function, function_name
from quiesce.models import ToolSpec

if TYPE_CHECKING:
    from quiesce.agents import RunContextWrapper
    from quiesce.agents.inner import ToolServer

Instructions: TypeAlias = (
    "str | Callable[[RunContextWrapper[Any], RealtimeAgent[Any]], Awaitable[str] | str] | None"
)
IsEnabled: TypeAlias = "bool | Callable[[RunContextWrapper[Any], RealtimeAgent[Any]], Any]"

_NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


@dataclass
class RealtimeAgent(Generic[C]):
    """An agent of a `RealtimeSession`: instructions, tools, guardrails, and agents to hand over to.

    ```python
    agent = RealtimeAgent(name="concierge", instructions="Be brief.", tools=[weather])
    ```

    - `instructions`: text, or a function of `(context, agent)`, async or sync.
    - `prompt`: a stored prompt of the provider, such as `{"id": "pmpt_..."}`.
    - `handoffs`: agents that it may hand over to, or `realtime_handoff(agent, ...)`.
    - `output_guardrails`: check what it says while it speaks.
    - `mcp_servers`: servers whose tools it may use. The session connects those that are not connected, and
      closes them again.
    """

    name: str
    instructions: Instructions = None
    _: dataclasses.KW_ONLY
    prompt: Mapping[str, Any] | None = None
    tools: Sequence[FunctionTool] = ()
    mcp_servers: Sequence[ToolServer] = ()
    handoffs: Sequence[RealtimeAgent[Any] | RealtimeHandoff] = ()
    handoff_description: str | None = None
    output_guardrails: Sequence[OutputGuardrail] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"the name of an agent must be a str, not {self.name!r}")
        if not (
            self.instructions is None or isinstance(self.instructions, str) or callable(self.instructions)
        ):
            raise TypeError(
                f"the instructions of agent {self.name!r} must be a str or a function, "
                f"not {type(self.instructions).__name__}"
            )

        for tool in self.tools if isinstance(self.tools, Sequence) else [self.tools]:
            if not isinstance(tool, FunctionTool):
                raise TypeError(
                    f"the tools of agent {self.name!r} must be a list of functions decorated with @function_tool; "
                    f"{tool!r} is not one"
                )
        check_guardrails(f"agent {self.name!r}", self.output_guardrails)

    def clone(self, **changes: Any) -> RealtimeAgent[C]:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    async def get_system_prompt(self, context: RunContextWrapper[Any]) -> str | None:
        """Return the instructions for this session."""
        if self.instructions is None or isinstance(self.instructions, str):
            return self.instructions
        text: Any = await call_function(self.instructions, context, self)
        if not isinstance(text, str):
            raise TypeError(
                f"the instructions of agent {self.name!r} returned {type(text).__name__}, and must return a str"
            )
        return text


@dataclass(slots=True, eq=False)
class RealtimeHandoff:
    """A handoff to another agent, which goes on with the same conversation. `realtime_handoff` makes one."""

    agent: RealtimeAgent[Any]
    tool_name: str
    tool_description: str
    on_handoff: Callable[..., Any] | None
    is_enabled: IsEnabled
    _input: OutputType | None

    @property
    def spec(self) -> ToolSpec:
        """The handoff as a tool for the model to call."""
        schema = self._input.spec.schema if self._input is not None else _NOTHING
        return ToolSpec(self.tool_name, self.tool_description, schema)

    async def invoke(self, context: RunContextWrapper[Any], arguments: str) -> RealtimeAgent[Any]:
        """Call `on_handoff`, and return the agent that takes over."""
        if self.on_handoff is not None:
            if self._input is None:
                await call_function(self.on_handoff, context)
            else:
                try:
                    value = self._input.decode(arguments)
                except InvalidFinalOutput as error:
                    raise InvalidToolArguments(f"{self.tool_name} was called wrongly: {error}") from None
                await call_function(self.on_handoff, context, value)
        return self.agent


def realtime_handoff(
    agent: RealtimeAgent[Any],
    *,
    tool_name_override: str | None = None,
    tool_description_override: str | None = None,
    on_handoff: Callable[..., Any] | None = None,
    input_type: Any = None,
    is_enabled: IsEnabled = True,
) -> RealtimeHandoff:
    """Return a handoff to `agent`.

    `on_handoff(context)`, async or sync, is called when it happens. With an `input_type` it is
    `on_handoff(context, input)`: the model has to give an input of that type.
    """
    if input_type is not None and on_handoff is None:
        raise UserError("input_type is the type of on_handoff's input: give on_handoff too")
    if on_handoff is not None:
        parameters = ("context",) if input_type is None else ("context", "input")
        try:
            inspect.signature(on_handoff).bind(*parameters)
        except TypeError:
            raise UserError(
                f"on_handoff is called with ({', '.join(parameters)}), but does not accept that"
            ) from None
    description = agent.handoff_description
    return RealtimeHandoff(
        agent,
        tool_name_override or f"transfer_to_{function_name(agent.name)}",
        tool_description_override
        or f"Hand over to the agent {agent.name}." + (f" {description}" if description else ""),
        on_handoff,
        is_enabled,
        OutputType(input_type) if input_type is not None else None,
    )


def as_handoff(target: Any) -> RealtimeHandoff:
    """Return a handoff to an agent, or the handoff itself."""
    if isinstance(target, RealtimeHandoff):
        return target
    if isinstance(target, RealtimeAgent):
        return realtime_handoff(target)
    raise UserError(
        f"handoffs must be RealtimeAgents, or made by realtime_handoff(), not {type(target).__name__}"
    )


def check_guardrails(owner: str, guardrails: object) -> None:
    """Raise `UserError` unless each of these is an `OutputGuardrail`."""
    for each in guardrails if isinstance(guardrails, Sequence) else [guardrails]:
        if not isinstance(each, OutputGuardrail):
            raise UserError(
                f"the output_guardrails of {owner} must be a list of functions decorated with @output_guardrail; "
                f"{each!r} is not one"
            )
