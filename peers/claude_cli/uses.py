"""What a program does with the CLI besides stopping it: each asserts what the CLI made of it, and that
nothing is left.
"""

from __future__ import annotations

from typing import Any

import anyio

from quiesce.claude import (
    AssistantMessage,
    ClaudeSDKClient,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    ToolResultBlock,
    UserMessage,
    create_sdk_mcp_server,
    query,
    tool,
)

from .stage import START, Stage, bash
from .stops import Program


async def to_the_result(stage: Stage) -> None:
    made = stage.file("made")
    messages = [message async for message in query(prompt=bash(f"touch {made}"), options=stage.options())]
    stage.look()
    assert result_of(messages) == ("success", "Done."), messages
    assert any(isinstance(message, AssistantMessage) for message in messages)
    assert made.exists()


async def interrupted_and_asked_again(stage: Stage) -> None:
    """The result of the interrupted turn is not taken for that of the next."""
    async with ClaudeSDKClient(stage.options()) as client:
        await client.query(stage.ticking)
        await stage.at_work()
        await client.interrupt()
        await client.query("say second")
        answer = [message async for message in client.receive_response()]
        ticks = stage.ticks()
        assert result_of(answer) == ("success", "second"), answer
        await anyio.sleep(0.3)
        assert stage.ticks() == ticks, "the tool of the interrupted turn goes on"
    stage.look()


async def hook(stage: Stage) -> None:
    """It is asked before the tool, and what it says counts."""
    asked: list[Any] = []

    async def refuse(given: Any, call: str | None, context: Any) -> Any:
        asked.append(given)
        about = {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": "not today",
        }
        return {"hookSpecificOutput": about}

    options = stage.options(hooks={"PreToolUse": [HookMatcher(matcher="Bash", hooks=[refuse])]})
    made = stage.file("made")
    messages = [message async for message in query(prompt=bash(f"touch {made}"), options=options)]
    stage.look()
    assert [(given["tool_name"], given["tool_input"]["command"]) for given in asked] == [
        ("Bash", f"touch {made}")
    ]
    assert "not today" in results_of_tools(messages), messages
    assert not made.exists()


async def hook_taken_back(stage: Stage) -> None:
    """An interrupt while a hook is being asked: exactly that hook is cancelled."""
    waiting, ended = anyio.Event(), anyio.Event()

    async def think(given: Any, call: str | None, context: Any) -> Any:
        waiting.set()
        try:
            await anyio.sleep(3600)
        except anyio.get_cancelled_exc_class():
            ended.set()
            raise

    options = stage.options(hooks={"PreToolUse": [HookMatcher(matcher="Bash", hooks=[think])]})
    async with ClaudeSDKClient(options) as client:
        await client.query(stage.ticking)
        with anyio.fail_after(START):
            await waiting.wait()
            await client.interrupt()
            answer = [message async for message in client.receive_response()]
            await ended.wait()
        assert result_of(answer)[0] == "error_during_execution", answer
        assert not stage.ticks()
        await client.query("say still here")
        again = [message async for message in client.receive_response()]
        assert result_of(again) == ("success", "still here"), again
    stage.look()


async def permission(stage: Stage) -> None:
    """Refused, and granted with another input."""
    asked: list[tuple[str, str]] = []
    refused, granted = stage.file("refused"), stage.file("granted")

    async def can_use_tool(name: str, given: dict[str, Any], context: Any) -> Any:
        asked.append((name, given["command"]))
        if len(asked) == 1:
            return PermissionResultDeny(message="not this one")
        return PermissionResultAllow(updated_input={**given, "command": f"touch {granted}"})

    options = stage.options(allowed_tools=[], can_use_tool=can_use_tool)
    async with ClaudeSDKClient(options) as client:
        await client.query(bash(f"touch {refused}"))
        first = [message async for message in client.receive_response()]
        await client.query(bash(f"touch {refused}"))
        second = [message async for message in client.receive_response()]
    stage.look()
    assert asked == [("Bash", f"touch {refused}")] * 2, asked
    assert "not this one" in results_of_tools(first), first
    assert result_of(second) == ("success", "Done."), second
    assert granted.exists()
    assert not refused.exists()


async def mcp_tool(stage: Stage) -> None:
    """A tool in this process."""
    calls: list[dict[str, Any]] = []

    @tool("add", "Adds two numbers", {"a": int, "b": int})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        calls.append(given)
        return {"content": [{"type": "text", "text": f"it is {given['a'] + given['b']}"}]}

    server = create_sdk_mcp_server("here", tools=[add])
    options = stage.options(allowed_tools=["mcp__here__add"], mcp_servers={"here": server})
    prompt = 'call mcp__here__add {"a": 2, "b": 3}'
    messages = [message async for message in query(prompt=prompt, options=options)]
    stage.look()
    assert calls == [{"a": 2, "b": 3}], (calls, messages)
    assert "it is 5" in results_of_tools(messages), messages


def result_of(messages: list[Any]) -> tuple[str, str | None]:
    """Of the one result that is among them, which is the last."""
    results = [message for message in messages if isinstance(message, ResultMessage)]
    assert results == messages[-1:], messages
    return results[0].subtype, results[0].result


def results_of_tools(messages: list[Any]) -> str:
    """All that tools have answered, as text."""
    blocks = [
        block
        for message in messages
        if isinstance(message, UserMessage) and not isinstance(message.content, str)
        for block in message.content
    ]
    return "\n".join(str(block.content) for block in blocks if isinstance(block, ToolResultBlock))


USES: dict[str, Program] = {
    "query: to the result": to_the_result,
    "client: interrupted, asked again": interrupted_and_asked_again,
    "query: a hook": hook,
    "client: a hook, interrupted": hook_taken_back,
    "client: can_use_tool": permission,
    "query: a tool in this process": mcp_tool,
}
