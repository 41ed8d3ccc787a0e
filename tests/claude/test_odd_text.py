"""Text with half of a surrogate pair, as node cuts it in the middle of an emoji, and as Python makes it of a file name that is no UTF-8."""

from __future__ import annotations

from typing import Any

import pytest

from quiesce.claude import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    ResultMessage,
    TextBlock,
    query,
)
from tests.claude.memory_cli import MemoryCli
from tests.claude.test_transport import Foreign

HALF = "cut \ud83d"


def with_hook(hook: Any) -> ClaudeAgentOptions:
    return ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})


@pytest.mark.parametrize("wrap", [lambda cli: cli.transport, Foreign], ids=["wire", "foreign"])
async def test_it_comes_as_it_is_and_the_run_goes_on(wrap: Any) -> None:
    async with MemoryCli([["text", HALF], ["text", "after"]]) as cli:
        heard = [message async for message in query(prompt="hi", options=cli.options, transport=wrap(cli))]
    said = [message.content[0] for message in heard if isinstance(message, AssistantMessage)]
    assert [block.text for block in said if isinstance(block, TextBlock)] == [HALF, "after"]
    assert isinstance(heard[-1], ResultMessage)


async def test_it_can_be_said() -> None:
    async with MemoryCli([["text", "yes"]]) as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        await client.query(HALF)
        assert isinstance([message async for message in client.receive_response()][-1], ResultMessage)
        assert [frame["message"]["content"] for frame in cli.got("user")] == [HALF]


async def test_a_hook_can_answer_with_it() -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        return {"decision": "block", "reason": HALF}

    async with MemoryCli([["tool", {"times": 1, "ask": False}]]) as cli:
        async for _ in query(prompt="hi", options=with_hook(hook), transport=cli.transport):
            pass
        assert [answer["response"]["reason"] for answer in cli.answers()] == [HALF]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("no file caf\udce9"), r"no file caf\udce9"), (Unspeakable(), "Unspeakable")],
    ids=["odd", "none"],
)
async def test_a_hook_that_fails_is_answered_whatever_its_error_says(error: Exception, words: str) -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        raise error

    async with MemoryCli([["tool", {"times": 1, "ask": False}], ["text", "after"]]) as cli:
        heard = [
            message async for message in query(prompt="hi", options=with_hook(hook), transport=cli.transport)
        ]
        assert isinstance(heard[-1], ResultMessage)
        assert [answer["error"] for answer in cli.answers()] == [words]
