"""Connecting: by one task at a time, given up by any other, and leaving nothing if it fails."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce import Scope, ScopeClosed
from quiesce.claude import ClaudeSDKClient, CLIConnectionError, ResultMessage, Transport
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli


async def test_of_two_that_connect_at_once_one_does_and_the_other_is_told() -> None:
    async with MemoryCli([["text", "hello"]]) as cli, Scope(on_error="report") as users:
        client = ClaudeSDKClient(cli.options, cli.transport)
        both = [users.spawn(client.connect), users.spawn(client.connect)]
        for each in both:
            await each.wait()
        assert sorted(each.state for each in both) == ["failed", "finished"]
        with pytest.raises(CLIConnectionError, match="disconnect\\(\\) first"):
            _ = [each.result() for each in both]
        await client.query("hi")
        messages = [message async for message in client.receive_response()]
        assert isinstance(messages[-1], ResultMessage)
        await client.disconnect()
        assert cli.asked() == ["initialize"]


@pytest.mark.real_time
async def test_one_that_is_being_connected_can_be_disconnected_and_nothing_is_left(cli: Cli) -> None:
    client = ClaudeSDKClient(cli.options([["hang"]], script={"mute": ["initialize"]}))
    async with Scope(on_error="report") as users:
        connecting = users.spawn(client.connect)
        with anyio.fail_after(15):
            while not cli.got("control_request", subtype="initialize"):  # it has started, and does not answer
                await anyio.sleep(0.005)
        await client.disconnect()
        cli.assert_gone()
        await connecting.wait()
    with pytest.raises(CLIConnectionError, match="closed while it was connecting"):
        connecting.result()
    assert client.report is not None
    assert client.report.clean, str(client.report)
    with pytest.raises(CLIConnectionError, match="Not connected: call connect"):
        await client.query("hi")


async def test_one_that_was_disconnected_while_it_was_being_connected_can_be_connected_again() -> None:
    async with MemoryCli(mute=["initialize"]) as one, MemoryCli([["text", "hello"]]) as two:
        client = ClaudeSDKClient(one.options, one.transport)
        async with Scope(on_error="report") as users:
            users.spawn(client.connect)
            while not one.asked():
                await anyio.sleep(0.001)
            await client.disconnect()
        client._transport = two.transport
        await client.connect("hi")
        messages: list[Any] = [message async for message in client.receive_response()]
        assert messages[-1].result == "hi"
        await client.disconnect()


async def test_while_it_is_being_connected_everything_else_says_so() -> None:
    async with MemoryCli(mute=["initialize"]) as cli, Scope(on_error="report") as users:
        client = ClaudeSDKClient(cli.options, cli.transport)
        users.spawn(client.connect)
        while not cli.asked():
            await anyio.sleep(0.001)
        with pytest.raises(CLIConnectionError, match="is being connected"):
            await client.connect()
        for use in (lambda: client.query("hi"), client.interrupt, client.get_server_info):
            with pytest.raises(CLIConnectionError, match="Not connected yet"):
                await use()
        with pytest.raises(CLIConnectionError, match="Not connected yet"):
            client.receive_messages()
        await client.disconnect()


class Stubborn(Transport):
    """Fails when its connecting is given up."""

    def __init__(self) -> None:
        self.connecting = anyio.Event()
        self.calls: list[str] = []

    async def connect(self) -> None:
        try:
            self.connecting.set()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            raise ConnectionAbortedError("given up") from None

    async def write(self, data: str) -> None:
        raise NotImplementedError

    def read_messages(self) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        self.calls.append("close")

    def is_ready(self) -> bool:
        return False

    async def end_input(self) -> None:
        self.calls.append("end_input")


async def test_giving_up_what_then_fails_to_connect_is_no_error_of_whoever_gives_it_up() -> None:
    mine = Stubborn()
    client = ClaudeSDKClient(transport=mine)
    async with Scope(on_error="report") as users:
        connecting = users.spawn(client.connect)
        await mine.connecting.wait()
        await client.disconnect()
        await connecting.wait()
    with pytest.raises(ConnectionAbortedError, match="given up"):
        connecting.result()
    assert mine.calls == ["close"]
    await client.disconnect()


async def test_if_its_first_prompt_cannot_be_said_nothing_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "quiesce.claude.session.client.user_message", lambda *_: {"type": "user", "message": object()}
    )
    async with MemoryCli([["text", "hello"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        with pytest.raises(TypeError, match="unsupported"):
            await client.connect("hi")
        assert client.report is not None
        while ("eof", None) not in cli.events:
            await anyio.sleep(0.001)
        with pytest.raises(CLIConnectionError, match="session is closed"):
            await client.query("hi")


async def test_where_its_owner_is_closed_it_cannot_be_connected_and_lets_go_of_its_transport() -> None:
    async with MemoryCli() as cli:
        owner = await Scope.open("owner")
        await owner.close()
        client = ClaudeSDKClient(cli.options, cli.transport, scope=owner)
        with pytest.raises(ScopeClosed):
            await client.connect()
        while ("eof", None) not in cli.events:
            await anyio.sleep(0.001)
        await client.disconnect()  # nothing was connected


async def test_whoever_is_cancelled_before_its_connecting_has_begun_lets_go_of_the_transport() -> None:
    async with MemoryCli() as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.connect()
        assert scope.cancelled_caught
        while ("eof", None) not in cli.events:
            await anyio.sleep(0.001)
