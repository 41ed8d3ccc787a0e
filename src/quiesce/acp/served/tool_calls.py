"""How a tool call looks to the client: its title, its kind, the files that it touches, and what came of it.

What is known of a tool is known by its function (`shown_as`), so that a copy of the tool with other options looks the
same.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from quiesce._safe.nested import decode_json, is_deep
from quiesce._safe.text import both_ends, exact, without_line_ends
from quiesce.acp import schema as s
from quiesce.acp.helpers import text_block, tool_content

if TYPE_CHECKING:
    from quiesce.agents import Agent, FunctionTool
    from quiesce.models import ToolCall, ToolResult

Arguments: TypeAlias = "dict[str, Any]"
Preview: TypeAlias = "Callable[[Arguments], Awaitable[Sequence[Any]]]"

_TITLE_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Look:
    """How the calls of a tool are shown."""

    kind: s.ToolKind = "other"
    title: Callable[[Arguments], str] | None = None
    locations: Callable[[Arguments], Sequence[s.ToolCallLocation]] | None = None
    preview: Preview | None = None  # what it is about to do, for who has to approve it


_AS_IT_IS = Look()
_looks: WeakKeyDictionary[Callable[..., Any], Look] = (
    WeakKeyDictionary()
)  # agents may be made for each client


def shown_as(
    tool: FunctionTool,
    kind: s.ToolKind,
    *,
    title: Callable[[Arguments], str] | None = None,
    locations: Callable[[Arguments], Sequence[s.ToolCallLocation]] | None = None,
    preview: Preview | None = None,
) -> FunctionTool:
    """Say how the calls of a tool are shown to a client; returns the tool.

    ```python
    shown_as(search, "search", title=lambda arguments: f"Search for {arguments['query']}")
    ```

    The functions are given the arguments of a call, as the model wrote them. `preview` is an async one that returns
    tool call content (a diff, say) for whoever is asked to approve the call.
    """
    if tool.function is None:
        raise TypeError(
            f"tool {tool.name!r} was made by hand: only what `function_tool` has made can be shown as something"
        )
    _looks[tool.function] = Look(kind, title, locations, preview)
    return tool


def look_of(name: str, agent: Agent[Any]) -> Look:
    """How the calls of the agent's tool of that name are shown; it may also be one of an agent that it hands over to."""
    tool = _find(name, agent, set())
    function = tool.function if tool is not None else None
    return _looks.get(function, _AS_IT_IS) if function is not None else _AS_IT_IS


def _find(name: str, agent: Agent[Any], seen: set[int]) -> FunctionTool | None:
    seen.add(id(agent))
    for tool in agent.tools:
        if tool.name == name:
            return tool
    for target in agent.handoffs:
        other: Any = getattr(target, "agent", target)
        if id(other) not in seen and (found := _find(name, other, seen)) is not None:
            return found
    return None


def arguments_of(text: str) -> Arguments:
    """What the model wrote, if it is an object."""
    plain = _plain(text)
    return plain if isinstance(plain, dict) else {}


def _plain(text: str) -> Any:
    try:
        plain = decode_json(text)
    except ValueError:
        return text
    return plain if not is_deep(plain) else text


def call_shown(call: ToolCall, agent: Agent[Any]) -> dict[str, Any]:
    """The fields that describe a call: for a `tool_call`, and for a permission request."""
    look, arguments = look_of(call.name, agent), arguments_of(call.arguments)
    return {
        "tool_call_id": call.call_id,
        "title": _made(look.title, arguments, None) or exact(call.name),
        "kind": look.kind,
        "locations": list(_made(look.locations, arguments, ())) or None,
        "raw_input": _plain(call.arguments),
    }


def _made(make: Callable[[Arguments], Any] | None, arguments: Arguments, otherwise: Any) -> Any:
    """The model may have written anything: what cannot be shown is not."""
    if make is None:
        return otherwise
    try:
        made = make(arguments)
    except Exception:
        return otherwise
    return both_ends(without_line_ends(exact(made)), _TITLE_LIMIT) if isinstance(made, str) else made


async def previewed(call: ToolCall, agent: Agent[Any]) -> list[Any]:
    """What the call is about to do, all of it: as its tool shows it, else its arguments.

    `OSError` if its tool says that what it would change cannot be shown.
    """
    preview = look_of(call.name, agent).preview
    if preview is not None:
        try:
            return list(await preview(arguments_of(call.arguments)))
        except OSError:
            raise
        except Exception:  # arguments that make no sense: the tool will say so
            pass
    return [tool_content(code_block(exact(f"{call.name} {call.arguments}")))]


def code_block(text: str) -> s.TextContentBlock:
    """Text that a client shows as it is: most take text for Markdown, in which lines are joined, and link definitions and comments vanish."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return text_block(f"{fence}\n{text}\n{fence}")


def result_shown(result: ToolResult, *, with_content: bool) -> dict[str, Any]:
    """The fields that say what came of a call. `with_content`: its tool has shown something better than its output."""
    raw: Mapping[str, Any] = {"outcome": result.outcome, "output": result.output}
    finished = result.outcome == "finished"
    content = None if with_content and finished else [tool_content(text_block(result.output))]
    return {
        "tool_call_id": result.call_id,
        "status": "completed" if finished else "failed",
        "content": content if result.output or not finished else None,
        "raw_output": raw,
    }
