"""What the outputs of an agent's tools mean: more for the model to read, or the final output of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from quiesce.models import ToolResult

from .argument_checks import refuse
from .guardrails import MaybeAwaitable, call_function

if TYPE_CHECKING:
    from .context import RunContextWrapper
    from .tool import FunctionTool


class StopAtTools(TypedDict):
    """A `tool_use_behavior`: the output of the first of these tools that is called is the final output."""

    stop_at_tool_names: list[str]


@dataclass(slots=True)
class FunctionToolResult:
    """What a tool has returned in a turn: `output` as it was returned, `run_item` as it is in the transcript."""

    tool: FunctionTool
    output: Any
    run_item: ToolResult


@dataclass(slots=True)
class ToolsToFinalOutputResult:
    """What a function as `tool_use_behavior` returns: whether there is a final output now, and which."""

    is_final_output: bool
    final_output: Any = None


ToolsToFinalOutputFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", list[FunctionToolResult]], MaybeAwaitable[ToolsToFinalOutputResult]
]
ToolUseBehavior: TypeAlias = (
    Literal["run_llm_again", "stop_on_first_tool"] | StopAtTools | ToolsToFinalOutputFunction
)


def check_tool_use(agent: str, behavior: Any) -> None:
    """A `tool_use_behavior`, or an error that says what one is."""
    if behavior in ("run_llm_again", "stop_on_first_tool") or callable(behavior):
        return
    if isinstance(behavior, Mapping):
        names: Any = behavior.get("stop_at_tool_names")
        if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
            return
    refuse(
        f"the tool_use_behavior of agent {agent!r}",
        "'run_llm_again', 'stop_on_first_tool', {'stop_at_tool_names': [...]} or a function",
        behavior,
    )


async def final_of(
    behavior: ToolUseBehavior, context: RunContextWrapper[Any], results: Sequence[FunctionToolResult]
) -> tuple[Sequence[FunctionToolResult], Any] | None:
    """The final output that these results make, and those of them that it was made of; None if there is none yet."""
    if callable(behavior):
        if not results:
            return None
        verdict = await call_function(behavior, context, list(results))
        if not isinstance(verdict, ToolsToFinalOutputResult):
            raise TypeError(
                f"a tool_use_behavior must return a ToolsToFinalOutputResult, and returned {type(verdict).__name__}"
            )
        return (results, verdict.final_output) if verdict.is_final_output else None
    for result in results:
        if isinstance(behavior, str) or result.tool.name in behavior["stop_at_tool_names"]:
            return [result], result.output
    return None
