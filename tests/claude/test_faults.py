"""A CLI that ends, or talks nonsense, by its own doing: an error that says what happened, at once, and nothing left."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce import Grace
from quiesce.claude import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    CLIConnectionError,
    CLIJSONDecodeError,
    CLINotFoundError,
    MessageParseError,
    ProcessError,
    ResultError,
    ResultMessage,
    query,
)
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli
from tests.claude.ways_to_stop import HASTY

pytestmark = pytest.mark.real_time

RESULT = {"type": "result", "is_error": True, "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}


async def heard_from(
    cli: Cli, options: ClaudeAgentOptions, error: type[BaseException]
) -> tuple[list[Any], Any]:
    """What a query gave before it raised that error, and the error."""
    heard: list[Any] = []
    with pytest.raises(error) as caught:
        async for message in query(prompt="hi", options=options, grace=HASTY):
            heard += [message]
    cli.assert_gone()
    return heard, caught.value


async def test_a_cli_that_exits_at_once_is_an_error_with_its_code_and_its_last_words(cli: Cli) -> None:
    options = cli.options(script={"exit_at_start": [3, "error: unknown option\n"]})
    heard, error = await heard_from(cli, options, ProcessError)
    assert heard == []
    assert error.exit_code == 3
    assert "unknown option" in str(error)
    with pytest.raises(ProcessError, match="unknown option"):
        await ClaudeSDKClient(options).connect()
    cli.assert_gone()


async def test_a_cli_that_cannot_be_started_is_an_error_that_says_so(cli: Cli) -> None:
    os.chmod(cli.path, 0o644)
    with pytest.raises(CLIConnectionError, match="claude"):
        await ClaudeSDKClient(cli.options()).connect()


async def test_a_working_directory_that_is_not_there_is_an_error_that_says_so(cli: Cli) -> None:
    with pytest.raises(CLIConnectionError, match="nowhere"):
        await ClaudeSDKClient(cli.options(cwd=cli.file("nowhere"))).connect()


@pytest.mark.parametrize("code", [0, 7])
async def test_a_cli_that_exits_in_the_middle_of_a_turn_is_an_error_after_all_that_it_said(
    cli: Cli, code: int
) -> None:
    options = cli.options([["text", "half an"], ["complain", "out of paper\n"], ["exit", code]])
    heard, error = await heard_from(cli, options, ProcessError)
    assert isinstance(heard[-1], AssistantMessage)
    assert error.exit_code == code
    assert "out of paper" in str(error)


async def test_a_cli_that_is_killed_is_an_error_that_says_so(cli: Cli) -> None:
    with pytest.raises(ProcessError) as caught:
        async with query(prompt="hi", options=cli.options([["text", "hi"], ["hang"]])) as messages:
            async for message in messages:
                if isinstance(message, AssistantMessage):
                    os.kill(messages.process.pid, 9)
    assert caught.value.exit_code == -9
    cli.assert_gone()


async def test_a_cli_that_dies_while_its_child_holds_its_stdout_is_noticed(cli: Cli) -> None:
    child = ["grandchild", {"ready": cli.file("up"), "ways": ["deaf"]}]
    options = cli.options([["text", "hi"], child, ["complain", "gone\n"], ["exit", 0]])
    with anyio.fail_after(15):
        heard, error = await heard_from(cli, options, ProcessError)
    assert isinstance(heard[-1], AssistantMessage)
    assert "gone" in str(error)


async def test_a_megabyte_on_stderr_holds_nothing_up_and_the_end_of_it_is_told(cli: Cli) -> None:
    options = cli.options([["complain", "x" * 1023 + "\n", 1024], ["complain", "the end\n"], ["exit", 1]])
    _, error = await heard_from(cli, options, ProcessError)
    assert str(error).rstrip().endswith("the end")
    assert len(str(error)) < 100_000


@pytest.mark.parametrize("line", ['{"type": "assistant", \n', "{\n", '{"a": ' + "[" * 100_000 + "\n"])
async def test_broken_json_is_an_error_that_shows_it(cli: Cli, line: str) -> None:
    heard, error = await heard_from(
        cli, cli.options([["text", "hi"], ["raw", line], ["hang"]]), CLIJSONDecodeError
    )
    assert isinstance(heard[-1], AssistantMessage)
    assert error.line[:20] == line.strip()[:20]
    cli.assert_interrupted_first()


async def test_a_line_over_the_cap_is_an_error_that_names_the_cap(cli: Cli) -> None:
    options = cli.options([["text", "hi"], ["text", "x" * 100_000], ["hang"]], max_buffer_size=50_000)
    heard, error = await heard_from(cli, options, CLIJSONDecodeError)
    assert isinstance(heard[-1], AssistantMessage)
    assert "50000" in str(error)
    assert "max_buffer_size" in str(error.original_error)


async def test_a_message_without_what_it_must_have_is_an_error_that_names_it(cli: Cli) -> None:
    options = cli.options([["say", {"type": "assistant"}], ["hang"]])
    _, error = await heard_from(cli, options, MessageParseError)
    assert "message" in str(error)
    assert error.data["type"] == "assistant"


async def test_a_control_request_that_is_none_is_passed_over(cli: Cli) -> None:
    odd = [["say", {"type": "control_request"}], ["say", {"type": "control_response"}], ["text", "hi"]]
    assert [message async for message in query(prompt="hi", options=cli.options(odd))]
    cli.assert_gone()


async def test_a_cli_that_does_not_answer_its_first_request_is_given_up(cli: Cli, monkeypatch: Any) -> None:
    monkeypatch.setattr("quiesce.claude.session.connect._CONNECT_TIMEOUT", 0.2)
    options = cli.options(script={"mute": ["initialize"]})
    with pytest.raises(CLIConnectionError, match=r"did not answer `initialize` within 0\.2 s"):
        await ClaudeSDKClient(options, grace=HASTY).connect()
    cli.assert_gone()


async def test_a_cli_that_reads_nothing_is_given_up_too(cli: Cli, monkeypatch: Any) -> None:
    monkeypatch.setattr("quiesce.claude.session.connect._CONNECT_TIMEOUT", 0.2)
    options = cli.options(script={"deaf": True, "ignore_term": True})
    with pytest.raises(CLIConnectionError, match="did not answer"):
        await ClaudeSDKClient(options, grace=HASTY).connect()
    cli.assert_gone()


async def test_connecting_can_be_cancelled_and_leaves_nothing(cli: Cli) -> None:
    options = cli.options(script={"mute": ["initialize"], "ignore_eof": True})
    with anyio.move_on_after(0.2) as waited:
        await ClaudeSDKClient(options, grace=HASTY).connect()
    assert waited.cancelled_caught
    cli.assert_gone()


async def test_a_result_that_is_an_error_is_given_and_then_raised(cli: Cli) -> None:
    result = {**RESULT, "subtype": "error_max_turns", "errors": ["Reached maximum number of turns (1)"]}
    options = cli.options([["say", result], ["exit", 1]])
    heard, error = await heard_from(cli, options, ResultError)
    assert isinstance(heard[-1], ResultMessage)
    assert error.subtype == "error_max_turns"
    assert error.exit_code == 1
    assert "Reached maximum number of turns" in str(error)


async def test_a_refusal_at_the_start_is_told_with_its_words(cli: Cli, monkeypatch: Any) -> None:
    """As a session that cannot be resumed: a result, and an exit, before anything was answered."""
    result = {
        **RESULT,
        "subtype": "error_during_execution",
        "errors": ["No conversation found"],
        "session_id": "x",
    }
    cli.path.write_text(f"#!/bin/sh\nread line\necho '{json.dumps(result)}'\nexit 1\n")
    with pytest.raises(ResultError, match="No conversation found"):
        await ClaudeSDKClient(ClaudeAgentOptions(cli_path=str(cli.path))).connect()


async def test_after_the_end_everything_says_why(cli: Cli) -> None:
    options = cli.options([["complain", "out of paper\n"], ["exit", 7]])
    client = ClaudeSDKClient(options, grace=HASTY)
    await client.connect("hi")
    with pytest.raises(ProcessError, match="out of paper"):
        _ = [message async for message in client.receive_messages()]
    with pytest.raises(CLIConnectionError, match="out of paper"):
        await client.query("again")
    with pytest.raises(CLIConnectionError, match="out of paper"):
        await client.interrupt()
    with pytest.raises(ProcessError, match="out of paper"):
        _ = [message async for message in client.receive_response()]
    report = await client.close()
    assert report.clean
    assert report.reason is not None
    assert report.reason.kind == "disconnect"
    cli.assert_gone()


@pytest.mark.parametrize("code", [0, 7])
async def test_a_cli_that_exits_between_turns_ends_the_session(cli: Cli, code: int) -> None:
    """In order with 0; with another code it is an error for whoever waits for more."""
    options = cli.options([["text", "hi"]], script={"then_exit": code})
    client = ClaudeSDKClient(options, grace=HASTY)
    await client.connect("hi")
    assert isinstance([message async for message in client.receive_response()][-1], ResultMessage)
    if code:
        with pytest.raises(ProcessError):
            _ = [message async for message in client.receive_messages()]
    else:
        assert [message async for message in client.receive_messages()] == []
    with pytest.raises(ClaudeSDKError):
        await client.query("again")
    await client.disconnect()
    cli.assert_gone()
    await client.connect("hi")  # and a new one can be started
    assert isinstance([message async for message in client.receive_response()][-1], ResultMessage)
    await client.disconnect()
    cli.assert_gone()


async def test_a_line_that_has_no_end_at_the_end_is_heard() -> None:
    said = json.dumps({"type": "assistant", "message": {"model": "m", "content": []}})
    async with MemoryCli([["raw", said], ["exit", 0]]) as cli:
        heard: list[Any] = []
        with pytest.raises(CLIConnectionError, match="has closed the connection"):
            async for message in query(prompt="hi", options=cli.options, transport=cli.transport):
                heard += [message]
        assert isinstance(heard[-1], AssistantMessage)


async def test_a_flood_that_is_read_comes_whole_and_in_order(cli: Cli) -> None:
    messages = [
        message
        async for message in query(prompt="hi", options=cli.options([["flood", 2000, 2000]]), grace=Grace())
        if isinstance(message, AssistantMessage)
    ]
    assert [message.message_id for message in messages] == [f"msg_{number}" for number in range(1, 2001)]
    cli.assert_gone()


async def test_what_a_cli_says_after_nonsense_is_not_heard() -> None:
    """Though it is the result of its turn, which our interrupt has ended: the nonsense is what is told."""
    async with MemoryCli([["text", "hi"], ["raw", "{nonsense\n"], ["talk", 0.01]]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)
        iterator = aiter(messages)
        await anext(iterator)
        while "interrupt" not in cli.asked():  # it is told so though nobody asks for a message
            await anyio.sleep(0.01)
        await anyio.sleep(0.05)
        with pytest.raises(CLIJSONDecodeError):
            while True:
                await anext(iterator)
        await messages.close()


async def test_a_failed_turn_does_not_hide_how_the_cli_died_in_a_later_one(cli: Cli) -> None:
    """Not even one that was asked for before the failed one had ended."""
    turns = [["hang"]], [["text", "b"], ["complain", "out of memory\n"], ["exit", 9]]
    client = ClaudeSDKClient(cli.options(*turns), grace=HASTY)
    await client.connect("1")
    await client.query("2")
    await client.interrupt()
    with pytest.raises(ProcessError) as caught:
        _ = [message async for message in client.receive_response()]
    assert not isinstance(caught.value, ResultError)
    assert caught.value.exit_code == 9
    assert "out of memory" in str(caught.value)
    await client.disconnect()
    cli.assert_gone()


async def test_a_cli_that_dies_in_the_middle_of_a_line_is_told_by_its_death(cli: Cli) -> None:
    dies = [["complain", "out of paper\n"], ["raw", '{"type": "assistant", "mess'], ["exit", 7]]
    heard, error = await heard_from(cli, cli.options([["text", "hi"], *dies]), ProcessError)
    assert isinstance(heard[-1], AssistantMessage)
    assert error.exit_code == 7
    assert "out of paper" in str(error)


async def test_a_cli_that_exits_with_0_in_a_turn_that_it_began_by_itself_is_an_error(cli: Cli) -> None:
    own = [["say", {**RESULT, "is_error": False, "subtype": "success"}], ["text", "half of"]]
    options = cli.options([["text", "hi"], *own, ["complain", "out of paper\n"], ["exit", 0]])
    heard, error = await heard_from(cli, options, ProcessError)
    assert isinstance(heard[-1], AssistantMessage)
    assert error.exit_code == 0
    assert "out of paper" in str(error)


async def test_a_cli_that_exits_with_0_before_all_prompts_are_said_is_an_error(cli: Cli) -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "1"}}
        await anyio.sleep_forever()

    options = cli.options([["text", "hi"], ["complain", "out of paper\n"]], script={"then_exit": 0})
    with pytest.raises(ProcessError, match="out of paper") as caught:
        async for _ in query(prompt=prompts(), options=options, grace=HASTY):
            pass
    assert caught.value.exit_code == 0
    cli.assert_gone()


@pytest.mark.parametrize("nonsense", [["raw", '{"type": \n'], ["text", "x" * 100_000]])
async def test_nonsense_is_told_with_the_last_of_its_stderr(cli: Cli, nonsense: list[str]) -> None:
    turn = [["complain", "out of paper\n"], nonsense, ["hang"]]
    _, error = await heard_from(cli, cli.options(turn, max_buffer_size=50_000), CLIJSONDecodeError)
    assert error.stderr == "out of paper"
    assert "out of paper" in str(error)


async def test_a_cli_that_closes_its_stdout_and_stays_is_told_with_the_last_of_its_stderr(cli: Cli) -> None:
    cli.path.write_text("#!/bin/sh\necho 'out of paper' >&2\nexec 1>&-\nexec sleep 3600\n")
    with pytest.raises(CLIConnectionError, match="closed the connection") as caught:
        await ClaudeSDKClient(cli.options(), grace=HASTY).connect()
    assert "out of paper" in str(caught.value)
    assert "cancelled" not in str(caught.value)
    cli.assert_gone()


async def test_after_an_end_in_order_a_prompt_is_told_how_it_ended(cli: Cli) -> None:
    turn = [["text", "hi"], ["complain", "licence expired\n"]]
    client = ClaudeSDKClient(cli.options(turn, script={"then_exit": 0}), grace=HASTY)
    await client.connect("hi")
    _ = [message async for message in client.receive_messages()]
    with pytest.raises(CLIConnectionError, match="exit code: 0") as caught:
        await client.query("again")
    assert "licence expired" in str(caught.value)
    await client.disconnect()
    cli.assert_gone()


@pytest.mark.parametrize("path", ["claude-nowhere", "./claude-nowhere"])
async def test_a_cli_that_is_not_where_the_options_say_is_not_found(cli: Cli, path: str) -> None:
    options = ClaudeAgentOptions(cli_path=path, cwd=cli.folder)
    with pytest.raises(CLINotFoundError, match="claude-nowhere"):
        await ClaudeSDKClient(options).connect()
    options.cwd = cli.file("no folder")
    with pytest.raises(CLIConnectionError, match="no folder") as caught:
        await ClaudeSDKClient(options).connect()
    assert not isinstance(caught.value, CLINotFoundError)


async def test_a_cli_is_run_as_the_user_whom_the_options_name_or_not_at_all(cli: Cli) -> None:
    with pytest.raises(CLIConnectionError, match="no user 'no-such-user'"):
        await ClaudeSDKClient(cli.options(user="no-such-user"), grace=HASTY).connect()
    cli.assert_gone()
