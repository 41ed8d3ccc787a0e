"""What a CLI may do wrong, or be in the middle of, when it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from quiesce.claude import ClaudeAgentOptions, HookMatcher, PermissionResultAllow, create_sdk_mcp_server, tool
from quiesce.kernel.calls.shielded_call import shielded
from tests.claude.clis import Cli


@dataclass
class Fault:
    """How the CLI behaves: `steps` before its tool ticks, or instead of that; and the rest of its script."""

    steps: Callable[[Cli], list[list[Any]]]
    script: dict[str, Any] = field(default_factory=dict)
    ready: str | None = None  # the flag that says it is where it is to be stopped, if its tool does not tick
    extend: Callable[[Cli, ClaudeAgentOptions], None] | None = None

    def options(self, cli: Cli) -> ClaudeAgentOptions:
        options = cli.options([["text", "hello"], *self.steps(cli)], script=self.script)
        if self.extend is not None:
            self.extend(cli, options)
        return options

    async def at_work(self, cli: Cli) -> None:
        await (cli.until(self.ready) if self.ready is not None else cli.until_ticking())


def _ticks(cli: Cli) -> list[list[Any]]:
    return [cli.ticking()]


def _grandchild(*ways: str) -> Callable[[Cli], list[list[Any]]]:
    def steps(cli: Cli) -> list[list[Any]]:
        return [["grandchild", {"ready": cli.file("up"), "ways": list(ways)}], cli.ticking()]

    return steps


def _floods(cli: Cli) -> list[list[Any]]:
    return [["grandchild", {"ready": cli.file("up")}], ["flood", 1000]]


def _asks(cli: Cli) -> list[list[Any]]:
    return [cli.ticking(ask=True)]


def _calls(cli: Cli) -> list[list[Any]]:
    return [["mcp", "calc", "add", {}]]


async def _dawdle(cli: Cli) -> None:
    """Something that is at work until it is cancelled, and then takes a while to clean up."""
    try:
        cli.raise_flag("asked")
        await anyio.sleep(3600)
    finally:

        async def tidy_up() -> None:
            await anyio.sleep(0.03)
            cli.raise_flag("tidy")

        await shielded(tidy_up)


def _with_hook(cli: Cli, options: ClaudeAgentOptions) -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        await _dawdle(cli)

    options.hooks = {"PreToolUse": [HookMatcher(hooks=[hook])]}


def _with_permission(cli: Cli, options: ClaudeAgentOptions) -> None:
    async def may(name: str, given: dict[str, Any], context: Any) -> PermissionResultAllow:
        await _dawdle(cli)
        return PermissionResultAllow()

    options.can_use_tool = may


def _with_server(cli: Cli, options: ClaudeAgentOptions) -> None:
    @tool("add", "Adds nothing.", {})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        await _dawdle(cli)
        return {"content": []}

    options.mcp_servers = {"calc": create_sdk_mcp_server("calc", tools=[add])}


FAULTS = {
    "ignores the end of its input": Fault(_ticks, {"ignore_eof": True}),
    "ignores SIGTERM": Fault(_ticks, {"ignore_eof": True, "ignore_term": True}),
    "never answers an interrupt": Fault(_ticks, {"mute": ["interrupt"]}),
    "never answers, and ignores everything": Fault(
        _ticks, {"mute": ["interrupt"], "ignore_eof": True, "ignore_term": True}
    ),
    "leaves its tool behind": Fault(_ticks, {"mute": ["interrupt"], "leave_tool": True}),
    "floods": Fault(_floods, {}, "up"),
    "floods, and never answers": Fault(_floods, {"mute": ["interrupt"]}, "up"),
    "has a child that holds its stdout": Fault(_grandchild()),
    "has a child that ignores SIGTERM": Fault(_grandchild("deaf")),
    "has a child with a session of its own": Fault(_grandchild("session", "deaf")),
    "waits for a hook": Fault(_ticks, {}, "asked", _with_hook),
    "waits for a permission": Fault(_asks, {}, "asked", _with_permission),
    "waits for a tool of ours": Fault(_calls, {}, "asked", _with_server),
    "waits for a hook, and never answers": Fault(_ticks, {"mute": ["interrupt"]}, "asked", _with_hook),
}
