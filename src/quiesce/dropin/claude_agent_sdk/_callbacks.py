"""What the CLI calls in this process: hooks, permission callbacks and tools, each in a task of its own.

They would be cancelled more than once: by the CLI, which takes its request back when it is interrupted, and by the
SDK, which cancels what still runs when it closes; tools even at each `await`, by the task groups of MCP. That
would interrupt their clean-up. In a task of its own, a callback is cancelled once, and what has called it waits
for its end. Once a stop has begun, no callback starts any more: its request stays without an answer.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar, cast

import claude_agent_sdk
from claude_agent_sdk import ClaudeAgentOptions

from quiesce import ChildCancelled, ScopeClosed
from quiesce.dropin.handing import replaces
from quiesce.dropin.signatures import with_arguments_of
from quiesce.kernel.inner import GuardedCall, current_backend, users_site

T = TypeVar("T")


def in_own_task(fn: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """`fn`, so that it is cancelled once, however often its caller is."""
    made_at = users_site()

    @wraps(fn)
    async def call(*args: Any, **kwargs: Any) -> T:
        name = getattr(fn, "__name__", "callback")
        try:
            call = GuardedCall.begin(name, partial(fn, *args, **kwargs), (), None, None, made_at)
            return cast(T, await call.result())
        except (ChildCancelled, ScopeClosed):
            raise CancelledError from None

    return call


def check_loop() -> None:
    """The SDK also runs on trio."""
    if current_backend().name != "asyncio":
        raise RuntimeError(
            "quiesce.dropin.claude_agent_sdk is for asyncio: on trio, use claude_agent_sdk itself, or quiesce.claude"
        )


def with_own_tasks(options: ClaudeAgentOptions) -> ClaudeAgentOptions:
    """The same options, with callbacks that run in tasks of their own."""
    changed: Any = copy(options)
    if options.can_use_tool is not None:
        changed.can_use_tool = in_own_task(options.can_use_tool)
    if options.hooks is not None:
        changed.hooks = {
            event: [replace(one, hooks=[in_own_task(hook) for hook in one.hooks]) for one in matchers]
            for event, matchers in options.hooks.items()
        }
    return cast(ClaudeAgentOptions, changed)


@replaces(claude_agent_sdk.create_sdk_mcp_server)
@with_arguments_of(claude_agent_sdk.create_sdk_mcp_server)
def create_sdk_mcp_server(
    name: str, version: str = "1.0.0", tools: Any = None, **kwargs: Any
) -> claude_agent_sdk.McpSdkServerConfig:
    if tools is not None:
        tools = [replace(tool, handler=in_own_task(tool.handler)) for tool in tools]
    return claude_agent_sdk.create_sdk_mcp_server(name, version, tools, **kwargs)
