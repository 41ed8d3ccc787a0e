"""`ClaudeSDKClient`: opened, used and closed from any task, on either backend."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.claude import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    CLIConnectionError,
    ResultMessage,
    SystemMessage,
)
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli
from tests.claude.ways_to_stop import PATIENT


async def response(client: ClaudeSDKClient) -> list[Any]:
    return [message async for message in client.receive_response()]


@pytest.mark.real_time
async def test_many_turns_with_one_cli(cli: Cli) -> None:
    async with ClaudeSDKClient(cli.options([["text", "hello"]]), grace=PATIENT) as client:
        pid = client.process.pid
        for text in ("one", "two", "three"):
            await client.query(text)
            assert (await response(client))[-1].result == text
        assert client.process.pid == pid
        assert pid in cli.processes()
        info = await client.get_server_info()
        assert info is not None
        assert info["claude_code_version"]
    cli.assert_gone()
    assert cli.happened("exit") == [0]  # by the end of its input: it had nothing to be interrupted in
    assert client.report is not None
    assert client.report.clean


@pytest.mark.real_time
async def test_opened_by_one_task_used_by_others_and_closed_by_yet_another(cli: Cli) -> None:
    made: list[ClaudeSDKClient] = []
    results: list[Any] = []

    async def open_it() -> None:
        client = ClaudeSDKClient(cli.options([["text", "hello"]]))
        await client.connect()
        made.append(client)

    async def say(text: str) -> None:
        await made[0].query(text)

    async def read() -> None:
        results.append((await response(made[0]))[-1].result)

    async def ask() -> None:
        await made[0].set_model("other")

    async def close() -> None:
        await made[0].disconnect()

    for step in (open_it, lambda: say("one"), read, ask, lambda: say("two"), read, close):
        async with anyio.create_task_group() as group:  # each in a task, and a cancel scope, of its own
            group.start_soon(step)
    assert results == ["one", "two"]
    cli.assert_gone()


async def test_the_end_of_the_task_that_opened_it_does_not_end_it() -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        with anyio.CancelScope() as scope:
            await client.connect()
            scope.cancel()  # of whoever opened it
        await client.query("hi")
        assert isinstance((await response(client))[-1], ResultMessage)
        await client.disconnect()


async def test_a_prompt_at_connect_is_said_at_once() -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect("hi")
        assert (await response(client))[-1].result == "hi"
        await client.disconnect()


async def test_a_stream_of_prompts_is_said_as_it_comes_while_one_reads() -> None:
    go_on = anyio.Event()

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "one"}}
        await go_on.wait()
        yield {"type": "user", "message": {"role": "user", "content": "two"}}

    async with MemoryCli([["text", "hello"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect(prompts())
        results: list[Any] = []
        async for message in client.receive_messages():
            if isinstance(message, ResultMessage):
                results.append(message.result)
                go_on.set()
                if len(results) == 2:
                    break
        assert results == ["one", "two"]
        await client.disconnect()


async def test_the_end_of_a_stream_of_prompts_ends_neither_its_turn_nor_the_session() -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "one"}}

    async with MemoryCli([["sleep", 0.2], ["text", "yes"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect(prompts())
        await anyio.sleep(0.05)  # the stream is at its end, the turn is not
        assert (await response(client))[-1].result == "one"
        await client.query("two")
        assert (await response(client))[-1].result == "two"
        await client.disconnect()


async def test_a_stream_of_prompts_is_closed_with_the_session() -> None:
    closed: list[str] = []

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        try:
            yield {"type": "user", "message": {"role": "user", "content": "one"}}
            await anyio.sleep_forever()
        finally:
            closed.append("closed")

    async with MemoryCli([["text", "hello"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect(prompts())
        await response(client)
        await client.disconnect()
        assert closed == ["closed"]


async def test_a_prompt_may_be_a_stream_of_messages() -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "one"}}

    async with MemoryCli([["text", "hello"]]) as cli:
        async with ClaudeSDKClient(cli.options, cli.transport) as client:
            await client.query(prompts(), session_id="mine")
            assert (await response(client))[-1].result == "one"
        assert cli.got("user")[0]["session_id"] == "mine"


async def test_before_it_is_connected_everything_says_so() -> None:
    client = ClaudeSDKClient()
    for use in (lambda: client.query("hi"), client.interrupt, client.get_mcp_status, client.close):
        with pytest.raises(CLIConnectionError, match="Not connected"):
            await use()
    with pytest.raises(CLIConnectionError, match="Not connected"):
        client.receive_response()
    await client.disconnect()  # as claude-agent-sdk's: nothing happens
    assert client.report is None


async def test_connecting_twice_is_an_error_and_connecting_again_is_not() -> None:
    async with MemoryCli() as one, MemoryCli([["text", "hello"]]) as two:
        client = ClaudeSDKClient(one.options, one.transport)
        await client.connect()
        with pytest.raises(CLIConnectionError, match="connected already"):
            await client.connect()
        await client.disconnect()
        client._transport = two.transport  # those of the wire are used once; a process is started anew
        await client.connect("hi")
        assert (await response(client))[-1].result == "hi"
        await client.disconnect()


async def test_disconnecting_many_times_and_from_many_tasks_is_one_end() -> None:
    async with MemoryCli([["hang"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect("hi")
        async with Scope() as users:
            for _ in range(5):
                users.spawn(client.disconnect)
        await client.disconnect()
        assert cli.asked() == ["initialize", "interrupt"]
        with pytest.raises(CLIConnectionError, match="session is closed"):
            await client.query("again")


async def test_two_that_read_at_once_share_the_messages() -> None:
    async with (
        MemoryCli([["text", "a"], ["text", "b"], ["text", "c"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
        Scope() as users,
    ):
        await client.query("hi")
        readers = [users.spawn(response, client) for _ in range(2)]
        for reader in readers:
            await reader.wait()
        said = [each for reader in readers for each in reader.result() if isinstance(each, AssistantMessage)]
        assert len(said) == 3


async def test_whoever_is_cancelled_while_it_reads_loses_no_message() -> None:
    async with (
        MemoryCli([["wait", "now"], ["text", "hello"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("hi")
        with anyio.CancelScope() as waited:
            async for message in client.receive_response():
                assert isinstance(message, SystemMessage)
                waited.deadline = anyio.current_time() + 0.05  # nothing more is said
        assert waited.cancelled_caught
        cli.raise_flag("now")
        assert isinstance((await response(client))[0], AssistantMessage)


@pytest.mark.real_time
async def test_a_client_can_be_stopped_from_another_thread_by_its_scope(cli: Cli) -> None:
    options = cli.options([["text", "hello"], cli.ticking()])
    scope = await Scope.open("owner")
    client = ClaudeSDKClient(options, grace=PATIENT, scope=scope)
    await client.connect("work")
    await cli.until_ticking()
    thread = threading.Thread(target=scope.cancel, args=("from a thread",))
    thread.start()
    report = await scope.close()
    thread.join()
    cli.assert_gone()
    cli.assert_interrupted_first()
    assert report.clean, str(report)


@pytest.mark.real_time
async def test_a_deadline_of_a_close_squeezes_the_whole_ladder(cli: Cli) -> None:
    script = {"mute": ["interrupt"], "ignore_eof": True, "ignore_term": True}
    client = ClaudeSDKClient(
        cli.options([["text", "hello"], cli.ticking()], script=script), grace=Grace(cancel=60)
    )
    await client.connect("work")
    await cli.until_ticking()
    report = await client.close(deadline=0.5)
    assert report.elapsed < 20
    if (
        not report.clean
    ):  # a machine so slow that even SIGKILL took longer: what is left is named, and still owned
        report = await client.close()
    assert report.clean, str(report)
    cli.assert_gone()


async def test_a_transport_that_is_none_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="transport must be a Transport, not int"):
        await ClaudeSDKClient(ClaudeAgentOptions(), transport=3).connect()
    with pytest.raises(TypeError, match="options must be a ClaudeAgentOptions, not dict"):
        await ClaudeSDKClient({}).connect()  # type: ignore[arg-type]
