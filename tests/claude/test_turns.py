"""A client's turns: whoever reads the answer to a prompt gets the messages of its turn, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.claude import (
    AssistantMessage,
    ClaudeSDKClient,
    ProcessError,
    ResultMessage,
    SystemMessage,
    TextBlock,
    query,
)
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli
from tests.claude.ways_to_stop import HASTY


def texts(messages: list[Any]) -> list[str]:
    """What the agent said, and the results."""
    found = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            found += [block.text for block in message.content if isinstance(block, TextBlock)]
        elif isinstance(message, ResultMessage):
            found.append(f"{message.subtype} {message.result}")
    return found


async def response(client: ClaudeSDKClient) -> list[str]:
    return texts([message async for message in client.receive_response()])


async def test_each_prompt_has_its_response() -> None:
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        for number, said in (("1", "one"), ("2", "two")):
            await client.query(number)
            assert await response(client) == [said, f"success {number}"]


async def test_a_response_begins_with_its_own_turn() -> None:
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await client.query("2")
        messages = [message async for message in client.receive_response()]
    assert isinstance(messages[0], SystemMessage)
    assert texts(messages) == ["two", "success 2"]


async def test_after_interrupt_and_query_the_response_is_that_of_the_new_prompt() -> None:
    """Though nobody has read the result of the interrupted turn."""
    async with (
        MemoryCli([["talk", 0.01]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await anyio.sleep(0.05)
        await client.interrupt()
        await client.query("2")
        assert await response(client) == ["two", "success 2"]


async def test_after_a_query_and_an_interrupt_that_comes_too_late_the_response_is_that_of_the_new_prompt() -> (
    None
):
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await anyio.sleep(0.05)
        await client.interrupt()  # the turn is over: nothing is interrupted
        await client.query("2")
        assert await response(client) == ["two", "success 2"]


async def test_a_prompt_that_waits_behind_an_interrupted_turn_is_answered() -> None:
    async with (
        MemoryCli([["talk", 0.01]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await anyio.sleep(0.05)
        await client.query("2")
        await client.interrupt()
        assert await response(client) == ["two", "success 2"]


async def test_after_a_break_the_next_prompt_is_answered_with_its_own_turn() -> None:
    async with (
        MemoryCli([["text", "a"], ["text", "b"], ["text", "c"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        async for message in client.receive_response():
            if isinstance(message, AssistantMessage):
                break
        await client.query("2")
        assert await response(client) == ["two", "success 2"]


async def test_after_a_break_one_can_read_on() -> None:
    async with (
        MemoryCli([["text", "a"], ["text", "b"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        async for message in client.receive_response():
            if isinstance(message, AssistantMessage):
                break
        assert await response(client) == ["b", "success 1"]


async def test_all_messages_of_all_turns_come_in_order() -> None:
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await client.query("2")
        messages: list[Any] = []
        async for message in client.receive_messages():
            messages.append(message)
            if len([each for each in messages if isinstance(each, ResultMessage)]) == 2:
                break
    assert texts(messages) == ["one", "success 1", "two", "success 2"]


async def test_a_response_that_is_asked_for_before_the_prompt_is_the_first_turns() -> None:
    async with (
        MemoryCli([["text", "one"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope() as users,
    ):
        reading = users.spawn(response, client)
        await anyio.sleep(0.05)
        await client.query("1")
        await reading.wait()
        assert reading.result() == ["one", "success 1"]


async def test_a_response_that_is_read_twice_is_over_the_second_time() -> None:
    async with MemoryCli([["text", "one"]]) as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        await client.query("1")
        assert await response(client) == ["one", "success 1"]
        assert await response(client) == []


async def test_an_interrupt_while_nothing_is_on_is_answered_and_ends_no_turn() -> None:
    async with MemoryCli([["text", "one"]]) as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        await client.interrupt()
        await client.query("1")
        assert await response(client) == ["one", "success 1"]


async def test_a_prompt_that_becomes_part_of_a_turn_is_answered_by_the_rest_of_it() -> None:
    """As the real CLI does with what is said while a tool is at work: both have one result."""
    turn = [["text", "before"], ["tool", {"ask": False}], ["text", "after"]]
    async with (
        MemoryCli(turn, [["text", "three"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await anyio.sleep(0.05)
        await client.query("2")
        await anyio.sleep(0.05)
        cli.end_tool()
        assert await response(client) == ["after", "success 1"]
        await client.query("3")
        assert await response(client) == ["three", "success 3"]


async def test_whoever_reads_the_turn_that_a_prompt_becomes_part_of_gets_all_of_it() -> None:
    turn = [["text", "before"], ["tool", {"ask": False}], ["text", "after"]]
    async with (
        MemoryCli(turn) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope() as users,
    ):
        await client.query("1")
        reading = users.spawn(response, client)
        await anyio.sleep(0.05)
        await client.query("2")
        await anyio.sleep(0.05)
        cli.end_tool()
        await reading.wait()
        assert reading.result() == ["before", "after", "success 1"]


async def test_a_prompt_that_does_not_become_part_of_the_turn_has_one_of_its_own() -> None:
    """Though one before it did."""
    turn = [["tool", {"ask": False}], ["wait", "third"]]
    async with (
        MemoryCli(turn, [["text", "three"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await anyio.sleep(0.05)
        await client.query("2")
        await anyio.sleep(0.05)
        cli.end_tool()
        await anyio.sleep(0.05)
        await client.query("3")
        cli.raise_flag("third")
        assert await response(client) == ["three", "success 3"]


async def test_a_query_is_over_when_one_result_has_answered_all_its_prompts() -> None:
    sent = anyio.Event()

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        for text in ("1", "2"):
            yield {"type": "user", "message": {"role": "user", "content": text}}
            await anyio.sleep(0.05)
        sent.set()

    async with MemoryCli([["tool", {"ask": False}], ["text", "after"]]) as cli, Scope() as users:

        async def end_tool() -> None:
            await sent.wait()
            cli.end_tool()

        users.spawn(end_tool)
        messages = query(prompt=prompts(), options=cli.options, transport=cli.transport)
        assert texts([message async for message in messages]) == ["after", "success 1"]


async def test_a_turn_that_no_prompt_has_begun_is_in_nobodys_response() -> None:
    """The CLI goes on by itself when a task in the background has ended."""
    said = {
        "type": "assistant",
        "message": {"model": "m", "content": [{"type": "text", "text": "by itself"}]},
    }
    ended = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "duration_ms": 1,
        "duration_api_ms": 1,
    }
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        assert await response(client) == ["one", "success 1"]
        cli.say(said)
        cli.say({**ended, "num_turns": 1, "result": "by itself"})
        await anyio.sleep(0.05)
        await client.query("2")
        assert await response(client) == ["two", "success 2"]


async def test_with_a_cli_that_does_not_tell_of_prompts_each_result_answers_one() -> None:
    async with (
        MemoryCli([["talk", 0.01]], [["text", "two"]], [["text", "three"]], no_states=True) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await anyio.sleep(0.05)
        await client.interrupt()
        await client.query("2")
        assert await response(client) == ["two", "success 2"]
        await client.query("3")
        assert await response(client) == ["three", "success 3"]


async def test_the_end_of_the_session_ends_the_response_of_whoever_reads() -> None:
    async with MemoryCli([["text", "one"], ["hang"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect("1")
        async with Scope() as users:
            reading = users.spawn(response, client)
            await anyio.sleep(0.05)
            await client.disconnect()
            await reading.wait()
            assert reading.result() == ["one"]


@pytest.mark.real_time
async def test_a_cli_that_exits_with_0_in_the_middle_of_a_turn_is_an_error_and_no_end(cli: Cli) -> None:
    """It is not the end of the answer, and whoever reads must not take it for that."""
    options = cli.options([["text", "half an"], ["complain", "out of paper\n"], ["exit", 0]])
    heard: list[Any] = []
    with pytest.raises(ProcessError, match="out of paper") as caught:
        async with ClaudeSDKClient(options, grace=HASTY) as client:
            await client.query("1")
            async for message in client.receive_response():
                heard += [message]
    assert caught.value.exit_code == 0
    assert texts(heard) == ["half an"]
    cli.assert_gone()
