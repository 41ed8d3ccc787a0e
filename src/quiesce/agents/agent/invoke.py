"""One call of a tool, whoever runs it: whether it may be made, how long it may take, and what is said of a failure."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from quiesce import Reason, Scope
from quiesce._safe.nested import decode_json
from quiesce.kernel.inner import spawner_of
from quiesce.models import ToolOutcome

from .context import RunContextWrapper, ToolContext
from .deadline import ends_within
from .errors import ToolTimeoutError

if TYPE_CHECKING:
    from .tool import FunctionTool


class TimedOutCall(NamedTuple):
    """A call that took too long: what the model is told, and what became of it."""

    text: str
    outcome: ToolOutcome


async def invoke_in_time(
    tool: FunctionTool, context: ToolContext[Any], arguments: str, owner: Scope | None
) -> Any:
    """Call it, and give what it returns, or `TimedOutCall` if it took longer than its timeout and is not to raise.

    What does not end in time stays owned by `owner`, which names it at its end; whoever waits here need not wait for it again.
    """
    if tool.timeout is None:
        return await tool.invoke(context, arguments)
    scope = await Scope.open(
        f"tool {tool.name}", on_error="report", on_child_error=_told_elsewhere, scope=owner
    )
    handle = spawner_of(scope)(tool.invoke, context, arguments, name=tool.name)
    try:
        in_time = await ends_within(handle, tool.timeout)
    except BaseException:
        await scope.close()
        raise
    if in_time:
        await scope.close()
        return handle.result()
    report = await scope.close(reason=Reason("timeout", f"{tool.name} may take {tool.timeout:g} s"))
    if handle.state == "finished":  # it turned its cancel into a value
        return handle.result()
    timed_out = ToolTimeoutError(tool.name, tool.timeout)
    never_began = (
        f"tool {tool.name!r} was not started: it waited for a thread for {tool.timeout:g} s, its timeout"
    )
    if tool.timeout_behavior == "raise_exception":
        if context.waits_for_thread:
            timed_out.add_note(never_began)
        raise timed_out
    if context.waits_for_thread:
        return TimedOutCall(never_began, "not_started")
    text = str(timed_out)
    may_run_on = bool(report.left or report.unseen)
    if may_run_on:
        text += ", but it has not ended: it may still be running"
    if context.output_so_far:
        text += f"\nOutput so far:\n{context.output_so_far}"
    return TimedOutCall(text, "still_running" if may_run_on else "failed")


def _told_elsewhere(handle: object, error: BaseException) -> None:
    """`handle.result()` raises it."""


async def is_enabled(thing: Any, context: RunContextWrapper[Any], agent: Any) -> bool:
    """Whether the model may see it at all."""
    enabled: Any = thing.is_enabled
    if callable(enabled):
        enabled = enabled(context, agent)
        if inspect.isawaitable(enabled):
            enabled = await enabled
    return bool(enabled)


async def needs_approval(tool: FunctionTool, context: ToolContext[Any]) -> bool:
    """Whether somebody must approve this call first."""
    needed: Any = tool.needs_approval
    if callable(needed):
        needed = needed(context, _plain_arguments(context.tool_arguments), context.tool_call_id)
        if inspect.isawaitable(needed):
            needed = await needed
    return bool(needed)


async def failure_text(tool: FunctionTool, context: ToolContext[Any], error: Exception) -> str:
    """What the model is told of this error; that of a tool that must not take so long is raised."""
    assert tool.failure_error_function is not None
    if isinstance(error, ToolTimeoutError) and tool.timeout_behavior == "raise_exception":
        raise error
    text = tool.failure_error_function(context, error)
    return await text if inspect.isawaitable(text) else text


def _plain_arguments(text: str) -> dict[str, Any]:
    """The arguments as the model wrote them, unchecked; none if it wrote something else."""
    try:
        plain = decode_json(text)
    except msgspec.DecodeError:
        return {}
    return plain if isinstance(plain, dict) else {}
