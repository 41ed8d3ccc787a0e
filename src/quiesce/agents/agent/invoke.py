"""One call of a tool, in a run or in a realtime session.

Whether it may be made, how long it may take, and what the model is told of a failure.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from quiesce import Reason, Scope
from quiesce._safe.nested import decode_json
from quiesce.kernel.inner import current_backend, spawner_of
from quiesce.models import ToolOutcome

from .context import RunContextWrapper, ToolContext
from .errors import ToolTimeoutError

if TYPE_CHECKING:
    from .tool import FunctionTool


class Deadline:
    """Whether the time ran out before the block had ended."""

    passed = False


@asynccontextmanager
async def move_on_after(seconds: float) -> AsyncIterator[Deadline]:
    """Cancel the block when the time is over, and go on behind it.

    The block is cancelled once, and a cancel from elsewhere is never taken for that of the deadline. anyio's
    own function would cancel again on every turn of the event loop, and so interrupt the clean-up inside.
    """
    deadline = Deadline()
    # On trio a cancel scope cancels again at every checkpoint too, but there that is what code expects.
    if current_backend().name == "trio":
        import trio

        with trio.move_on_after(seconds) as scope:
            yield deadline
        deadline.passed = scope.cancelled_caught
        return
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            yield deadline
    except TimeoutError:
        if not timer.expired():
            raise
        deadline.passed = True


class TimedOutCall(NamedTuple):
    """A call that took too long: what the model is told, and what became of it."""

    text: str
    outcome: ToolOutcome


async def invoke_in_time(
    tool: FunctionTool, context: ToolContext[Any], arguments: str, owner: Scope | None
) -> Any:
    """Call the tool, and return what it returns, or `TimedOutCall` if it took longer than its timeout.

    A tool with `timeout_behavior="raise_exception"` raises `ToolTimeoutError` instead. What does not end in
    time stays owned by `owner`, whose report names it; the caller need not wait for it again.
    """
    if tool.timeout is None:
        return await tool.invoke(context, arguments)
    # A scope of its own, and not of the caller: if the tool ignores its cancel, the caller can go on without
    # it.
    scope = await Scope.open(
        f"tool {tool.name}", on_error="report", on_child_error=_ignore_child_error, scope=owner
    )
    handle = spawner_of(scope)(tool.invoke, context, arguments, name=tool.name)
    try:
        async with move_on_after(tool.timeout):
            await handle.wait()
    except BaseException:
        await scope.close()
        raise
    if handle.done:
        await scope.close()
        return handle.result()
    report = await scope.close(reason=Reason("timeout", f"{tool.name} may take {tool.timeout:g} s"))
    # A tool that looks at its token may return what it has so far. That is better than an error.
    if handle.state == "finished":
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
    # The model should know that a tool may still change something, before it tries again.
    may_run_on = bool(report.left or report.unseen)
    if may_run_on:
        text += ", but it has not ended: it may still be running"
    if context.output_so_far:
        text += f"\nOutput so far:\n{context.output_so_far}"
    return TimedOutCall(text, "still_running" if may_run_on else "failed")


def _ignore_child_error(handle: object, error: BaseException) -> None:
    """Nothing: `handle.result()` raises the error."""


async def is_enabled(thing: Any, context: RunContextWrapper[Any], agent: Any) -> bool:
    """Whether the model may see it at all."""
    enabled: Any = thing.is_enabled
    if callable(enabled):
        enabled = enabled(context, agent)
        if inspect.isawaitable(enabled):
            enabled = await enabled
    return bool(enabled)


async def needs_approval(tool: FunctionTool, context: ToolContext[Any]) -> bool:
    """Whether this call must be approved first."""
    needed: Any = tool.needs_approval
    if callable(needed):
        needed = needed(context, _plain_arguments(context.tool_arguments), context.tool_call_id)
        if inspect.isawaitable(needed):
            needed = await needed
    return bool(needed)


async def failure_text(tool: FunctionTool, context: ToolContext[Any], error: Exception) -> str:
    """What the model is told of this error.

    A timeout is raised instead, if the tool has `timeout_behavior="raise_exception"`.
    """
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
