"""An agent as a tool of another one. Its run belongs to the tool call, and is stopped with it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import msgspec

from quiesce._lazy import from_above
from quiesce._safe.nested import decoder_of
from quiesce.models import ToolCall

from .errors import InvalidToolArguments, UserError

if TYPE_CHECKING:
    from .agent import Agent
    from .context import RunConfig, ToolContext
    from .hooks import RunHooks

ONE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class AgentToolStreamEvent(TypedDict):
    """What `as_tool(on_stream=...)` is called with: an event of the inner run, its agent, and the call of the tool."""

    event: Any  # a `StreamEvent`, which is of a room above
    agent: Agent[Any]
    tool_call: ToolCall


OnStream: TypeAlias = Callable[[AgentToolStreamEvent], Awaitable[None] | None]


class _OneText(msgspec.Struct):
    input: str


_decode = decoder_of(_OneText)


def invoker(
    agent: Agent[Any],
    max_turns: int | None,
    run_config: RunConfig | None,
    hooks: RunHooks[Any] | None,
    extract_output: Callable[[Any], Awaitable[str] | str] | None,
    on_stream: OnStream | None,
) -> Callable[[ToolContext[Any], str], Awaitable[Any]]:
    """The function of the tool: it runs the agent on the text that it is given."""

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        # The room `run` is above this one and imports it, so it is looked up when it is needed.
        run_as_tool = from_above("quiesce.agents.run.runner", "run_as_tool")
        emit = _teller(agent, context, on_stream) if on_stream is not None else None
        result = await run_as_tool(agent, _said(arguments), context, max_turns, hooks, run_config, emit)
        if result.interruptions:
            names = ", ".join(asked.name for asked in result.interruptions)
            raise UserError(
                f"agent {agent.name!r} is a tool, and nobody can approve its call of {names}: "
                "pass as_tool(run_config=RunConfig(approve=...))"
            )
        if extract_output is not None:
            text = extract_output(result)
            return await text if inspect.isawaitable(text) else text
        return result.final_output

    return invoke


def _teller(
    agent: Agent[Any], context: ToolContext[Any], on_stream: OnStream
) -> Callable[[Any], Awaitable[None]]:
    call = ToolCall(context.tool_call_id, context.tool_name, context.tool_arguments)

    async def tell(event: Any) -> None:
        told = on_stream({"event": event, "agent": agent, "tool_call": call})
        if inspect.isawaitable(told):
            await told

    return tell


def _said(arguments: str) -> str:
    try:
        given: _OneText = _decode(arguments)
        return given.input
    except msgspec.DecodeError as error:
        raise InvalidToolArguments(f'this tool takes one text, {{"input": "..."}}: {error}') from None
