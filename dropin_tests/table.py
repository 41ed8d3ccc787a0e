"""The SDKs whose drop-ins are tested: a row here, a folder with tests, and a file of versions in peers/."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sdk:
    """One SDK in one version."""

    folder: str  # of its tests, in dropin_tests/
    versions: str  # the file in peers/ that names every package of the environment, without .txt
    package: str  # the drop-in, whose types are checked where the SDK is known
    minor: int = 12  # of the oldest Python 3 for it; 12 has eager tasks
    typed: tuple[str, ...] = ("typed.py",)  # programs of a user, for type checkers


SDKS = (
    Sdk("openai_agents", "openai-agents", "quiesce.dropin.agents"),
    Sdk("acp", "agent-client-protocol", "quiesce.dropin.acp"),
    Sdk("claude_agent_sdk", "claude-agent-sdk", "quiesce.dropin.claude_agent_sdk"),
    Sdk("mcp", "mcp-2", "quiesce.dropin.mcp", typed=("typed.py", "typed_clients.py")),
    Sdk("mcp", "mcp-1", "quiesce.dropin.mcp"),
    Sdk("openhands", "openhands-tools", "quiesce.dropin.openhands"),
    Sdk("pydantic_ai", "pydantic-ai", "quiesce.dropin.pydantic_ai"),
    Sdk("pydantic_ai", "pydantic-ai-2.68", "quiesce.dropin.pydantic_ai"),
)
