"""Handoffs: how one agent may hand over to another, and what that one sees of the history.

A handoff is a tool to the model. The run takes it as a choice of the next agent: nothing is called but `on_handoff`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from quiesce.models import Item, ToolSpec
from quiesce.models.inner import InputItem, as_items

from .agent import Agent, function_name, instead_of_handoff
from .argument_checks import check_function, check_text, check_yes_or_no, refuse
from .errors import InvalidToolArguments, UserError
from .output import OutputType

if TYPE_CHECKING:
    from .context import RunContextWrapper
    from .guardrails import MaybeAwaitable
    from .tool import IsEnabled

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class HandoffInputData(list[Item]):
    """What an `input_filter` gets: the items of the run so far, as a list, and as the three parts of it.

    - `input_history`: what the run began with, or what an earlier filter has left.
    - `pre_handoff_items`: what was added before the turn that hands over.
    - `new_items`: what was added in that turn, with the handoff and the answer to it.

    A filter returns another one, made with some parts changed (`clone`), or a plain list of items.
    """

    __slots__ = ("input_history", "new_items", "pre_handoff_items", "run_context")

    def __init__(
        self,
        input_history: str | Iterable[InputItem] = (),
        pre_handoff_items: Iterable[InputItem] = (),
        new_items: Iterable[InputItem] = (),
        run_context: RunContextWrapper[Any] | None = None,
    ) -> None:
        self.input_history = tuple(as_items(input_history))
        self.pre_handoff_items = tuple(as_items(pre_handoff_items))
        self.new_items = tuple(as_items(new_items))
        self.run_context = run_context
        super().__init__((*self.input_history, *self.pre_handoff_items, *self.new_items))

    def clone(self, **changes: Any) -> HandoffInputData:
        """A copy with some parts changed."""
        parts = {name: getattr(self, name) for name in sorted(HandoffInputData.__slots__)}
        return HandoffInputData(**{**parts, **changes})


@dataclass(slots=True)
class Handoff:
    """How one agent may hand over to another: under which tool name, and with which part of the history.

    - `on_handoff` is called with the run's context when it happens. With `input_type`, the model has to give a value
      of that type with the handoff, which is the second argument.
    - `input_filter` gets the items of the run so far (`HandoffInputData`), and returns those that the next agent sees.
    - `is_enabled`: whether the model sees the handoff at all, or a function of `(context, agent)` that decides it.
    """

    agent: Agent[Any]
    tool_name: str = ""
    tool_description: str = ""
    on_handoff: Callable[..., Any] | None = None
    input_filter: Callable[[HandoffInputData], MaybeAwaitable[list[Item]]] | None = None
    input_type: Any = None
    is_enabled: IsEnabled = True
    _input: OutputType | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.agent, Agent):
            refuse("what a handoff goes to", "an Agent", self.agent, instead_of_handoff(self.agent))
        this = f"the handoff to {self.agent.name!r}"
        check_text(f"the tool_name of {this}", self.tool_name)
        check_text(f"the tool_description of {this}", self.tool_description)
        check_function(f"on_handoff of {this}", self.on_handoff)
        check_function(f"input_filter of {this}", self.input_filter)
        check_yes_or_no(f"is_enabled of {this}", self.is_enabled)
        if self.input_type is not None and self.on_handoff is None:
            raise UserError(f"{this} has an input_type, and no on_handoff that would get the input: add one")
        self.tool_name = self.tool_name or f"transfer_to_{function_name(self.agent.name)}"
        if not self.tool_description:
            about = self.agent.handoff_description
            self.tool_description = f"Hand over to the agent {self.agent.name}." + (
                f" {about}" if about else ""
            )
        self._input = OutputType(self.input_type) if self.input_type is not None else None

    @property
    def spec(self) -> ToolSpec:
        """The handoff as a tool, which is how the model asks for it."""
        parameters = _NO_ARGUMENTS if self._input is None else self._input.spec.schema
        return ToolSpec(self.tool_name, self.tool_description, parameters)

    def read_input(self, arguments: str) -> tuple[Any, ...]:
        """What `on_handoff` gets besides the context, of the model's JSON."""
        if self._input is None:
            return ()
        try:
            return (self._input.read(arguments),)
        except ValueError as error:  # msgspec's and pydantic's errors both are one
            raise InvalidToolArguments(
                f"{self.tool_name} needs a valid {self._input.name}: {error}"
            ) from error


def handoff(
    agent: Agent[Any],
    tool_name_override: str | None = None,
    tool_description_override: str | None = None,
    on_handoff: Callable[..., Any] | None = None,
    input_type: Any = None,
    input_filter: Callable[[HandoffInputData], MaybeAwaitable[list[Item]]] | None = None,
    is_enabled: bool | Callable[[RunContextWrapper[Any], Agent[Any]], Awaitable[bool] | bool] = True,
    *,
    tool_name: str = "",
    tool_description: str = "",
) -> Handoff:
    """A handoff to `agent`, with options: see `Handoff`.

    `tool_name_override` and `tool_description_override` are OpenAI's names for `tool_name` and `tool_description`.
    """
    return Handoff(
        agent,
        _one_of("tool_name", tool_name, tool_name_override),
        _one_of("tool_description", tool_description, tool_description_override),
        on_handoff,
        input_filter,
        input_type,
        is_enabled,
    )


def _one_of(name: Literal["tool_name", "tool_description"], given: str, override: str | None) -> str:
    if given and override is not None:
        raise UserError(
            f"a handoff was given both {name} and {name}_override, which mean the same: leave one out"
        )
    return given if override is None else override


def as_handoff(target: Agent[Any] | Handoff) -> Handoff:
    """An agent or a handoff, as a `Handoff`."""
    if isinstance(target, Handoff):
        return target
    if isinstance(target, Agent):
        return Handoff(target)
    raise UserError(f"handoffs are agents or Handoffs, not {type(target).__name__}")
