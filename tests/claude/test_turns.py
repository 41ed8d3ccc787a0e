"""A client's turns: whoever reads the answer to a prompt gets the messages of its turn, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.claude import (
    AssistantMessage,
    ClaudeSDKClient,
    CLIConnectionError,
    ProcessError,
    ResultMessage,
    SystemMessage,
    TextBlock,
    query,
)
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli
from tests.claude.ways_to_stop import HASTY
from tests.kernel.temperaments import virtual_worlds


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


@virtual_worlds
@pytest.mark.parametrize("ends_by", ["itself", "break"])
async def test_whoever_reads_responses_in_a_loop_waits_for_the_next_prompt(ends_by: str) -> None:
    said: list[str] = []
    rounds = 0

    async def read(client: ClaudeSDKClient) -> None:
        nonlocal rounds
        while True:
            rounds += 1
            async for message in client.receive_response():
                said.extend(texts([message]))
                if ends_by == "break" and isinstance(message, ResultMessage):
                    break

    async with (
        MemoryCli([["text", "yes"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope("the user's") as users,
    ):
        reading = users.spawn(read, client)
        for number in ("1", "2", "3"):
            await anyio.sleep(60)
            await client.query(number)
        await anyio.sleep(60)
        reading.cancel()
    assert said == ["yes", "success 1", "yes", "success 2", "yes", "success 3"]
    assert rounds == 4


async def test_a_response_that_waits_for_the_next_prompt_leaves_other_turns_to_those_who_read_all() -> None:
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope("the user's") as users,
    ):
        await client.query("1")
        assert await response(client) == ["one", "success 1"]
        waiting = users.spawn(response, client)
        await is_waited_for(client, 1)
        cli.say({"type": "system", "subtype": "note", "text": "a turn of the CLI's own"})
        note = await anext(client.receive_messages())
        assert isinstance(note, SystemMessage)
        assert note.subtype == "note"
        assert not waiting.done
        await client.query("2")
        await waiting.wait()
        assert waiting.result() == ["two", "success 2"]


async def test_what_was_left_of_a_response_is_read_by_the_next_reader_not_waited_for() -> None:
    async with (
        MemoryCli([["text", "one"], ["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        async for message in client.receive_response():
            if isinstance(message, AssistantMessage):
                break
        await is_answered(client)
        assert await response(client) == ["two", "success 1"]


@virtual_worlds
@pytest.mark.parametrize("ends_by", ["itself", "close"])
async def test_a_loop_that_reads_responses_ends_with_the_session(ends_by: str) -> None:
    """The response that waits comes to its end; there cannot be another."""
    failed: list[str] = []

    async def read(client: ClaudeSDKClient) -> None:
        try:
            while True:
                async for _ in client.receive_response():
                    pass
        except CLIConnectionError as error:
            failed.append(str(error))

    async with MemoryCli([["text", "yes"]], **({"then_exit": 0} if ends_by == "itself" else {})) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect("hi")
        async with Scope("the user's") as users:
            users.spawn(read, client)
            await anyio.sleep(60)
            await client.close()
    assert len(failed) == 1
    assert failed[0].startswith("the session is closed")


async def test_after_interrupt_and_query_the_response_is_that_of_the_new_prompt() -> None:
    """Though nobody has read the result of the interrupted turn."""
    async with (
        MemoryCli([["talk", 0.01]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await has_begun(client)
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
        await is_answered(client)
        await client.interrupt()  # the turn is over: nothing is interrupted
        await client.query("2")
        assert await response(client) == ["two", "success 2"]


async def test_a_prompt_that_waits_behind_an_interrupted_turn_is_answered() -> None:
    async with (
        MemoryCli([["talk", 0.01]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await has_begun(client)
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
        await is_waited_for(client, 1)
        await client.query("1")
        await reading.wait()
        assert reading.result() == ["one", "success 1"]


async def test_a_response_that_is_read_twice_is_over_the_second_time() -> None:
    async with MemoryCli([["text", "one"]]) as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        await client.query("1")
        messages = client.receive_response()
        assert texts([message async for message in messages]) == ["one", "success 1"]
        assert [message async for message in messages] == []


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
        await is_at_work(cli)
        await client.query("2")
        await has_heard(cli, 2)
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
        await is_at_work(cli)
        await client.query("2")
        await has_heard(cli, 2)
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
        await is_at_work(cli)
        await client.query("2")
        await has_heard(cli, 2)
        cli.end_tool()
        while cli.agent._prompts:  # the second becomes part of the turn
            await anyio.sleep(0.001)
        await client.query("3")
        cli.raise_flag("third")
        assert await response(client) == ["three", "success 3"]


async def test_a_query_is_over_when_one_result_has_answered_all_its_prompts() -> None:
    sent = anyio.Event()

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        for number, text in enumerate(("1", "2"), 1):
            yield {"type": "user", "message": {"role": "user", "content": text}}
            await has_heard(cli, number)
            await is_at_work(cli)
        sent.set()

    async with MemoryCli([["tool", {"ask": False}], ["text", "after"]]) as cli, Scope() as users:

        async def end_tool() -> None:
            await sent.wait()
            cli.end_tool()

        users.spawn(end_tool)
        messages = query(prompt=prompts(), options=cli.options, transport=cli.transport)
        assert texts([message async for message in messages]) == ["after", "success 1"]


async def test_with_a_cli_that_does_not_tell_of_prompts_each_result_answers_one() -> None:
    async with (
        MemoryCli([["talk", 0.01]], [["text", "two"]], [["text", "three"]], no_states=True) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await has_begun(client)
        await client.interrupt()
        await client.query("2")
        assert await response(client) == ["two", "success 2"]
        await client.query("3")
        assert await response(client) == ["three", "success 3"]


async def test_the_end_of_the_session_ends_the_response_of_whoever_reads() -> None:
    async with MemoryCli([["text", "one"], ["hang"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        heard: list[Any] = []

        async def read() -> None:
            async for message in client.receive_response():
                heard.append(message)  # noqa: PERF401  # seen while it goes on

        await client.connect("1")
        async with Scope() as users:
            reading = users.spawn(read)
            while texts(heard) != ["one"]:
                await anyio.sleep(0.001)
            await client.disconnect()
            await reading.wait()
            assert reading.state == "finished"
            assert texts(heard) == ["one"]


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


# A turn that no prompt has begun: the CLI goes on by itself when a task in the background has ended.


def say_by_itself(cli: MemoryCli, text: str = "by itself") -> None:
    """The CLI has a turn that nobody has asked for."""
    cli.say({"type": "assistant", "message": {"model": "m", "content": [{"type": "text", "text": text}]}})
    ended = {"subtype": "success", "is_error": False, "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}
    cli.say({"type": "result", **ended, "result": text})


async def goes_on(cli: MemoryCli, client: ClaudeSDKClient, text: str = "by itself") -> None:
    """The same, and it has come; nobody reads meanwhile."""
    unread = len(mailbox_of(client)._unread)
    say_by_itself(cli, text)
    while len(mailbox_of(client)._unread) < unread + 2:
        await anyio.sleep(0.001)


async def has_begun(client: ClaudeSDKClient) -> None:
    """The turn has said something, which nobody has read."""
    while not mailbox_of(client)._unread:
        await anyio.sleep(0.001)


async def is_at_work(cli: MemoryCli) -> None:
    """The turn is in its tool."""
    while not cli.tools:
        await anyio.sleep(0.001)


async def has_heard(cli: MemoryCli, prompts: int) -> None:
    """It was sent so many."""
    while len(cli.got("user")) < prompts:
        await anyio.sleep(0.001)


async def is_answered(client: ClaudeSDKClient) -> None:
    """All that was asked has its result, though perhaps nobody has read it."""
    while mailbox_of(client).busy:
        await anyio.sleep(0.001)


async def is_waited_for(client: ClaudeSDKClient, readers: int) -> None:
    """So many wait for a message."""
    while len(mailbox_of(client)._changed) < readers:
        await anyio.sleep(0.001)


def mailbox_of(client: ClaudeSDKClient) -> Any:
    assert client._session is not None
    return client._session.mailbox


BY_ITSELF = ["by itself", "success by itself"]


async def next_results(client: ClaudeSDKClient, count: int = 1) -> list[str]:
    """What the reader of all messages gets, up to the result of that many turns."""
    messages: list[Any] = []
    async for message in client.receive_messages():
        messages.append(message)
        count -= isinstance(message, ResultMessage)
        if not count:
            break
    return texts(messages)


@pytest.mark.parametrize("no_states", [False, True])
async def test_a_turn_that_no_prompt_has_begun_is_in_nobodys_response(no_states: bool) -> None:
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]], no_states=no_states) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        assert await response(client) == ["one", "success 1"]
        await goes_on(cli, client)
        await client.query("2")
        assert await response(client) == ["two", "success 2"]


@pytest.mark.parametrize("no_states", [False, True])
async def test_a_response_ends_with_its_result_though_the_cli_has_gone_on_by_itself(no_states: bool) -> None:
    """And whoever reads all messages gets the rest."""
    async with (
        MemoryCli([["text", "one"]], no_states=no_states) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await is_answered(client)
        await goes_on(cli, client)
        assert await response(client) == ["one", "success 1"]
        with anyio.move_on_after(0.1) as waited:
            await response(client)  # the next one, which nobody asks for
        assert waited.cancelled_caught
        assert await next_results(client) == BY_ITSELF


async def test_a_response_ends_with_its_result_though_the_cli_goes_on_while_that_is_looked_at() -> None:
    async with (
        MemoryCli([["text", "one"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        messages: list[Any] = []
        async for message in client.receive_response():
            messages.append(message)
            if isinstance(message, ResultMessage):
                await goes_on(cli, client)
        assert texts(messages) == ["one", "success 1"]


async def test_what_a_response_passes_over_of_a_turn_that_no_prompt_has_begun_is_kept_for_whoever_reads_all() -> (
    None
):
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]], [["text", "three"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await goes_on(cli, client, "first")
        for number, said in (("1", "one"), ("2", "two")):
            await client.query(number)
            assert await response(client) == [said, f"success {number}"]
            await goes_on(cli, client)
        await client.query("3")
        expected = ["first", "success first", *BY_ITSELF, *BY_ITSELF, "three", "success 3"]
        assert await next_results(client, 4) == expected


async def test_whoever_waits_for_any_message_gets_what_a_response_passes_over() -> None:
    async with (
        MemoryCli([["text", "one"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope() as users,
    ):
        first = users.spawn(response, client)  # which is told first
        await is_waited_for(client, 1)
        other = users.spawn(next_results, client)
        await is_waited_for(client, 2)
        say_by_itself(cli)
        await other.wait()
        assert other.result() == BY_ITSELF
        await client.query("1")
        await first.wait()
        assert first.result() == ["one", "success 1"]


async def test_what_is_passed_over_is_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiesce.claude.session.mailbox.KEPT", 10_000)
    async with (
        MemoryCli([["text", "one"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        await response(client)
        for _ in range(100):
            await goes_on(cli, client, "x" * 1000)
        await goes_on(cli, client)
        await client.query("2")
        assert await response(client) == ["two", "success 2"]
        mailbox = mailbox_of(client)
        assert mailbox._kept_bytes <= 10_000
        assert mailbox.bytes == 0
        kept = texts([await anext(client.receive_messages()) for _ in range(len(mailbox._kept))])
        assert kept[-2:] == BY_ITSELF  # the last of it
        assert mailbox._kept_bytes == 0


# Readers


@pytest.mark.parametrize("no_states", [False, True])
async def test_two_who_read_the_answers_to_two_prompts_get_each_their_own(no_states: bool) -> None:
    words = [["text", str(number)] for number in range(5)]
    async with (
        MemoryCli(
            [["text", "first"], ["wait", "now"], *words], [["text", "two"]], no_states=no_states
        ) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope() as users,
    ):
        await client.query("1")
        reader = client.receive_response()
        said = [await anext(reader), await anext(reader)]
        await client.query("2")
        other = users.spawn(response, client)  # and has to wait for its turn
        await is_waited_for(client, 1)
        cli.raise_flag("now")
        await other.wait()
        assert other.result() == ["two", "success 2"]
        said += [message async for message in reader]
        assert texts(said) == ["first", "0", "1", "2", "3", "4", "success 1"]
        assert mailbox_of(client).bytes == 0


async def test_two_who_wait_for_the_answers_to_two_prompts_get_each_their_own() -> None:
    async with (
        MemoryCli([["wait", "now"], ["text", "one"]], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope() as users,
    ):
        readers = []
        for number in (1, 2):
            await client.query(str(number))
            readers.append(users.spawn(response, client))
            await is_waited_for(client, number)
        cli.raise_flag("now")
        for reader in readers:
            await reader.wait()
        assert [reader.result() for reader in readers] == [["one", "success 1"], ["two", "success 2"]]


async def test_two_whose_prompts_are_answered_by_one_turn_get_both_its_result() -> None:
    async with (
        MemoryCli([["text", "first"], ["tool", {"ask": False}], ["text", "last"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope() as users,
    ):
        await client.query("1")
        one = users.spawn(response, client)
        await is_at_work(cli)
        await client.query("2")
        two = users.spawn(response, client)
        await has_heard(cli, 2)
        cli.end_tool()
        for reader in (one, two):
            await reader.wait()
        assert one.result() == ["first", "last", "success 1"]
        assert two.result() == ["last", "success 1"]


async def test_what_is_set_aside_for_a_reader_that_is_held_is_kept_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quiesce.claude.session.mailbox.SET_ASIDE", 10_000)
    words = [["text", "x" * 1000]] * 100
    async with (
        MemoryCli([["text", "one"], *words], [["text", "two"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        reader = client.receive_response()
        await anext(reader)
        await client.query("2")
        assert await response(client) == ["two", "success 2"]
        rest = texts([message async for message in reader])
        assert 1 < len(rest) < 10
        assert rest[-1] == "success 1"


async def test_whoever_reads_keeps_the_client_and_no_longer() -> None:
    async with MemoryCli([["text", "one"]]) as cli, Scope("the user's"):

        async def ask() -> AsyncIterator[Any]:
            client = ClaudeSDKClient(cli.options, cli.transport)
            await client.connect("1")
            return client.receive_response()

        reader = await ask()
        said = [await anext(reader) for _ in range(3)]
        assert texts(said) == ["one", "success 1"]
        with pytest.warns(ResourceWarning, match=r"dropped without close\(\)"):
            assert [message async for message in reader] == []


async def test_a_reader_can_be_closed_and_the_session_goes_on() -> None:
    async with (
        MemoryCli([["text", "a"], ["text", "b"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("1")
        async with aclosing(client.receive_response()) as messages:
            async for message in messages:
                if isinstance(message, AssistantMessage):
                    break
        assert [message async for message in messages] == []
        assert await response(client) == ["b", "success 1"]


@pytest.mark.parametrize("which", ["receive_response", "receive_messages"])
async def test_closing_a_reader_ends_the_iteration_of_whoever_waits_in_it(which: str) -> None:
    async with (
        MemoryCli([["hang"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope() as users,
    ):
        await client.query("1")
        messages = getattr(client, which)()

        async def read() -> list[Any]:
            return [message async for message in messages]

        reading = users.spawn(read)
        while not cli.got("user"):
            await anyio.sleep(0.001)
        await is_waited_for(client, 1)
        await messages.aclose()
        await reading.wait()
        assert not texts(reading.result())


@pytest.mark.parametrize("which", ["an answered turn", "a closed reader", "a session that has ended"])
async def test_reading_what_has_ended_again_and_again_lets_others_run(which: str) -> None:
    async with MemoryCli([["text", "one"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect("1")
        messages = client.receive_response()
        assert [message async for message in messages]
        if which == "a closed reader":
            messages = client.receive_messages()
            await messages.aclose()
        elif which == "a session that has ended":
            messages = client.receive_messages()
            await client.disconnect()
        reads = 0

        async def read() -> None:
            nonlocal reads
            while reads < 1000:
                async for _ in messages:
                    raise AssertionError("there is nothing to read")
                reads += 1

        async with Scope() as users:
            reading = users.spawn(read)
            while not reads:
                await anyio.sleep(0)
            reading.cancel("enough")
            await reading.wait()
            assert reads < 1000
            assert reading.state == "cancelled"
        await client.disconnect()
