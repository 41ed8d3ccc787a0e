"""What a run carries along: the user's own object, the tokens spent, and the token that says stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

from quiesce import current_token
from quiesce.kernel.inner import check_grace
from quiesce.models import Model, ModelSettings, Usage

from .argument_checks import check_function, check_model, check_settings, check_yes_or_no
from .context_type import C
from .guardrails import check_input_guardrails, check_output_guardrails
from .truncated_output import TruncatedOutput

if TYPE_CHECKING:
    from quiesce import CancelToken, Grace

    from .agent import Agent
    from .guardrails import InputGuardrail, OutputGuardrail
    from .tool import FunctionTool

Approver: TypeAlias = (
    "Callable[[ToolContext[Any], FunctionTool], Awaitable[bool | Rejected] | bool | Rejected]"
)


@dataclass(slots=True)
class RunContextWrapper(Generic[C]):
    """Given to instructions, guardrails, hooks and tools. `context` is the object that was passed to the run."""

    context: C
    usage: Usage = field(default_factory=Usage)

    @property
    def token(self) -> CancelToken:
        """The token of whoever asks: cancelled as soon as it is to stop."""
        return current_token()


@dataclass(slots=True)
class ToolContext(RunContextWrapper[C]):
    """What a tool gets: the run's context, and which call this is."""

    tool_name: str = ""
    tool_call_id: str = ""
    tool_arguments: str = "{}"
    agent: Agent[Any] | None = None
    at_work: bool = False  # a thread is busy with this call, whatever became of who waits for it
    waits_for_thread: bool = False  # and has not begun
    _progress: TruncatedOutput = field(default_factory=TruncatedOutput, repr=False, compare=False)

    def progress(self, text: str) -> None:
        """Keep a piece of output. If the tool is stopped, what it has kept is its result's output so far.

        Of much, the first and the last 16,000 characters are kept.
        """
        self._progress.add(text)

    @property
    def output_so_far(self) -> str:
        """What `progress` was given; of much, its beginning and its end, and between them how much was left out."""
        return str(self._progress)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A no with a reason, which the model is told: what `RunConfig(approve=...)` may return in place of False.

    ```python
    async def approve(context, tool):
        return True if tool.name != "shell" else Rejected("There is no shell here: use the file tools.")
    ```
    """

    message: str

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What holds for a whole run, for every agent in it.

    - `model`, `model_settings`: in place of the agents' own.
    - `input_guardrails`, `output_guardrails`: beside the agents' own.
    - `max_tool_concurrency`: how many tools of one turn run at once; None for all.
    - `cancel_model_on_guardrail_failure`: False for engines that replay a recorded history, where a model call may not be cut: if an input
      guardrail fails, the model's turn is left to finish (bounded by its `ModelSettings.timeout`) and awaited before the error is raised.
    - `approve`: an async function that is asked before a tool with `needs_approval` runs; it returns whether it may, or `Rejected` with a reason for
      the model. Without one such a call is left pending, and the run ends with `interruptions`.
    - `grace`: the deadlines of its stop; those of the current scope if None. They bound all that the stop waits for: tasks, tools, the session
      and the hooks. If something does not end, and uses all of it up, the session and the hooks still have a fifth of it.
    """

    model: Model | None = None
    model_settings: ModelSettings | None = None
    input_guardrails: tuple[InputGuardrail, ...] | list[InputGuardrail] = ()
    output_guardrails: tuple[OutputGuardrail, ...] | list[OutputGuardrail] = ()
    max_tool_concurrency: int | None = None
    cancel_model_on_guardrail_failure: bool = True
    grace: Grace | None = None
    approve: Approver | None = None

    def __post_init__(self) -> None:
        check_model("a RunConfig", self.model)
        if self.model_settings is not None:
            check_settings("a RunConfig", self.model_settings)
        # Frozen: what an iterator gave is put in its place in the one way that is left.
        put = partial(object.__setattr__, self)
        put("input_guardrails", check_input_guardrails("a RunConfig", self.input_guardrails))
        put("output_guardrails", check_output_guardrails("a RunConfig", self.output_guardrails))
        check_grace(self.grace)
        check_yes_or_no("cancel_model_on_guardrail_failure", self.cancel_model_on_guardrail_failure)
        check_function(
            "approve of a RunConfig", self.approve, "write approve=lambda context, tool: True, say"
        )
        limit: Any = self.max_tool_concurrency
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(
                f"max_tool_concurrency must be a whole number from 1 on, or None for no limit, not {limit!r}"
            )
