"""The SDKs, in the versions that the file of their name pins, and the ways to stop them."""

from __future__ import annotations

from dataclasses import dataclass, field

STOPS = {
    "cancel": "cancelled once",
    "cancel-2": "cancelled twice",
    "cancel-3": "cancelled three times",
    "timeout": "timeout",
    "break": "break out of the loop",
    "elsewhere": "closed by another task",
    "order": "two, closed first in, first out",
    "ctrl-c-2": "Ctrl-C twice",
    "killed": "program killed",
}


@dataclass(frozen=True)
class Peer:
    """One SDK in one version: the module `peers.<module>` holds its scenarios."""

    module: str
    package: str  # whose version the table shows
    environment: str  # of its file of versions, without .txt
    scenarios: tuple[str, ...]
    minor: int = 11  # of the oldest Python 3 that it runs on
    is_heavy: bool = False  # where it cannot be installed it is left out, and said to be
    settings: dict[str, str] = field(default_factory=dict)  # environment variables
    newest: str = ""  # what pip is asked for when the newest release is looked at, if that is not the package


PEERS = (
    Peer("mcp_stdio", "mcp", "mcp-2", ("polite", "deaf")),
    Peer("mcp_http", "mcp", "mcp-2", ("streamable_http",)),
    Peer("mcp_stdio", "mcp", "mcp-1", ("polite", "deaf"), newest="mcp<2"),
    Peer("mcp_http", "mcp", "mcp-1", ("streamable_http",), newest="mcp<2"),
    Peer("httpx_stream", "httpx", "mcp-2", ("lines",)),
    Peer("openai_agents", "openai-agents", "openai-agents", ("run", "streamed")),
    Peer("claude_agent", "claude-agent-sdk", "claude-agent-sdk", ("one_query", "client")),
    Peer("acp_connection", "agent-client-protocol", "agent-client-protocol", ("prompt", "serve")),
    Peer(
        "pydantic_ai_run",
        "pydantic-ai-slim",
        "pydantic-ai",
        ("run", "deaf_tool", "streamed"),
        newest="pydantic-ai-slim[mcp,openai]",
    ),
    Peer(
        "openhands_conversation",
        "openhands-sdk",
        "openhands-sdk",
        ("arun",),
        minor=12,
        is_heavy=True,
        settings={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1"},
    ),
)

# What continuous integration runs: one environment, the cells that say most.
FAST = {
    ("mcp_stdio", "mcp-2", "polite"): ("cancel-3", "elsewhere", "order"),
    ("mcp_stdio", "mcp-2", "deaf"): ("cancel-2", "ctrl-c-2"),
    ("httpx_stream", "mcp-2", "lines"): ("cancel-2", "break", "elsewhere"),
}
