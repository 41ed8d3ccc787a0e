"""Tools in this process, which a CLI calls as those of an MCP server.

`create_sdk_mcp_server` gives a description, which any number of sessions may share: what is at work for one of them is its `InProcessServer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from quiesce._extras import require
from quiesce.claude.types import McpSdkServerConfig

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
    """Hints about a tool, each by the name that it has in MCP or as Python would write it: `readOnlyHint` or `read_only_hint`.

    `maxResultSizeChars` is Claude Code's own: up to that size a result stays in the conversation, instead of in a file.
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

    def __getattr__(self, name: str) -> Any:  # only asked for what is not there: the other spelling
        if name in _HINTS:
            return self.__dict__[_HINTS[name]]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolAnnotations) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items() if value is not None)
        return f"ToolAnnotations({said})"


@dataclass
class SdkMcpTool(Generic[T]):
    """A tool: what the model is told of it, and the async function that it is. `tool` makes one."""

    name: str
    description: str
    input_schema: type[T] | dict[str, Any]
    handler: Callable[[T], Awaitable[dict[str, Any]]]
    annotations: Any = None  # a ToolAnnotations, ours or the package mcp's


def tool(
    name: str, description: str, input_schema: InputSchema, annotations: Any = None
) -> Callable[[Callable[[Any], Awaitable[dict[str, Any]]]], SdkMcpTool[Any]]:
    """Make a tool of an async function, which is called with a dict and returns one with `content`.

    ```python
    @tool("greet", "Greet somebody", {"name": str})
    async def greet(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": f"Hello, {args['name']}!"}]}
    ```

    The input is checked first. `input_schema` is names and types, a TypedDict, or a JSON schema; `Annotated[str, "whom to greet"]` describes one.
    What the function raises, or returns with `"is_error": True`, the model is told as an error.
    """

    def made(handler: Callable[[Any], Awaitable[dict[str, Any]]]) -> SdkMcpTool[Any]:
        return SdkMcpTool(name, description, input_schema, handler, annotations)

    return made


def create_sdk_mcp_server(
    name: str, version: str = "1.0.0", tools: list[SdkMcpTool[Any]] | None = None
) -> McpSdkServerConfig:
    """A server of these tools, for `ClaudeAgentOptions(mcp_servers={name: ...})`."""
    return McpSdkServerConfig(type="sdk", name=name, instance=ToolServer(name, version, tools or []))


class ToolServer:
    """What `instance` of a config is: the tools, as the CLI is told of them and by name."""

    def __init__(self, name: str, version: str, tools: list[SdkMcpTool[Any]]) -> None:
        self.name = name
        self.version = version
        self.tools = {one.name: _Checked(one) for one in tools}
        self.listed = [_listed(one, self.tools[one.name].schema) for one in tools]

    def __repr__(self) -> str:
        return f"<ToolServer {self.name!r} {self.version}, tools: {', '.join(self.tools) or 'none'}>"


class _Checked:
    """A tool and the check of its input, which is made once, when it is first needed."""

    def __init__(self, declared: SdkMcpTool[Any]) -> None:
        self._jsonschema: Any = require("jsonschema", "claude", "create_sdk_mcp_server with tools")
        self.handler = declared.handler
        self.schema = input_schema_of(declared.input_schema)
        self._validator: Any = None

    def complaint(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments; None if nothing is."""
        if self._validator is None:
            kind = self._jsonschema.validators.validator_for(self.schema)
            try:
                kind.check_schema(self.schema)
            except self._jsonschema.SchemaError as error:
                return f"Input schema error: {error.message}"
            self._validator = kind(self.schema)
        worst = self._jsonschema.exceptions.best_match(self._validator.iter_errors(arguments))
        return None if worst is None else f"Input validation error: {worst.message}"


def _listed(declared: SdkMcpTool[Any], schema: dict[str, Any]) -> dict[str, Any]:
    listed: dict[str, Any] = {
        "name": declared.name,
        "description": declared.description,
        "inputSchema": schema,
    }
    hints = _hints(declared.annotations)
    # No hint of MCP's, so it travels beside them.
    limit = hints.pop("maxResultSizeChars", None)
    if declared.annotations is not None:
        listed["annotations"] = hints
    if limit is not None:
        listed["_meta"] = {"anthropic/maxResultSizeChars": limit}
    return listed


def _hints(annotations: Any) -> dict[str, Any]:
    """The hints that were given, by their names in MCP; of ours, or of either major of the package mcp."""
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
