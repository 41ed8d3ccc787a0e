"""What a run carries along: the user's own object, the tokens spent, and the token that says stop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

from quiesce import current_token
from quiesce.kernel.inner import check_grace
from quiesce.models import Item, Model, ModelSettings, Usage

from .argument_checks import check_function, check_model, check_settings, check_text, check_yes_or_no
from .guardrails import check_input_guardrails, check_output_guardrails

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from quiesce import CancelToken, Grace

    from .agent import Agent
    from .guardrails import InputGuardrail, OutputGuardrail
    from .model_input import CallModelInputFilter
    from .tool import FunctionTool

    C = TypeVar("C", default=Any)  # the type of what a user passes to a run as `context`
else:
    from typing import TypeVar

    C = TypeVar("C")  # only type checkers know defaults, until Python 3.13 is the oldest

Approver: TypeAlias = (
    "Callable[[ToolContext[Any], FunctionTool], Awaitable[bool | Rejected] | bool | Rejected]"
)

KEPT = 16_000  # characters of the beginning of an output, and as many of its end
_first_progress = threading.Lock()


class TruncatedOutput:
    """The beginning and the end of a long text that comes in pieces, and how much was left out between them.

    Any thread may add to it while another one reads. It takes a few times the memory of what it keeps,
    however much is added, and in however small pieces.
    """

    __slots__ = ("_dropped", "_head", "_lock", "_most", "_room", "_tail", "_tail_size")

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._room = most  # characters that the beginning still has room for
        self._head: list[str] = []
        self._tail: list[str] = []
        self._tail_size = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def add(self, text: str) -> None:
        """Add a piece at the end."""
        with self._lock:
            if self._room:
                self._head.append(text[: self._room])
                text, self._room = text[self._room :], max(self._room - len(text), 0)
            if text:
                self._tail.append(text)
                self._tail_size += len(text)
                # Not for every piece, as each time copies what is kept.
                if self._tail_size > 2 * self._most:
                    self._cut()

    def _cut(self) -> None:
        end = "".join(self._tail)[-self._most :]
        self._dropped += self._tail_size - len(end)
        self._tail, self._tail_size = [end], len(end)

    def __str__(self) -> str:
        with self._lock:
            if self._tail_size > self._most:
                self._cut()
            head, tail, dropped = "".join(self._head), "".join(self._tail), self._dropped
        return f"{head}\n[... {dropped} characters left out ...]\n{tail}" if dropped else head + tail


@dataclass(slots=True)
class RunContextWrapper(Generic[C]):
    """What instructions, guardrails, hooks and tools get. `context` is what was passed to the run."""

    context: C
    usage: Usage = field(default_factory=Usage)
    #: For `on_agent_start` and `on_start`: the items that the agent begins with.
    turn_input: Sequence[Item] = field(default=(), kw_only=True, repr=False, compare=False)

    @property
    def token(self) -> CancelToken:
        """The token of the work at hand: cancelled as soon as that is to stop."""
        return current_token()


@dataclass(slots=True)
class ToolContext(RunContextWrapper[C]):
    """What a tool gets: the run's context, and which call this is."""

    tool_name: str = ""
    tool_call_id: str = ""
    tool_arguments: str = "{}"
    agent: Agent[Any] | None = None
    #: A thread works on this call, or is to do so, even if the task that waited for it has ended.
    at_work: bool = False
    #: That thread has not begun.
    waits_for_thread: bool = False
    _progress: TruncatedOutput | None = field(default=None, repr=False, compare=False)

    def progress(self, text: str) -> None:
        """Keep a piece of output. If the tool is stopped, its result shows what was kept.

        The first and the last 16,000 characters are kept.
        """
        if self._progress is None:
            with _first_progress:  # several threads of one tool may have something to say
                self._progress = self._progress or TruncatedOutput()
        self._progress.add(text)

    @property
    def output_so_far(self) -> str:
        """What `progress` was given.

        If that is long: its beginning and its end, and how much was left out between them.
        """
        return str(self._progress) if self._progress is not None else ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A no with a reason for the model: what `RunConfig(approve=...)` may return instead of False.

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

    - `model`, `model_settings`: instead of the agents' own.
    - `input_guardrails`, `output_guardrails`: in addition to the agents' own.
    - `max_tool_concurrency`: how many tools of one turn run at once; None for all.
    - `cancel_model_on_guardrail_failure`: False for engines that replay a recorded history, where a model
      call may not be interrupted. If an input guardrail fails, the model's turn is then awaited (bounded by
      its `ModelSettings.timeout`) before the error is raised.
    - `approve`: an async function that is called before a tool with `needs_approval` runs. It returns whether
      the tool may run, or `Rejected` with a reason for the model. Without it, such a call waits, and the run
      ends with `interruptions`.
    - `grace`: the deadlines of its stop; those of the current scope if None. They bound everything that the
      stop waits for: tasks, tools, the session and the hooks. If something does not end and uses up all of
      it, the session and the hooks still get a fifth of it.
    - `call_model_input_filter`: an async or sync function of a `CallModelData`, called before each request to a model.
      It returns the `ModelInputData` that is sent; the history stays as it is.
    - `workflow_name`: makes the run a span of that name, as `trace` does, with `trace_id`, `group_id` and
      `trace_metadata`, unless `tracing_disabled`. No span says what was said, so
      `trace_include_sensitive_data` changes nothing.
    """

    model: Model | None = None
    model_settings: ModelSettings | None = None
    input_guardrails: tuple[InputGuardrail, ...] | list[InputGuardrail] = ()
    output_guardrails: tuple[OutputGuardrail, ...] | list[OutputGuardrail] = ()
    max_tool_concurrency: int | None = None
    cancel_model_on_guardrail_failure: bool = True
    grace: Grace | None = None
    approve: Approver | None = None
    call_model_input_filter: CallModelInputFilter | None = None
    workflow_name: str | None = None
    trace_id: str | None = None
    group_id: str | None = None
    trace_metadata: Mapping[str, Any] | None = None
    tracing_disabled: bool = False
    trace_include_sensitive_data: bool = False

    def __post_init__(self) -> None:
        check_model("a RunConfig", self.model)
        if self.model_settings is not None:
            check_settings("a RunConfig", self.model_settings)
        # The checks make lists of iterators. The class is frozen, so this is the only way to put them in
        # place.
        put = partial(object.__setattr__, self)
        put("input_guardrails", check_input_guardrails("a RunConfig", self.input_guardrails))
        put("output_guardrails", check_output_guardrails("a RunConfig", self.output_guardrails))
        check_grace(self.grace)
        check_function("call_model_input_filter of a RunConfig", self.call_model_input_filter)
        for name in ("workflow_name", "trace_id", "group_id"):
            check_text(f"{name} of a RunConfig", getattr(self, name))
        check_yes_or_no("tracing_disabled", self.tracing_disabled)
        check_yes_or_no("cancel_model_on_guardrail_failure", self.cancel_model_on_guardrail_failure)
        check_function(
            "approve of a RunConfig", self.approve, "write approve=lambda context, tool: True, say"
        )
        limit: Any = self.max_tool_concurrency
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(
                f"max_tool_concurrency must be a whole number from 1 on, or None for no limit, not {limit!r}"
            )
