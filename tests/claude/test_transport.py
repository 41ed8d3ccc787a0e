"""Ways to a CLI of one's own: those of the wire, and those that were written for claude-agent-sdk."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce.claude import (
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
        self.cleaned_up = False

    async def connect(self) -> None:
        self.calls.append("connect")
        if self._fail == "connect":
            raise ConnectionRefusedError("nobody there")

    async def write(self, data: str) -> None:
        if self._fail == "write":
            raise BrokenPipeError("cut")
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
        finally:
            self.cleaned_up = True

    async def close(self) -> None:
        self.calls.append("close")
        self._channel.abort()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        self.calls.append("end_input")


async def test_a_transport_of_ones_own_carries_a_run() -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        mine = Foreign(cli)
        messages = [message async for message in query(prompt="hi", options=cli.options, transport=mine)]
        assert isinstance(messages[-1], ResultMessage)
        assert mine.calls == ["connect", "close"]
        assert mine.cleaned_up


async def test_it_is_closed_however_a_client_ends() -> None:
    async with MemoryCli([["hang"]]) as cli:
        mine = Foreign(cli)
        with pytest.raises(LookupError):
            async with ClaudeSDKClient(cli.options, mine) as client:
                await client.query("hi")
                raise LookupError("the body")
        assert mine.calls[-1] == "close"
        assert mine.cleaned_up
        assert cli.asked() == ["initialize", "interrupt"]


async def test_one_that_cannot_connect_is_an_error_that_says_why() -> None:
    async with MemoryCli() as cli:
        with pytest.raises(CLIConnectionError, match="nobody there"):
            await ClaudeSDKClient(cli.options, Foreign(cli, "connect")).connect()


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
