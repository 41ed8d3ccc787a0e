"""What runs raise. `AgentsException.run_data` says how far the run came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quiesce import StopReport
    from quiesce.models import Item, Usage

    from .agent import Agent
    from .guardrails import InputGuardrailResult, OutputGuardrailResult, ToolGuardrailFunctionOutput


@dataclass(slots=True)
class RunErrorDetails:
    """How far a run came that has failed: `AgentsException.run_data`.

    `new_items` is everything that the run has added. `blocked` is the part of it that no guardrail has
    passed, and the same of a sub-agent if the error is from there. It is in no session and no conversation,
    and `to_input_list()` leaves it out.
    """

    input: list[Item]
    new_items: list[Item]
    usage: Usage
    last_agent: Agent[Any]
    report: StopReport | None
    blocked: list[Item]
    _kept: list[Item] = field(repr=False)
    input_guardrail_results: list[InputGuardrailResult] = field(default_factory=list, repr=False)
    output_guardrail_results: list[OutputGuardrailResult] = field(default_factory=list, repr=False)

    def to_input_list(self) -> list[Item]:
        """Everything said and done so far, without what was blocked: valid input for the next run."""
        return self.input + self._kept


class AgentsException(Exception):
    """The base of what runs raise themselves. Errors of guardrails, tools and models stay as they are."""

    run_data: RunErrorDetails | None = None


class UserError(AgentsException):
    """The program uses the library wrongly."""


class MaxTurnsExceeded(AgentsException):
    """The model went on asking for tools for more than `max_turns` turns."""


class ToolTimeoutError(AgentsException, TimeoutError):
    """A tool with `timeout_behavior="raise_exception"` took longer than its timeout."""

    def __init__(self, tool_name: str, seconds: float) -> None:
        super().__init__(f"tool {tool_name!r} took longer than its timeout of {seconds:g} s, and was stopped")
        self.tool_name = tool_name
        self.timeout_seconds = seconds


class InvalidToolArguments(AgentsException):
    """The model has called a tool with arguments that the tool does not take."""


class InvalidFinalOutput(AgentsException):
    """The final answer does not have the shape of the agent's `output_type`."""


class GuardrailTripwireTriggered(AgentsException):
    """The base of the four tripwires."""


class InputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """An input guardrail says no."""

    def __init__(self, guardrail_result: InputGuardrailResult) -> None:
        super().__init__(f"input guardrail {guardrail_result.guardrail.get_name()!r} was triggered")
        self.guardrail_result = guardrail_result


class OutputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """An output guardrail says no."""

    def __init__(self, guardrail_result: OutputGuardrailResult) -> None:
        super().__init__(f"output guardrail {guardrail_result.guardrail.get_name()!r} was triggered")
        self.guardrail_result = guardrail_result


class ToolInputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """A tool's input guardrail says that the run must end."""

    def __init__(self, guardrail: Any, output: ToolGuardrailFunctionOutput) -> None:
        super().__init__(f"tool input guardrail {guardrail.get_name()!r} was triggered")
        self.guardrail = guardrail
        self.output = output


class ToolOutputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """A tool's output guardrail says that the run must end."""

    def __init__(self, guardrail: Any, output: ToolGuardrailFunctionOutput) -> None:
        super().__init__(f"tool output guardrail {guardrail.get_name()!r} was triggered")
        self.guardrail = guardrail
        self.output = output


class ConversationBusy(UserError):
    """A conversation runs already, and does one run at a time."""


class ConversationClosed(UserError):
    """The conversation was closed."""
