"""MCP servers: how a CLI is told of them, and what it says of them when asked.

Annotations are real ones here, not strings: a TypedDict knows by them which of its keys are required.
"""

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict


class McpStdioServerConfig(TypedDict):
    """A server that the CLI starts and talks to over its standard streams."""

    type: NotRequired[Literal["stdio"]]
    command: str
    args: NotRequired[list[str]]
    env: NotRequired[dict[str, str]]


class McpSSEServerConfig(TypedDict):
    """A server at a URL, over server-sent events."""

    type: Literal["sse"]
    url: str
    headers: NotRequired[dict[str, str]]


class McpHttpServerConfig(TypedDict):
    """A server at a URL."""

    type: Literal["http"]
    url: str
    headers: NotRequired[dict[str, str]]


class McpSdkServerConfig(TypedDict):
    """A server in this process, as `create_sdk_mcp_server` makes one. `instance` may also be a `Server` of the official package `mcp`."""

    type: Literal["sdk"]
    name: str
    instance: Any


McpServerConfig: TypeAlias = (
    McpStdioServerConfig | McpSSEServerConfig | McpHttpServerConfig | McpSdkServerConfig
)


class McpSdkServerConfigStatus(TypedDict):
    """A server in this process, as the CLI knows it."""

    type: Literal["sdk"]
    name: str


class McpClaudeAIProxyServerConfig(TypedDict):
    """A server that claude.ai stands in front of."""

    type: Literal["claudeai-proxy"]
    url: str
    id: str


McpServerStatusConfig: TypeAlias = (
    McpStdioServerConfig
    | McpSSEServerConfig
    | McpHttpServerConfig
    | McpSdkServerConfigStatus
    | McpClaudeAIProxyServerConfig
)
McpServerConnectionStatus: TypeAlias = Literal["connected", "failed", "needs-auth", "pending", "disabled"]


class McpToolAnnotations(TypedDict, total=False):
    """What a tool does, as the CLI says it."""

    readOnly: bool
    destructive: bool
    openWorld: bool


class McpToolInfo(TypedDict):
    """A tool of a server."""

    name: str
    description: NotRequired[str]
    annotations: NotRequired[McpToolAnnotations]


class McpServerInfo(TypedDict):
    """What a server says that it is."""

    name: str
    version: str


class McpServerStatus(TypedDict):
    """How it is with one server; what is not required is there when it is known."""

    name: str
    status: McpServerConnectionStatus
    serverInfo: NotRequired[McpServerInfo]
    error: NotRequired[str]
    config: NotRequired[McpServerStatusConfig]
    scope: NotRequired[str]
    tools: NotRequired[list[McpToolInfo]]


class McpStatusResponse(TypedDict):
    """How it is with all of them."""

    mcpServers: list[McpServerStatus]
