"""The seed: breaking out of `query()` raises in no other task and cancels nobody, and `control_cancel_request` cancels the hook in flight.

Its end-to-end script, and its unit tests by their names, on every backend.
"""

from __future__ import annotations

import gc
import logging
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.claude import ClaudeAgentOptions, ClaudeSDKClient, HookMatcher, ResultMessage, query
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli
from tests.world import World


@pytest.mark.real_time
def test_breaking_out_of_query_raises_nowhere(
    cli: Cli, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What the event loop complains of fails this test by itself: see tests/conftest.py."""

    async def run_test() -> list[Any]:
        messages: list[Any] = []
        innocent: list[str] = []

        async def live_on() -> None:
            await anyio.sleep(0.1)
            innocent.append("lived on")

        async with Scope() as users:
            users.spawn(live_on)
            async for message in query(
                prompt="Say hello in exactly 3 words", options=cli.options([["text", "Hello there friend!"]])
            ):
                messages.append(message)
                if isinstance(message, ResultMessage):
                    break
            await anyio.sleep(0.1)
            gc.collect()
            await anyio.sleep(0.1)
        assert innocent == ["lived on"]
        return messages

    with caplog.at_level(logging.WARNING):
        messages = world.run(run_test)
    assert isinstance(messages[-1], ResultMessage)
    blocked = "the event loop's thread was blocked"  # by a machine that stood still
    assert not [record for record in caplog.records if blocked not in record.getMessage()]
    cli.assert_gone()


async def test_close_from_different_task_does_not_raise() -> None:
    async with MemoryCli([["text", "hello"], ["hang"]]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)

        async def start() -> None:
            await anext(iterator)

        iterator = aiter(messages)
        async with anyio.create_task_group() as group:
            group.start_soon(start)
        async with anyio.create_task_group() as group:
            group.start_soon(messages.aclose)
        assert messages.report is not None
        assert messages.report.clean


async def test_close_from_same_task_still_works() -> None:
    async with MemoryCli([["text", "hello"], ["hang"]]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)
        iterator = aiter(messages)
        await anext(iterator)
        report = await messages.aclose()
        assert report.clean


def hook_call() -> list[Any]:
    return ["ask", "req-1", {"subtype": "hook_callback", "callback_id": "hook_0", "input": {}}]


class SlowHook:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.cancelled = False
        self.begun = anyio.Event()

    async def __call__(self, given: Any, tool_use_id: str | None, context: Any) -> Any:
        self.begun.set()
        try:
            await anyio.sleep(self.seconds)
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise
        return {}

    @property
    def options(self) -> ClaudeAgentOptions:
        return ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[self])]})


async def test_cancel_request_cancels_inflight_hook() -> None:
    hook = SlowHook(60)
    turn = [hook_call(), ["wait", "begun"], ["cancel", "req-1"], ["sleep", 0.05]]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(hook.options, cli.transport) as client:
        await client.query("hi")
        await hook.begun.wait()
        cli.raise_flag("begun")
        _ = [message async for message in client.receive_response()]
        assert hook.cancelled
        assert cli.answers() == []


async def test_cancel_request_for_unknown_id_is_noop() -> None:
    async with (
        MemoryCli([["cancel", "no-such-request"], ["text", "hello"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("hi")
        assert isinstance([message async for message in client.receive_response()][-1], ResultMessage)


async def test_completed_request_is_removed_from_inflight() -> None:
    hook = SlowHook(0)
    async with (
        MemoryCli([hook_call(), ["await", "req-1"]]) as cli,
        ClaudeSDKClient(hook.options, cli.transport) as client,
    ):
        await client.query("hi")
        _ = [message async for message in client.receive_response()]
        session: Any = client._session
        assert len(session.control._inflight) == 0
        assert [answer["subtype"] for answer in cli.answers()] == ["success"]
