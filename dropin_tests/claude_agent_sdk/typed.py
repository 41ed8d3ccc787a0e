"""A program of a user, for type checkers: the types are the SDK's, and ours where we add something."""

from __future__ import annotations

from typing import Any, assert_type

import claude_agent_sdk
import claude_agent_sdk.types

from quiesce import StopReport
from quiesce.dropin.claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    Message,
    MessageStream,
    PermissionResultAllow,
    ResultMessage,
    TextBlock,
    create_sdk_mcp_server,
    query,
    tool,
)
from quiesce.dropin.claude_agent_sdk.client import ClaudeSDKClient as FromClient
from quiesce.dropin.claude_agent_sdk.query import query as from_query
from quiesce.dropin.claude_agent_sdk.types import (
    HookContext,
    HookInput,
    HookJSONOutput,
    ToolPermissionContext,
)


@tool("add", "Add two numbers", {"a": float, "b": float})
async def add(args: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(args["a"] + args["b"])}]}


async def look(given: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
    return {}


async def may(name: str, given: dict[str, Any], context: ToolPermissionContext) -> PermissionResultAllow:
    return PermissionResultAllow()


def options() -> ClaudeAgentOptions:
    theirs: claude_agent_sdk.ClaudeAgentOptions = ClaudeAgentOptions(
        mcp_servers={"calc": create_sdk_mcp_server("calc", tools=[add])},
        hooks={"PreToolUse": [HookMatcher(matcher="Bash", hooks=[look])]},
        can_use_tool=may,
    )
    return theirs


async def ask() -> None:
    messages = query(prompt="Hello", options=options())
    assert_type(messages, MessageStream)
    async for message in messages:
        assert_type(message, Message)
        assert_type(message, claude_agent_sdk.types.Message)
        if isinstance(message, AssistantMessage):
            for block in message.content:
                if isinstance(block, TextBlock):
                    assert_type(block.text, str)
        elif isinstance(message, ResultMessage):
            break
    assert_type(await messages.close(), StopReport)
    async with from_query(prompt="Hello") as again:
        assert_type(await anext(again), Message)


async def converse() -> None:
    async with ClaudeSDKClient(options()) as client:
        assert_type(client, ClaudeSDKClient)
        as_theirs: claude_agent_sdk.ClaudeSDKClient = client
        await as_theirs.query("Hello")
        async for message in client.receive_response():
            assert_type(message, Message)
        await client.interrupt()
    assert_type(await client.close(), StopReport)
    assert_type(client.report, StopReport | None)
    assert issubclass(FromClient, ClaudeSDKClient)
