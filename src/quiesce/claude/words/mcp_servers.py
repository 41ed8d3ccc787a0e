"""MCP servers: their configuration, and what the CLI reports about them.

No `from __future__ import annotations` here: a TypedDict needs real annotations to know which of its keys are
required.
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
    """A server in this process: of `create_sdk_mcp_server`, or a `Server` of the package mcp."""

    type: Literal["sdk"]
    name: str
    instance: Any


McpServerConfig: TypeAlias = (
    McpStdioServerConfig | McpSSEServerConfig | McpHttpServerConfig | McpSdkServerConfig
)


class McpSdkServerConfigStatus(TypedDict):
    """A server in this process, as the CLI reports it."""

    type: Literal["sdk"]
    name: str


class McpClaudeAIProxyServerConfig(TypedDict):
    """A server that the CLI reaches through claude.ai."""

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
    """Hints about a tool, as the CLI reports them."""

    readOnly: bool
    destructive: bool
    openWorld: bool


class McpToolInfo(TypedDict):
    """A tool of a server."""

    name: str
    description: NotRequired[str]
    annotations: NotRequired[McpToolAnnotations]


class McpServerInfo(TypedDict):
    """The name and the version that a server reports."""

    name: str
    version: str


class McpServerStatus(TypedDict):
    """The status of one server; optional fields are present when they are known."""

    name: str
    status: McpServerConnectionStatus
    serverInfo: NotRequired[McpServerInfo]
    error: NotRequired[str]
    config: NotRequired[McpServerStatusConfig]
    scope: NotRequired[str]
    tools: NotRequired[list[McpToolInfo]]


class McpStatusResponse(TypedDict):
    """The status of all servers."""

    mcpServers: list[McpServerStatus]
