"""Queries and clients, stopped at every point: nothing is left, and no clean-up is cut."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kernel.audited import ledger, work

from dropin_tests.audited import audit_test
from dropin_tests.claude_agent_sdk.in_memory import InMemory
from dropin_tests.claude_agent_sdk.made_up import prompts
from quiesce import Scope
from quiesce.dropin.claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    PermissionResultAllow,
    create_sdk_mcp_server,
    query,
    tool,
)

TOOL: list[Any] = ["tool", {"times": 1}]
ENDLESS: list[Any] = ["tool", {"ask": False}]

NOT_CLOSED = "the SDK, or a break, drops this generator where it waits; it holds nothing"
NOT_BEGUN = "anyio makes the coroutine of a task that is cancelled before its first step"


async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
    await work(1)
    return {}


async def may(name: str, given: dict[str, Any], context: Any) -> PermissionResultAllow:
    await work(1)
    return PermissionResultAllow()


@tool("add", "Adds nothing.", {})
async def add(given: dict[str, Any]) -> dict[str, Any]:
    await work(1)
    return {"content": [{"type": "text", "text": "done"}]}


def hooked() -> ClaudeAgentOptions:
    return ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})


def at_work(cli: InMemory) -> bool:
    return any(one.at_work for one in cli.place.tools)


async def a_query() -> None:
    ledger.start()
    cli = InMemory([["text", "a"], ["sleep", 1], ["text", "b"]])
    messages = query(prompt="go", transport=cli)
    async for _ in messages:
        pass
    ledger.report(messages.report)


async def a_query_with_a_hook_and_a_permission() -> None:
    ledger.start()
    cli = InMemory([TOOL])
    options = hooked()
    options.can_use_tool = may
    messages = query(prompt=prompts("go"), options=options, transport=cli)
    async for _ in messages:
        pass
    ledger.report(messages.report)


async def a_query_with_a_tool() -> None:
    ledger.start()
    cli = InMemory([["mcp", "calc", "add", {}]], mcp_servers=["calc"])
    options = ClaudeAgentOptions(mcp_servers={"calc": create_sdk_mcp_server("calc", tools=[add])})
    messages = query(prompt="go", options=options, transport=cli)
    async for _ in messages:
        pass
    ledger.report(messages.report)


async def a_query_in_a_block_that_is_left_early() -> None:
    ledger.start()
    cli = InMemory([["text", "a"], ENDLESS])
    async with query(prompt="go", options=hooked(), transport=cli) as messages:
        async for message in messages:
            if isinstance(message, AssistantMessage):
                await asyncio.sleep(0.5)
                break
    ledger.expect(not at_work(cli), "its tool is still at work")
    ledger.report(messages.report)


async def a_query_that_is_left_bare() -> None:
    ledger.start()
    cli = InMemory([["text", "a"], ENDLESS])
    async with Scope("the user's"):
        messages = query(prompt="go", options=hooked(), transport=cli)
        async for message in messages:
            if isinstance(message, AssistantMessage):
                break
        del messages, message
        await asyncio.sleep(10)
    ledger.expect(not at_work(cli), "its tool is still at work")


async def a_query_that_another_task_closes() -> None:
    ledger.start()
    cli = InMemory([["text", "a"], ENDLESS])
    async with query(prompt="go", options=hooked(), transport=cli) as messages:
        closing = asyncio.create_task(close_later(messages))
        try:
            async for _ in messages:
                pass
        finally:
            closing.cancel()
            await asyncio.wait([closing])
    ledger.report(messages.report)


async def close_later(thing: Any) -> None:
    await asyncio.sleep(0.5)
    await thing.close()


async def a_client_with_two_turns() -> None:
    ledger.start()
    cli = InMemory([["text", "a"], ENDLESS], [["text", "b"], TOOL])
    async with ClaudeSDKClient(hooked(), transport=cli) as client:
        await client.query("one")
        async for message in client.receive_response():
            if isinstance(message, AssistantMessage):
                break
        await client.interrupt()
        async for _ in client.receive_response():
            pass
        await client.query("two")
        async for _ in client.receive_response():
            pass
    ledger.expect(not at_work(cli), "its tool is still at work")
    ledger.report(client.report)


async def a_client_that_is_closed_while_a_hook_is_at_work() -> None:
    ledger.start()
    cli = InMemory([TOOL])
    client = ClaudeSDKClient(hooked(), transport=cli)
    await client.connect("one")
    try:
        await asyncio.sleep(0.5)
    finally:
        ledger.report(await client.close())


async def a_client_with_a_tool_that_is_interrupted() -> None:
    ledger.start()
    cli = InMemory([["mcp", "calc", "add", {}]], mcp_servers=["calc"])
    options = ClaudeAgentOptions(mcp_servers={"calc": create_sdk_mcp_server("calc", tools=[add])})
    async with ClaudeSDKClient(options, transport=cli) as client:
        await client.query("one")
        await asyncio.sleep(0.5)
        await client.interrupt()
    ledger.report(client.report)


async def a_client_that_another_task_closes() -> None:
    ledger.start()
    cli = InMemory([["text", "a"], ENDLESS])
    async with ClaudeSDKClient(hooked(), transport=cli) as client:
        await client.query("one")
        closing = asyncio.create_task(close_later(client))
        try:
            async for _ in client.receive_messages():
                pass
        finally:
            closing.cancel()
            await asyncio.wait([closing])
    ledger.report(client.report)


test_stopped_anywhere_nothing_is_left = audit_test(
    [
        a_query,
        a_query_with_a_hook_and_a_permission,
        a_query_with_a_tool,
        a_query_in_a_block_that_is_left_early,
        a_query_that_is_left_bare,
        a_query_that_another_task_closes,
        a_client_with_two_turns,
        a_client_that_is_closed_while_a_hook_is_at_work,
        a_client_with_a_tool_that_is_interrupted,
        a_client_that_another_task_closes,
    ],
    theirs={
        "generator Query.receive_messages": NOT_CLOSED,
        "generator ClaudeSDKClient.receive_*": NOT_CLOSED,
        "unawaited JSONRPCDispatcher*": NOT_BEGUN,
        "unawaited _Session._serve": NOT_BEGUN,
        "unawaited _replay_from_opening_request*": NOT_BEGUN,
        "unclosed *<MemoryObjectReceiveStream>*": "asyncio's end of the loop has interrupted the SDK's close",
    },
)
