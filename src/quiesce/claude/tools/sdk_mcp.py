"""Tools in this process, which the CLI calls as tools of an MCP server.

`create_sdk_mcp_server` returns a description that any number of sessions may share. Each session has an
`InProcessServer` of its own, which holds its running calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from quiesce._extras import require
from quiesce.claude.words import McpSdkServerConfig

from .input_schema import InputSchema, input_schema_of

T = TypeVar("T")

_HINTS: Final = {
    "title": "title",
    "read_only_hint": "readOnlyHint",
    "destructive_hint": "destructiveHint",
    "idempotent_hint": "idempotentHint",
    "open_world_hint": "openWorldHint",
    "max_result_size_chars": "maxResultSizeChars",
}


class ToolAnnotations:
    """Hints about a tool, each by its MCP name or in Python's spelling: `readOnlyHint` or `read_only_hint`.

    `maxResultSizeChars` is Claude Code's own: results up to that size stay in the conversation, longer ones
    go to a file.
    """

    def __init__(
        self,
        *,
        title: str | None = None,
        readOnlyHint: bool | None = None,  # noqa: N803
        read_only_hint: bool | None = None,
        destructiveHint: bool | None = None,  # noqa: N803
        destructive_hint: bool | None = None,
        idempotentHint: bool | None = None,  # noqa: N803
        idempotent_hint: bool | None = None,
        openWorldHint: bool | None = None,  # noqa: N803
        open_world_hint: bool | None = None,
        maxResultSizeChars: int | None = None,  # noqa: N803
        max_result_size_chars: int | None = None,
        **extra: Any,
    ) -> None:
        self.title = title
        self.readOnlyHint = read_only_hint if readOnlyHint is None else readOnlyHint
        self.destructiveHint = destructive_hint if destructiveHint is None else destructiveHint
        self.idempotentHint = idempotent_hint if idempotentHint is None else idempotentHint
        self.openWorldHint = open_world_hint if openWorldHint is None else openWorldHint
        self.maxResultSizeChars = max_result_size_chars if maxResultSizeChars is None else maxResultSizeChars
        self.__dict__.update(extra)

    # Called only for names that are not in `__dict__`: the snake_case spellings.
    def __getattr__(self, name: str) -> Any:
        if name in _HINTS:
            return self.__dict__[_HINTS[name]]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolAnnotations) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __repr__(self) -> str:
        hints = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items() if value is not None)
        return f"ToolAnnotations({hints})"


@dataclass
class SdkMcpTool(Generic[T]):
    """A tool: its description for the model, and the async function behind it. `tool` makes one."""

    name: str
    description: str
    input_schema: type[T] | dict[str, Any]
    handler: Callable[[T], Awaitable[dict[str, Any]]]
    annotations: Any = None  # a ToolAnnotations, ours or the package mcp's


def tool(
    name: str, description: str, input_schema: InputSchema, annotations: Any = None
) -> Callable[[Callable[[Any], Awaitable[dict[str, Any]]]], SdkMcpTool[Any]]:
    """Turn an async function, which takes a dict and returns one with `content`, into a tool.

    ```python
    @tool("greet", "Greet a person", {"name": str})
    async def greet(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": f"Hello, {args['name']}!"}]}
    ```

    The input is checked before each call. `input_schema` is a dict of names and types, a TypedDict, or a JSON
    schema; `Annotated[str, "whom to greet"]` adds a description to a parameter. If the function raises, or
    returns `"is_error": True`, the model gets an error.
    """

    def decorate(handler: Callable[[Any], Awaitable[dict[str, Any]]]) -> SdkMcpTool[Any]:
        return SdkMcpTool(name, description, input_schema, handler, annotations)

    return decorate


def create_sdk_mcp_server(
    name: str, version: str = "1.0.0", tools: list[SdkMcpTool[Any]] | None = None
) -> McpSdkServerConfig:
    """Return a server of these tools, for `ClaudeAgentOptions(mcp_servers={name: ...})`."""
    return McpSdkServerConfig(type="sdk", name=name, instance=ToolServer(name, version, tools or []))


class ToolServer:
    """The `instance` of a configuration: the tools by name, and the list of them that goes to the CLI."""

    def __init__(self, name: str, version: str, tools: list[SdkMcpTool[Any]]) -> None:
        self.name = name
        self.version = version
        self.tools = {one.name: _CheckedTool(one) for one in tools}
        self.listed = [_listed(one, self.tools[one.name].schema) for one in tools]

    def __repr__(self) -> str:
        return f"<ToolServer {self.name!r} {self.version}, tools: {', '.join(self.tools) or 'none'}>"


class _CheckedTool:
    """A tool and the validator of its input, which is made when it is first needed."""

    def __init__(self, declared: SdkMcpTool[Any]) -> None:
        self._jsonschema: Any = require("jsonschema", "claude", "create_sdk_mcp_server with tools")
        self.handler = declared.handler
        self.schema = input_schema_of(declared.input_schema)
        self._validator: Any = None

    def complaint(self, arguments: dict[str, Any]) -> str | None:
        """Return what is wrong with the arguments, or None."""
        # Lazily, and not in the constructor: a wrong schema is then an error that the model reads, as in the
        # SDK.
        if self._validator is None:
            kind = self._jsonschema.validators.validator_for(self.schema)
            try:
                kind.check_schema(self.schema)
            except self._jsonschema.SchemaError as error:
                return f"Input schema error: {error.message}"
            self._validator = kind(self.schema)
        # One error is enough for the model, and `best_match` picks the most specific one.
        worst = self._jsonschema.exceptions.best_match(self._validator.iter_errors(arguments))
        return None if worst is None else f"Input validation error: {worst.message}"


def _listed(declared: SdkMcpTool[Any], schema: dict[str, Any]) -> dict[str, Any]:
    listed: dict[str, Any] = {
        "name": declared.name,
        "description": declared.description,
        "inputSchema": schema,
    }
    hints = _hints(declared.annotations)
    # MCP has no such hint, so it goes into `_meta`, where the CLI looks for it.
    limit = hints.pop("maxResultSizeChars", None)
    if declared.annotations is not None:
        listed["annotations"] = hints
    if limit is not None:
        listed["_meta"] = {"anthropic/maxResultSizeChars": limit}
    return listed


def _hints(annotations: Any) -> dict[str, Any]:
    """Return the hints that were given, by their MCP names; from our class, a dict, or mcp 1.x or 2.x."""
    found: dict[str, Any] = {}
    for snake, wire in _HINTS.items():
        for name in (wire, snake):
            value = (
                annotations.get(name)
                if isinstance(annotations, Mapping)
                else getattr(annotations, name, None)
            )
            if value is not None:
                found.setdefault(wire, value)
    return found
