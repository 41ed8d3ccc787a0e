"""The made-up CLI of `tests.claude`, and the ways to stop it, for the SDK's own options and our drop-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.claude import ways_to_stop
from tests.claude.clis import Cli

from quiesce.dropin.claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    MessageStream,
    PermissionResultAllow,
    create_sdk_mcp_server,
    query,
    tool,
)


def options_for(
    cli: Cli, *turns: list[Any], script: dict[str, Any] | None = None, **more: Any
) -> ClaudeAgentOptions:
    """Options for a CLI that plays this."""
    return ClaudeAgentOptions(cli_path=str(cli.path), env=cli.environment(*turns, **(script or {})), **more)


async def prompts(*texts: str) -> AsyncIterator[dict[str, Any]]:
    """Prompts as a stream, which the SDK wants where it is to ask for permissions."""
    for text in texts:
        message = {"role": "user", "content": text}
        yield {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "s"}


class Stage(ways_to_stop.Stage):
    """What is to be stopped, by the drop-in."""

    options: Any

    def query(self) -> MessageStream:
        asks = self.options.can_use_tool is not None
        return query(prompt=prompts("work") if asks else "work", options=self.options)

    def client(self) -> ClaudeSDKClient:  # type: ignore[override, unused-ignore]
        return ClaudeSDKClient(self.options)


class Dawdler:
    """Something that the CLI calls in our process: it works until it is cancelled, and takes a while to clean up."""

    def __init__(self, cli: Cli, seconds: float = 0.1) -> None:
        self._cli = cli
        self._seconds = seconds
        self.begun = self.cleaned = 0

    async def work(self) -> None:
        self.begun += 1
        self._cli.raise_flag("asked")
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(self._seconds)
            self.cleaned += 1

    def called_by(self, how: str) -> dict[str, Any]:
        """Options with which the CLI calls it: as a "hook", for a "permission", or as a "tool"."""

        async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
            await self.work()
            return {}

        async def may(name: str, given: dict[str, Any], context: Any) -> PermissionResultAllow:
            await self.work()
            return PermissionResultAllow()

        @tool("add", "Adds nothing.", {})
        async def add(given: dict[str, Any]) -> dict[str, Any]:
            await self.work()
            return {"content": []}

        if how == "hook":
            return {"hooks": {"PreToolUse": [HookMatcher(hooks=[hook])]}}
        if how == "permission":
            return {"can_use_tool": may}
        return {"mcp_servers": {"calc": create_sdk_mcp_server("calc", tools=[add])}}

    def turn(self, how: str) -> list[Any]:
        """The turn of a CLI that calls it."""
        return [["mcp", "calc", "add", {}] if how == "tool" else self._cli.ticking(ask=True)]
