"""How a tool call looks to the client: its title, its kind, the files that it touches, and its result.

The display of a tool is registered for its function (`shown_as`), so that a copy of the tool with other
options looks the same.
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
class Display:
    """How the calls of a tool are shown."""

    kind: s.ToolKind = "other"
    title: Callable[[Arguments], str] | None = None
    locations: Callable[[Arguments], Sequence[s.ToolCallLocation]] | None = None
    #: For the person who has to approve a call: shows what it is about to do.
    preview: Preview | None = None


_DEFAULT = Display()
# Weak, because a program may make an agent, with its tools, for each client.
_displays: WeakKeyDictionary[Callable[..., Any], Display] = WeakKeyDictionary()


def shown_as(
    tool: FunctionTool,
    kind: s.ToolKind,
    *,
    title: Callable[[Arguments], str] | None = None,
    locations: Callable[[Arguments], Sequence[s.ToolCallLocation]] | None = None,
    preview: Preview | None = None,
) -> FunctionTool:
    """Set how the calls of a tool are shown to a client, and return the tool.

    ```python
    shown_as(search, "search", title=lambda arguments: f"Search for {arguments['query']}")
    ```

    The functions receive the arguments of a call as the model wrote them. `preview` is an async function that
    returns tool call content (a diff, for example) for the person who is asked to approve the call.
    """
    if tool.function is None:
        raise TypeError(
            f"tool {tool.name!r} was made by hand: shown_as only works with tools made by `function_tool`"
        )
    _displays[tool.function] = Display(kind, title, locations, preview)
    return tool


def display_of(name: str, agent: Agent[Any]) -> Display:
    """Return the display of a tool of the agent, or of an agent that it hands over to, by the tool's name."""
    tool = _find(name, agent, set())
    function = tool.function if tool is not None else None
    return _displays.get(function, _DEFAULT) if function is not None else _DEFAULT


def _find(name: str, agent: Agent[Any], visited: set[int]) -> FunctionTool | None:
    visited.add(id(agent))
    for tool in agent.tools:
        if tool.name == name:
            return tool
    for target in agent.handoffs:
        other: Any = getattr(target, "agent", target)
        if id(other) not in visited and (found := _find(name, other, visited)) is not None:
            return found
    return None


def arguments_of(text: str) -> Arguments:
    """Return the arguments that the model wrote; an empty dict if they are not a JSON object."""
    plain = _plain(text)
    return plain if isinstance(plain, dict) else {}


def _plain(text: str) -> Any:
    try:
        plain = decode_json(text)
    except ValueError:
        return text
    return plain if not is_deep(plain) else text


def call_fields(call: ToolCall, agent: Agent[Any]) -> dict[str, Any]:
    """Return the fields that describe a call, for a `tool_call` and for a permission request."""
    display, arguments = display_of(call.name, agent), arguments_of(call.arguments)
    return {
        "tool_call_id": call.call_id,
        "title": _computed(display.title, arguments, None) or exact(call.name),
        "kind": display.kind,
        "locations": list(_computed(display.locations, arguments, ())) or None,
        "raw_input": _plain(call.arguments),
    }


def _computed(make: Callable[[Arguments], Any] | None, arguments: Arguments, default: Any) -> Any:
    """Return `make(arguments)`, or `default` if that fails: the model may have written anything."""
    if make is None:
        return default
    try:
        value = make(arguments)
    except Exception:
        return default
    return both_ends(without_line_ends(exact(value)), _TITLE_LIMIT) if isinstance(value, str) else value


async def preview_of(call: ToolCall, agent: Agent[Any]) -> list[Any]:
    """Return everything that the call is about to do: the preview of its tool, or else its arguments.

    Raises `OSError` if the tool cannot show what it would change.
    """
    preview = display_of(call.name, agent).preview
    if preview is not None:
        try:
            return list(await preview(arguments_of(call.arguments)))
        except OSError:
            raise
        except Exception:
            # The arguments make no sense. The tool itself reports that better than an error here would.
            pass
    return [tool_content(code_block(exact(f"{call.name} {call.arguments}")))]


def code_block(text: str) -> s.TextContentBlock:
    """Return a block of text that a client shows unchanged."""
    # Most clients render text as Markdown, which joins lines, and drops link definitions and comments. A code
    # block keeps them; its fence is longer than any in the text, so that the text cannot end it.
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return text_block(f"{fence}\n{text}\n{fence}")


def result_fields(result: ToolResult, *, with_content: bool) -> dict[str, Any]:
    """Return the fields for the result of a call; `with_content` if its tool has shown content of its own."""
    raw: Mapping[str, Any] = {"outcome": result.outcome, "output": result.output}
    finished = result.outcome == "finished"
    content = None if with_content and finished else [tool_content(text_block(result.output))]
    return {
        "tool_call_id": result.call_id,
        "status": "completed" if finished else "failed",
        "content": content if result.output or not finished else None,
        "raw_output": raw,
    }
