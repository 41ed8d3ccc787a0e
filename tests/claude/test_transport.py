"""Ways to a CLI of one's own: those of the wire, and those that were written for claude-agent-sdk."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
    Transport,
    query,
)
from tests.claude.memory_cli import MemoryCli


class Foreign(Transport):
    """As somebody would write one for claude-agent-sdk: here, around a CLI in memory."""

    def __init__(self, cli: MemoryCli, fail: str | None = None) -> None:
        self._channel: Any = cli.transport._channel
        self._fail = fail
        self.calls: list[str] = []
        self.written: list[str] = []
        self.cleaned_up = False

    async def connect(self) -> None:
        self.calls.append("connect")
        if self._fail == "connect":
            raise ConnectionRefusedError("nobody there")
        if self._fail == "connect hangs":
            await anyio.sleep_forever()

    async def write(self, data: str) -> None:
        self.written.append(data)
        if self._fail == "write":
            raise BrokenPipeError("cut")
        if self._fail == "write hangs" and '"user"' in data:
            self.calls.append("write")
            await anyio.sleep_forever()
        await self._channel.send(data.encode())

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        try:
            rest = b""
            while data := await self._channel.receive():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if self._fail == "read" and b"assistant" in line:
                        raise ConnectionResetError("cut while reading")
                    yield json.loads(line)
                    if self._fail == "ends in mid-turn" and b"assistant" in line:
                        return
                    if self._fail == "ends between turns" and b'"idle", "sdk' in line:
                        return
        finally:
            self.cleaned_up = True

    async def close(self) -> None:
        await anyio.sleep(0)  # as one that waits for what it ends
        self.calls.append("close")
        self._channel.abort()
        if self._fail == "close":
            raise ConnectionResetError("cut while closing")
        if self._fail == "close hangs":
            await anyio.sleep_forever()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        self.calls.append("end_input")
        if self._fail == "end_input":
            raise BrokenPipeError("cut")
        if self._fail == "end_input hangs":
            await anyio.sleep_forever()


CONNECTED = ["connect", "end_input", "close"]  # and ended in that order


@asynccontextmanager
async def given_up_when(reached: Callable[[], object]) -> AsyncIterator[anyio.CancelScope]:
    """The block is cancelled as soon as that holds."""

    async def give_up() -> None:
        while not reached():
            await anyio.sleep(0.001)
        scope.cancel()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(give_up)
            yield scope


async def test_a_transport_of_ones_own_carries_a_run() -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        mine = Foreign(cli)
        messages = [message async for message in query(prompt="hi", options=cli.options, transport=mine)]
        assert isinstance(messages[-1], ResultMessage)
        assert mine.calls == CONNECTED
        assert mine.cleaned_up


async def test_each_message_is_written_by_itself() -> None:
    """Though several wait to be written: those who wrote a transport for claude-agent-sdk may parse what they are given."""
    prompts = ["one", "two\nlines", "three \u2028 too"]
    async with MemoryCli([["text", "hello"]]) as cli:
        mine = Foreign(cli)
        async with ClaudeSDKClient(cli.options, mine) as client:
            for prompt in prompts:
                await client.query(prompt)
            async for _ in client.receive_response():
                pass
    sent = [json.loads(data) for data in mine.written]
    assert [message["message"]["content"] for message in sent if message["type"] == "user"] == prompts
    assert all(data.endswith("\n") for data in mine.written)


async def test_one_that_ends_in_mid_turn_is_an_error_after_all_that_came() -> None:
    async with MemoryCli([["text", "half an"], ["hang"]]) as cli:
        last: Any = None
        with pytest.raises(CLIConnectionError, match="has closed the connection"):
            async for message in query(prompt="hi", transport=Foreign(cli, "ends in mid-turn")):
                last = message
    assert isinstance(last, AssistantMessage)


async def test_one_that_ends_between_turns_ends_the_messages_in_order() -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        client = ClaudeSDKClient(cli.options, Foreign(cli, "ends between turns"))
        await client.connect("hi")
        heard = [message async for message in client.receive_messages()]
        assert isinstance(heard[-1], ResultMessage)
        with pytest.raises(
            CLIConnectionError, match="the session is closed: the CLI has closed the connection"
        ):
            await client.query("more")
        await client.disconnect()


async def test_it_is_closed_however_a_client_ends() -> None:
    async with MemoryCli([["hang"]]) as cli:
        mine = Foreign(cli)
        with pytest.raises(LookupError):
            async with ClaudeSDKClient(cli.options, mine) as client:
                await client.query("hi")
                raise LookupError("the body")
        assert mine.calls == CONNECTED
        assert mine.cleaned_up
        assert cli.asked() == ["initialize", "interrupt"]


async def test_one_that_cannot_connect_is_an_error_that_says_why_and_is_closed() -> None:
    async with MemoryCli() as cli:
        mine = Foreign(cli, "connect")
        with pytest.raises(CLIConnectionError, match="nobody there"):
            await ClaudeSDKClient(cli.options, mine).connect()
        assert mine.calls == ["connect", "close"]


async def test_one_that_is_given_up_while_it_connects_is_closed() -> None:
    async with MemoryCli() as cli:
        mine = Foreign(cli, "connect hangs")
        client = ClaudeSDKClient(cli.options, mine)
        async with given_up_when(lambda: mine.calls) as waited:
            await client.connect()
        assert waited.cancelled_caught
        assert mine.calls == ["connect", "close"]


async def test_one_that_is_given_up_while_its_cli_says_nothing_is_told_of_the_end_and_closed() -> None:
    async with MemoryCli(mute=["initialize"]) as cli:
        mine = Foreign(cli)
        async with given_up_when(cli.asked) as waited, ClaudeSDKClient(cli.options, mine):
            pass
        assert waited.cancelled_caught
        assert mine.calls == CONNECTED
        assert mine.cleaned_up


@pytest.mark.parametrize("fail", ["end_input", "end_input hangs"])
async def test_one_that_cannot_be_told_of_the_end_is_closed_all_the_same(fail: str) -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        mine = Foreign(cli, fail)
        async with ClaudeSDKClient(cli.options, mine) as client:
            pass
        assert mine.calls == CONNECTED
        assert client.report is not None
        assert client.report.clean, str(client.report)


@pytest.mark.worlds("asyncio", "trio")  # in virtual time
async def test_one_whose_time_is_over_while_it_is_told_of_the_end_is_closed_all_the_same() -> None:
    async with MemoryCli() as cli:
        mine = Foreign(cli, "end_input hangs")
        client = ClaudeSDKClient(cli.options, mine, grace=Grace(cancel=60))
        await client.connect()
        await client.close(deadline=1)
        assert mine.calls == CONNECTED
        await client.close()


@pytest.mark.worlds("asyncio", "trio")  # in virtual time: it takes as long as a stop may
async def test_one_that_does_not_write_is_told_of_the_end_all_the_same() -> None:
    async with MemoryCli() as cli:
        mine = Foreign(cli, "write hangs")
        client = ClaudeSDKClient(cli.options, mine)
        await client.connect("hi")
        while "write" not in mine.calls:
            await anyio.sleep(0.001)
        report = await client.close()
        assert mine.calls == ["connect", "write", "end_input", "close"]
        assert report.clean, str(report)


async def test_one_that_fails_to_close_is_an_error_of_whoever_closes() -> None:
    async with MemoryCli() as cli:
        client = ClaudeSDKClient(cli.options, Foreign(cli, "close"))
        await client.connect()
        with pytest.raises(ConnectionResetError, match="cut while closing"):
            await client.disconnect()


async def test_one_that_fails_to_close_does_not_lose_the_error_of_the_body() -> None:
    async with MemoryCli() as cli:
        with pytest.raises(ConnectionResetError, match="cut while closing") as told:
            async with ClaudeSDKClient(cli.options, Foreign(cli, "close")):
                raise LookupError("the body")
        assert isinstance(told.value.__context__, LookupError)


async def test_one_that_fails_to_close_does_not_lose_the_cancellation_of_the_body() -> None:
    connected = anyio.Event()
    told: list[BaseException] = []

    async def use(client: ClaudeSDKClient) -> None:
        try:
            async with client:
                connected.set()
                await anyio.sleep_forever()
        except BaseException as error:
            told.append(error)
            raise

    async with MemoryCli() as cli, Scope("users", on_error="report") as users:
        user = users.spawn(use, ClaudeSDKClient(cli.options, Foreign(cli, "close")))
        await connected.wait()
        user.cancel()  # once: asyncio does not tell it again
        await user.wait()
    assert isinstance(told[0], anyio.get_cancelled_exc_class())
    assert isinstance(told[0].__cause__, ConnectionResetError)


@pytest.mark.worlds(
    "asyncio", "trio"
)  # in virtual time: its own limit comes a second before that of the stop
async def test_one_that_does_not_close_in_time_is_an_error_of_whoever_closes() -> None:
    async with MemoryCli() as cli:
        client = ClaudeSDKClient(cli.options, Foreign(cli, "close hangs"), grace=Grace(cancel=3))
        await client.connect()
        with pytest.raises(TimeoutError, match="of Foreign was cancelled: it took longer than 2 s"):
            await client.disconnect()


class WithTasks(Foreign):
    """With tasks of its own from `connect` to `close`, and others while it reads: those who entered such a group must leave it."""

    async def connect(self) -> None:
        await super().connect()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(anyio.sleep_forever)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            async for message in super().read_messages():
                yield message
            tasks.cancel_scope.cancel()

    async def close(self) -> None:
        await super().close()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)


@pytest.mark.parametrize("who", ["itself", "another task", "nobody: it is cancelled"])
async def test_one_may_have_tasks_of_its_own_whoever_uses_and_closes_it(who: str) -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        mine = WithTasks(cli)
        client = ClaudeSDKClient(cli.options, mine)

        async def use() -> None:
            async with client:
                await client.query("hi")
                messages: list[Any] = [message async for message in client.receive_response()]
                assert messages[-1].result == "hi"
                if who == "another task":
                    async with Scope() as users:
                        users.spawn(client.disconnect)
                elif who != "itself":
                    scope.cancel()
                    await anyio.sleep_forever()

        with anyio.CancelScope() as scope:
            await use()
        assert mine.calls == CONNECTED


@pytest.mark.parametrize("fail", ["write", "read"])
async def test_one_that_fails_ends_the_session_with_its_error(fail: str) -> None:
    async with MemoryCli([["text", "hello"], ["hang"]]) as cli:
        mine = Foreign(cli, fail)
        with pytest.raises(CLIConnectionError, match="cut"):
            async for _ in query(prompt="hi", options=cli.options, transport=mine):
                pass
        assert mine.calls[-1] == "close"


async def test_one_that_has_no_process_says_so_when_asked_for_it() -> None:
    async with MemoryCli() as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        with pytest.raises(CLIConnectionError, match="no process"):
            _ = client.process


async def test_a_cli_in_memory_is_told_of_the_end_too() -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        async with ClaudeSDKClient(ClaudeAgentOptions(), cli.transport) as client:
            await client.query("hi")
            _ = [message async for message in client.receive_response()]
        await anyio.sleep(0.01)
        assert ("eof", None) in cli.events
