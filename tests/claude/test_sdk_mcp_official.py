"""Servers of the official package mcp in this process: asked, given up and ended as ours are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.claude import ClaudeAgentOptions, ClaudeSDKClient
from quiesce.claude.tools import McpAnswers, server_of
from tests.claude.memory_cli import MemoryCli
from tests.claude.test_control import assert_given_up

types: Any = pytest.importorskip("mcp.types")
lowlevel: Any = pytest.importorskip("mcp.server.lowlevel")

if not hasattr(types, "jsonrpc_message_adapter"):
    pytest.skip("the servers of these tests are made as mcp 2 makes them", allow_module_level=True)

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "cli", "version": "2"},
    },
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Seen:
    """What the server went through."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.waits = anyio.Event()
        self.cancelled = anyio.Event()

    @asynccontextmanager
    async def lifespan(self, server: Any) -> AsyncIterator[dict[str, Any]]:
        self.events.append("started")
        try:
            yield {}
        finally:
            self.events.append("ended")

    async def called(self, context: Any, params: Any) -> Any:
        if params.name == "wait":
            try:
                self.waits.set()
                await anyio.sleep_forever()
            finally:
                self.events.append("cancelled")
                self.cancelled.set()
        if params.name == "ask back":
            try:
                await context.session.send_request(types.ListRootsRequest(), types.ListRootsResult)
            except Exception as error:
                return types.CallToolResult(
                    content=[types.TextContent(type="text", text=type(error).__name__)]
                )
        return types.CallToolResult(content=[types.TextContent(type="text", text=f"{params.arguments}")])

    def server(self) -> McpAnswers:
        made = lowlevel.Server("theirs", version="3", lifespan=self.lifespan, on_call_tool=self.called)
        return server_of({"type": "sdk", "name": "theirs", "instance": made})


def call(name: str, id: Any = 1) -> dict[str, Any]:  # noqa: A002
    return {
        "jsonrpc": "2.0",
        "id": id,
        "method": "tools/call",
        "params": {"name": name, "arguments": {"a": 1}},
    }


async def greeted(server: McpAnswers) -> None:
    hello = await server.handle(HELLO)
    assert hello is not None
    assert hello["result"]["serverInfo"]["name"] == "theirs"
    assert await server.handle(READY) is None


async def test_it_answers_and_ends() -> None:
    seen = Seen()
    server = seen.server()
    await greeted(server)
    answer = await server.handle(call("echo"))
    assert answer is not None
    assert answer["result"]["content"] == [{"type": "text", "text": "{'a': 1}"}]
    refused = await server.handle({"jsonrpc": "2.0", "id": 5, "method": "prompts/list"})
    assert refused is not None
    assert refused["error"]["code"] == -32601
    await server.close()
    await server.close()
    assert seen.events == ["started", "ended"]


async def test_closing_one_that_was_never_asked_is_nothing() -> None:
    seen = Seen()
    await seen.server().close()
    assert seen.events == []


async def test_a_call_that_the_cli_gives_up_is_cancelled_and_not_answered() -> None:
    seen = Seen()
    server = seen.server()
    await greeted(server)
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await server.handle(call("wait")))

    async with Scope("cli") as scope:
        scope.spawn(ask)
        await seen.waits.wait()
        told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert await server.handle(told) is None
    assert answers == [None]
    await seen.cancelled.wait()
    assert seen.events == ["started", "cancelled"]
    assert await server.handle(call("echo")) is not None
    await server.close()


async def test_a_call_that_is_given_up_at_once_is_given_up_whichever_is_worked_on_first() -> None:
    seen = Seen()
    made = lowlevel.Server("theirs", version="3", lifespan=seen.lifespan, on_call_tool=seen.called)
    await assert_given_up({"type": "sdk", "name": "theirs", "instance": made}, "wait")


async def test_who_is_cancelled_while_waiting_takes_the_call_along() -> None:
    seen = Seen()
    server = seen.server()
    await greeted(server)
    async with Scope("cli") as scope:
        asked = scope.spawn(server.handle, call("wait"))
        await seen.waits.wait()
        asked.cancel()
    await seen.cancelled.wait()
    assert (asked.state, seen.events) == ("cancelled", ["started", "cancelled"])
    await server.close()


async def test_closing_it_ends_its_calls() -> None:
    seen = Seen()
    server = seen.server()
    await greeted(server)
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await server.handle(call("wait")))

    async with Scope("cli") as scope:
        scope.spawn(ask)
        await seen.waits.wait()
        await server.close()
        assert seen.events == ["started", "cancelled", "ended"]
    assert answers[0]["error"]["code"] == -32603


async def test_an_ordinary_close_is_no_failure_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    made = lowlevel.Server("theirs", version="3", lifespan=seen.lifespan, on_call_tool=seen.called)
    options = ClaudeAgentOptions(mcp_servers={"calc": {"type": "sdk", "name": "theirs", "instance": made}})
    async with MemoryCli([["mcp", "calc", "wait", {}]], mcp_servers=["calc"]) as cli:
        async with ClaudeSDKClient(options, cli.transport) as client:
            await client.query("hi")
            await seen.waits.wait()
        assert seen.events == ["started", "cancelled", "ended"]
    assert not caplog.records


async def test_a_clean_up_that_fails_at_the_close_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Seen):
        @asynccontextmanager
        async def lifespan(self, server: Any) -> AsyncIterator[dict[str, Any]]:
            try:
                yield {}
            finally:
                raise OSError("could not roll back")

    server = Fails().server()
    await greeted(server)
    await server.close()
    assert "could not roll back" in caplog.text


async def test_what_it_asks_of_its_client_is_refused_at_once() -> None:
    seen = Seen()
    server = seen.server()
    await greeted(server)
    with anyio.fail_after(5):
        answer = await server.handle(call("ask back"))
    assert answer is not None
    assert "Error" in answer["result"]["content"][0]["text"]
    await server.close()


@pytest.mark.parametrize("message", [{"id": 3}, {"jsonrpc": "2.0", "id": 3, "method": 5}], ids=str)
async def test_what_is_no_message_is_an_error_of_the_protocol(message: dict[str, Any]) -> None:
    server = Seen().server()
    await greeted(server)
    answer = await server.handle(message)
    assert answer is not None
    assert (answer["id"], answer["error"]["code"]) == (3, -32600)
    await server.close()


async def test_one_that_fails_says_so_until_it_is_greeted_again(caplog: pytest.LogCaptureFixture) -> None:
    failing = [True]

    class Fails(Seen):
        @asynccontextmanager
        async def lifespan(self, server: Any) -> AsyncIterator[dict[str, Any]]:
            if failing[0]:
                raise OSError("no database")
            yield {}

    server = Fails().server()
    for message in (HELLO, call("echo")):
        answer = await server.handle(message)
        assert answer is not None
        assert answer["error"]["message"] == "the MCP server 'theirs' has stopped: OSError: no database"
    assert await server.handle(READY) is not None
    failing[0] = False
    await greeted(server)
    assert await server.handle(call("echo")) is not None
    await server.close()
