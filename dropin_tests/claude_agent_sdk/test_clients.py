"""Clients that are closed have ended; and everything else is as with the SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import claude_agent_sdk
import pytest
from tests.claude.clis import Cli
from tests.kernel.processes import wait_until
from tests.world import asyncio_only

from quiesce.dropin import claude_agent_sdk as dropin
from quiesce.dropin.claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    CLIConnectionError,
    CLINotFoundError,
    HookMatcher,
    ResultMessage,
)

from .made_up import Dawdler, options_for

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]


async def in_a_task(coro: Any) -> Any:
    return await asyncio.create_task(coro)


async def response(client: Any) -> list[str]:
    return [type(message).__name__ async for message in client.receive_response()]


# A conversation


async def test_two_turns_and_a_question_are_as_with_the_sdk(cli: Cli) -> None:
    async def converse(sdk: Any) -> list[Any]:
        options = options_for(cli, [["text", "a"]], [["text", "b"], ["text", "c"]])
        async with sdk.ClaudeSDKClient(options) as client:
            await client.query("one")
            one = await response(client)
            await client.query("two")
            two = await response(client)
            info = await client.get_server_info()
            return [one, two, info, await client.get_mcp_status(), await client.get_context_usage()]

    assert await converse(dropin) == await converse(claude_agent_sdk)
    cli.assert_gone()


def test_it_is_the_sdks_with_the_same_names_everywhere() -> None:
    assert issubclass(ClaudeSDKClient, claude_agent_sdk.ClaudeSDKClient)
    assert dropin.ClaudeSDKClient is ClaudeSDKClient is dropin.client.ClaudeSDKClient


async def test_each_call_may_come_from_another_task(cli: Cli) -> None:
    client = ClaudeSDKClient(options_for(cli, [["text", "a"]]))
    await in_a_task(client.connect())
    await in_a_task(client.query("one"))
    assert (await in_a_task(response(client)))[-1] == "ResultMessage"
    await in_a_task(client.interrupt())
    report = await in_a_task(client.close())
    cli.assert_gone()
    assert report.clean
    assert client.report is report


async def test_interrupt_ends_the_turn_and_not_the_client(cli: Cli) -> None:
    options = options_for(cli, [["text", "a"], cli.ticking()], [["text", "b"]])
    async with ClaudeSDKClient(options) as client:
        await client.query("one")
        reading = asyncio.create_task(response(client))
        await cli.until_ticking()
        await client.interrupt()
        assert (await reading)[-1] == "ResultMessage"
        await client.query("two")
        assert (await response(client))[-1] == "ResultMessage"
    cli.assert_gone()
    assert len(cli.got("control_request", subtype="interrupt")) == 1  # ours: it was idle in the end


async def test_after_a_break_the_messages_go_on_where_they_were_as_with_the_sdk(cli: Cli) -> None:
    async def use(sdk: Any) -> list[str]:
        async with sdk.ClaudeSDKClient(options_for(cli, [["text", "a"], ["text", "b"]])) as client:
            await client.query("one")
            async for message in client.receive_response():
                if isinstance(message, AssistantMessage):
                    break
            return await response(client)

    assert await use(dropin) == await use(claude_agent_sdk) == ["AssistantMessage", "ResultMessage"]


async def test_a_client_can_be_connected_again_and_while_it_is_connected(cli: Cli) -> None:
    client = ClaudeSDKClient(options_for(cli, [["text", "a"]]))
    for _ in range(2):
        await client.connect("one")
        assert (await response(client))[-1] == "ResultMessage"
    assert len(cli.processes()) == 1
    await client.disconnect()
    cli.assert_gone()
    await client.connect("one")
    assert (await response(client))[-1] == "ResultMessage"
    await client.disconnect()
    await client.disconnect()


async def test_one_that_was_never_connected_can_be_closed() -> None:
    client = ClaudeSDKClient()
    await client.disconnect()
    assert (await client.close()).clean
    with pytest.raises(CLIConnectionError):
        await client.query("one")


@pytest.mark.worlds("trio")
async def test_on_trio_it_says_what_to_use() -> None:
    with pytest.raises(RuntimeError, match="for asyncio: on trio, use claude_agent_sdk itself"):
        await ClaudeSDKClient().connect()
    with pytest.raises(RuntimeError, match="for asyncio: on trio, use claude_agent_sdk itself"):
        await anext(dropin.query(prompt="hi"))


# Connecting


async def test_a_cli_that_is_not_there_is_the_error_of_the_sdk() -> None:
    for sdk in (claude_agent_sdk, dropin):
        client = sdk.ClaudeSDKClient(ClaudeAgentOptions(cli_path="/no/such/program"))
        with pytest.raises(CLINotFoundError):
            await client.connect()
        await client.disconnect()


async def test_a_wrong_setting_is_the_error_of_the_sdk_and_leaves_no_process(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_STREAM_CLOSE_TIMEOUT", "60s")
    with pytest.raises(ValueError, match="60s"):
        await ClaudeSDKClient(options_for(cli)).connect()
    cli.assert_gone()
    with pytest.raises(ValueError, match="60s"):
        await anext(dropin.query(prompt="hi", options=options_for(cli)))
    cli.assert_gone()


async def test_a_connect_that_is_out_of_time_leaves_no_process(cli: Cli) -> None:
    client = ClaudeSDKClient(options_for(cli, script={"mute": ["initialize"], "ignore_eof": True}))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.connect()
    cli.assert_gone()


async def test_a_client_that_is_closed_while_it_connects_says_so(cli: Cli) -> None:
    client = ClaudeSDKClient(options_for(cli, script={"mute": ["initialize"]}))
    connecting = asyncio.create_task(client.connect())
    assert await asyncio.to_thread(wait_until, lambda: cli.got("control_request"))
    assert (await client.close()).clean
    cli.assert_gone()
    with pytest.raises(CLIConnectionError, match="closed while it was connecting"):
        await connecting


# Stops


async def test_an_idle_cli_is_not_interrupted_and_exits_by_itself(cli: Cli) -> None:
    async with ClaudeSDKClient(options_for(cli, [["text", "a"]])) as client:
        await client.query("one")
        await response(client)
    assert cli.got("control_request", subtype="interrupt") == []
    assert cli.happened("signal") == []
    assert cli.happened("exit") == [0]


async def test_one_at_work_is_interrupted_and_exits_by_itself(cli: Cli) -> None:
    async with ClaudeSDKClient(options_for(cli, [cli.ticking()])) as client:
        await client.query("one")
        await cli.until_ticking()
    cli.assert_gone()
    cli.assert_interrupted_first()
    assert cli.happened("signal") == []


async def test_a_request_without_an_answer_fails_when_the_client_is_closed(cli: Cli) -> None:
    client = ClaudeSDKClient(options_for(cli, script={"mute": ["mcp_status"]}))
    await client.connect()
    asking = asyncio.create_task(client.get_mcp_status())
    assert await asyncio.to_thread(wait_until, lambda: cli.got("control_request", subtype="mcp_status"))
    await client.disconnect()
    with pytest.raises(CLIConnectionError, match="closed"):
        await asyncio.wait_for(asking, 5)


@pytest.mark.parametrize("how", ["hook", "permission", "tool"])
async def test_a_callback_that_the_cli_takes_back_is_cancelled_once_and_has_cleaned_up(
    cli: Cli, how: str
) -> None:
    dawdler = Dawdler(cli, 0.5)
    options = options_for(cli, dawdler.turn(how), **dawdler.called_by(how))
    async with ClaudeSDKClient(options) as client:
        await client.query("one")
        await cli.until("asked")
        await client.interrupt()  # the CLI takes its request back, and the end of the block stops it again
    assert (dawdler.begun, dawdler.cleaned) == (1, 1)
    cli.assert_gone()


async def test_a_hook_may_close_its_own_client(cli: Cli) -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        await client.disconnect()
        return {}

    options = options_for(cli, [cli.ticking()], hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    client = ClaudeSDKClient(options)
    await client.connect("one")
    async with asyncio.timeout(10):
        async for message in client.receive_messages():
            assert not isinstance(message, ResultMessage)
    assert (await client.close()).clean
    cli.assert_gone()


async def test_what_the_cli_has_left_at_its_end_has_ended_too(cli: Cli) -> None:
    left = ["grandchild", {"ready": cli.file("up"), "ways": ["session", "deaf"]}]
    async with ClaudeSDKClient(options_for(cli, [["text", "a"], left])) as client:
        await client.query("one")
        await response(client)
    cli.assert_gone()


async def test_after_a_wait_for_of_disconnect_nothing_is_left(cli: Cli) -> None:
    client = ClaudeSDKClient(options_for(cli, [cli.ticking()], script={"mute": ["interrupt"]}))
    await client.connect("one")
    await cli.until_ticking()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.disconnect(), 0.1)
    cli.assert_gone()
