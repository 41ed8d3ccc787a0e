"""What docs/keep-your-sdk/claude-agent-sdk.md shows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.claude.clis import Cli
from tests.world import asyncio_only

# --8<-- [start:import]
from quiesce import current_token
from quiesce.dropin.claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    query,
)

# --8<-- [end:import]
from .made_up import options_for

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]


# --8<-- [start:query]
async def ask(prompt: str, options: ClaudeAgentOptions) -> None:
    async with asyncio.timeout(1):  # TimeoutError, when the CLI and all that it started have ended
        async for message in query(prompt=prompt, options=options):
            print(message)


# --8<-- [end:query]
# --8<-- [start:break]
async def first_answer(prompt: str, options: ClaudeAgentOptions) -> AssistantMessage:
    messages = query(prompt=prompt, options=options)
    async for message in messages:
        if isinstance(message, AssistantMessage):
            break  # the CLI is being stopped, with its tools
    report = await messages.close()  # and now it has ended
    assert report.clean, report
    return message


# --8<-- [end:break]
# --8<-- [start:client]
class Chat:
    """Opened by one request of a web server, used by others, and closed by any."""

    async def open(self, options: ClaudeAgentOptions) -> None:
        self.client = ClaudeSDKClient(options)
        await self.client.connect()

    async def say(self, prompt: str) -> list[Any]:
        await self.client.query(prompt)
        return [message async for message in self.client.receive_response()]

    async def close(self) -> None:
        report = await self.client.close()  # whoever reads sees the end of the messages
        assert report.clean, report


# --8<-- [end:client]
# --8<-- [start:hook]
async def check(given: Any, tool_use_id: str | None, context: Any) -> Any:
    return await asyncio.to_thread(look_it_up, given)


def look_it_up(given: Any) -> dict[str, Any]:
    token = current_token()  # cancelled when the query or the client is stopped
    for _ in range(200):
        token.raise_if_cancelled()
        time.sleep(0.05)
    return {}


HOOKS: Any = {"PreToolUse": [HookMatcher(hooks=[check])]}  # ClaudeAgentOptions(hooks=HOOKS)
# --8<-- [end:hook]


async def test_the_pages_query_times_out(cli: Cli) -> None:
    with pytest.raises(TimeoutError):
        await ask("Work.", options_for(cli, [cli.ticking()]))
    cli.assert_gone()


async def test_the_pages_query_with_its_hook_times_out_when_the_thread_has_ended(cli: Cli) -> None:
    with pytest.raises(TimeoutError):
        await ask("Work.", options_for(cli, [cli.ticking()], hooks=HOOKS))
    cli.assert_gone()


async def test_the_pages_query_is_broken_out_of(cli: Cli) -> None:
    assert await first_answer("Work.", options_for(cli, [["text", "a"], cli.ticking()]))
    cli.assert_gone()


async def test_the_pages_chat_is_opened_used_and_closed_by_three_tasks(cli: Cli) -> None:
    chat = Chat()
    await asyncio.create_task(chat.open(options_for(cli, [["text", "a"]])))
    assert await asyncio.create_task(chat.say("Hello."))
    await asyncio.create_task(chat.close())
    cli.assert_gone()
