"""Handoffs: another agent takes over the same conversation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from quiesce.agents import InvalidFinalOutput, InvalidToolArguments, UserError
from quiesce.agents.inner import OutputType, call_function, function_name
from quiesce.models import ToolSpec

if TYPE_CHECKING:
    from quiesce.agents import RunContextWrapper

    from .agent import RealtimeAgent

IsEnabled: TypeAlias = "bool | Callable[[RunContextWrapper[Any], RealtimeAgent[Any]], Any]"

_NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


@dataclass(slots=True, eq=False)
class RealtimeHandoff:
    """How one agent may hand over to another: what `realtime_handoff` returns."""

    agent: RealtimeAgent[Any]
    tool_name: str
    tool_description: str
    on_handoff: Callable[..., Any] | None
    is_enabled: IsEnabled
    _input: OutputType | None

    @property
    def spec(self) -> ToolSpec:
        """The handoff as a tool, which is how the model asks for it."""
        schema = self._input.spec.schema if self._input is not None else _NOTHING
        return ToolSpec(self.tool_name, self.tool_description, schema)

    async def invoke(self, context: RunContextWrapper[Any], arguments: str) -> RealtimeAgent[Any]:
        """Tell `on_handoff`, and give the agent that takes over."""
        if self.on_handoff is not None:
            if self._input is None:
                await call_function(self.on_handoff, context)
            else:
                try:
                    given = self._input.decode(arguments)
                except InvalidFinalOutput as error:
                    raise InvalidToolArguments(f"{self.tool_name} was called wrongly: {error}") from None
                await call_function(self.on_handoff, context, given)
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
    """A handoff to `agent`.

    `on_handoff(context)` is called when it happens, async or sync; with an `input_type` it is called with what the model has to say as well.
    """
    if input_type is not None and on_handoff is None:
        raise UserError("input_type is what on_handoff is called with: give on_handoff too")
    if on_handoff is not None:
        wanted = ("context",) if input_type is None else ("context", "input")
        try:
            inspect.signature(on_handoff).bind(*wanted)
        except TypeError:
            raise UserError(
                f"on_handoff is called with ({', '.join(wanted)}), and does not take that"
            ) from None
    about = agent.handoff_description
    return RealtimeHandoff(
        agent,
        tool_name_override or f"transfer_to_{function_name(agent.name)}",
        tool_description_override or f"Hand over to the agent {agent.name}." + (f" {about}" if about else ""),
        on_handoff,
        is_enabled,
        OutputType(input_type) if input_type is not None else None,
    )


def as_handoff(target: Any) -> RealtimeHandoff:
    """Either, as a handoff."""
    from .agent import RealtimeAgent

    if isinstance(target, RealtimeHandoff):
        return target
    if isinstance(target, RealtimeAgent):
        return realtime_handoff(target)
    raise UserError(
        f"handoffs are RealtimeAgents, or made by realtime_handoff(), not {type(target).__name__}"
    )
