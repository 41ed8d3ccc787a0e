"""Tools in this process answer the CLI as claude-agent-sdk's do; and a call that the CLI gives up ends, alone, and says nothing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import quiesce.claude as claude
from quiesce import Scope
from quiesce.claude import create_sdk_mcp_server, tool
from quiesce.claude.tools import McpAnswers, server_of
from quiesce.claude.tools.in_process_server import InProcessServer
from tests.claude import tool_table
from tests.claude.sdk_facts import SDK


def call(name: str, arguments: dict[str, Any] | None = None, id: Any = 1) -> dict[str, Any]:  # noqa: A002
    return {
        "jsonrpc": "2.0",
        "id": id,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments or {}},
    }


def cancelled(id: Any) -> dict[str, Any]:  # noqa: A002
    return {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": id, "reason": "AbortError"},
    }


def serving(*handlers: Callable[[Any], Awaitable[Any]]) -> McpAnswers:
    return server_of(
        create_sdk_mcp_server("test", tools=[tool(one.__name__, "", {})(one) for one in handlers])
    )


class Hold:
    """Two tools, each of which ends when it is let go."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.release = anyio.Event()
        self.ended = anyio.Event()
        self.released = False

    async def first(self, args: Any) -> Any:
        self.begun.set()
        try:
            await self.release.wait()
            self.released = True
        finally:
            self.ended.set()
        return {"content": []}

    async def second(self, args: Any) -> Any:
        return await self.first(args)


async def text_of(server: McpAnswers, name: str) -> str:
    answer = await server.handle(call(name))
    assert answer is not None
    assert answer["result"]["isError"] is True
    [block] = answer["result"]["content"]
    assert isinstance(block["text"], str)
    return block["text"]


async def test_messages_are_answered_as_the_sdk_answers_them(caplog: pytest.LogCaptureFixture) -> None:
    server = server_of(tool_table.server(claude))
    answers = [await server.handle(message) for message in tool_table.MESSAGES]
    for message, answer, expected in zip(tool_table.MESSAGES, answers, SDK["answers"], strict=False):
        assert answer == expected, message
    warned = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    assert ["resource" in said or "audio" in said for said in warned] == [True] * len(tool_table.LEFT_OUT)


async def test_messages_that_lack_something_are_refused_with_the_code_that_the_sdk_refuses_them_with() -> (
    None
):
    server = server_of(tool_table.server(claude))
    for message, expected in zip(tool_table.REFUSED, SDK["answers"][len(tool_table.MESSAGES) :], strict=True):
        answer = await server.handle(message)
        assert answer is not None
        assert (answer["id"], answer["error"]["code"]) == (expected["id"], expected["error"]["code"])
        assert message["method"] in answer["error"]["message"]


def test_a_config_is_what_the_options_take() -> None:
    config = create_sdk_mcp_server("calc", "2.0.0")
    assert {**config, "instance": None} == {"type": "sdk", "name": "calc", "instance": None}
    assert repr(config["instance"]) == "<ToolServer 'calc' 2.0.0, tools: none>"


async def test_what_a_tool_does_wrong_is_told_to_the_model() -> None:
    async def nothing(args: Any) -> Any: ...
    async def number(args: Any) -> Any:
        return {"content": [{"type": "text", "text": 5}]}

    async def strings(args: Any) -> Any:
        return {"content": ["text"]}

    async def silent(args: Any) -> Any:
        raise TimeoutError

    def plain(args: Any) -> Any:
        return {}

    server = serving(nothing, number, strings, silent, plain)
    assert (
        await text_of(server, "nothing")
        == "the tool 'nothing' must return a dict with 'content', not NoneType"
    )
    assert (
        await text_of(server, "number") == "'text' of the text that the tool 'number' returned must be a str"
    )
    assert (
        await text_of(server, "strings")
        == "the content of the tool 'strings' must be a list of dicts, not of str"
    )
    assert await text_of(server, "silent") == "TimeoutError"
    assert (
        await text_of(server, "plain") == "the tool 'plain' must be an async function; calling it gave dict"
    )


async def test_a_schema_that_is_none_is_told_to_the_model() -> None:
    @tool("odd", "", {"type": "object", "properties": {"a": {"type": "no such type"}}})
    async def odd(args: Any) -> Any:
        raise AssertionError("it was called")

    server = server_of(create_sdk_mcp_server("test", tools=[odd]))
    assert "Input schema error: 'no such type'" in await text_of(server, "odd")
    assert "Input schema error: 'no such type'" in await text_of(server, "odd")


async def test_annotations_of_the_package_mcp_are_taken_too() -> None:
    types = pytest.importorskip("mcp.types")
    theirs = types.ToolAnnotations.model_validate({"readOnlyHint": True, "title": "T"})
    made = [tool("a", "", {}, theirs), tool("b", "", {}, {"readOnlyHint": True, "title": "T"})]

    async def nothing(args: Any) -> Any: ...

    config = create_sdk_mcp_server("test", tools=[decorate(nothing) for decorate in made])
    listed = config["instance"].listed
    assert [one["annotations"] for one in listed] == [{"readOnlyHint": True, "title": "T"}] * 2


# Cancelling


async def test_a_call_that_the_cli_gives_up_is_cancelled_alone_and_says_nothing() -> None:
    answers: dict[int, Any] = {}
    given_up = Hold()
    kept = Hold()
    server = serving(given_up.first, kept.second)

    async def ask(id: int, name: str) -> None:  # noqa: A002
        answers[id] = await server.handle(call(name, id=id))

    async with Scope("cli") as scope:
        scope.spawn(ask, 1, "first")
        scope.spawn(ask, 2, "second")
        await given_up.begun.wait()
        await kept.begun.wait()
        assert await server.handle(cancelled(3)) is None
        assert await server.handle(cancelled(1)) is None
        assert await server.handle(cancelled(1)) is None
        await given_up.ended.wait()
        kept.release.set()
    assert answers == {1: None, 2: {"jsonrpc": "2.0", "id": 2, "result": {"content": [], "isError": False}}}
    assert (given_up.released, kept.released) == (False, True)


async def test_a_tool_that_makes_a_result_of_its_cancellation_is_not_answered() -> None:
    answers: list[Any] = []
    swallowed: list[bool] = []
    begun = anyio.Event()

    async def stubborn(args: Any) -> Any:
        try:
            begun.set()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            swallowed.append(True)
        return {"content": [{"type": "text", "text": "all the same"}]}

    server = serving(stubborn)

    async def ask() -> None:
        answers.append(await server.handle(call("stubborn")))

    async with Scope("cli") as scope:
        scope.spawn(ask)
        await begun.wait()
        await server.handle(cancelled(1))
    assert (answers, swallowed) == ([None], [True])


@pytest.mark.parametrize("end", ["notice", "close", "cancel"])
async def test_a_clean_up_of_a_tool_that_fails_is_told(end: str, caplog: pytest.LogCaptureFixture) -> None:
    begun = anyio.Event()

    async def careless(args: Any) -> Any:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("could not roll back")

    server = serving(careless)
    async with Scope("cli") as scope:
        asked = scope.spawn(server.handle, call("careless"))
        await begun.wait()
        if end == "notice":
            await server.handle(cancelled(1))
        elif end == "close":
            await server.close()
        else:
            asked.cancel()
    assert "could not roll back" in caplog.text


async def test_whoever_is_cancelled_while_waiting_for_a_tool_waits_until_it_has_cleaned_up() -> None:
    seen: list[str] = []
    begun = anyio.Event()

    async def slow(args: Any) -> Any:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
            seen.append("cleaned up")

    server = serving(slow)

    async def ask() -> None:
        try:
            await server.handle(call("slow"))
        finally:
            seen.append("control is back")

    async with Scope("cli") as scope:
        asked = scope.spawn(ask)
        await begun.wait()
        asked.cancel()
    assert seen == ["cleaned up", "control is back"]
    assert asked.state == "cancelled"


async def test_the_id_of_a_call_is_free_again_when_it_has_ended() -> None:
    async def quick(args: Any) -> Any:
        return {}

    hold = Hold()
    server = serving(quick, hold.first)
    first, again = await server.handle(call("quick")), await server.handle(call("quick"))
    assert first == again
    async with Scope("cli") as scope:
        scope.spawn(server.handle, call("first"))
        await hold.begun.wait()
        twice = await server.handle(call("quick"))
        assert twice is not None
        assert twice["error"]["code"] == -32600
        hold.release.set()
    assert await server.handle(call("quick")) == first


async def test_closing_a_server_cancels_its_calls() -> None:
    holds = Hold(), Hold()
    server = serving(holds[0].first, holds[1].second)
    answers: list[Any] = []

    async def ask(id: int, name: str) -> None:  # noqa: A002
        answers.append(await server.handle(call(name, id=id)))

    async with Scope("cli") as scope:
        scope.spawn(ask, 1, "first")
        scope.spawn(ask, 2, "second")
        for hold in holds:
            await hold.begun.wait()
        await server.close()
    assert answers == [None, None]


async def test_sessions_that_share_a_server_do_not_share_calls() -> None:
    hold = Hold()
    config = create_sdk_mcp_server("test", tools=[tool("first", "", {})(hold.first)])
    one, other = server_of(config), server_of(config)
    assert isinstance(one, InProcessServer)
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await one.handle(call("first")))

    async with Scope("cli") as scope:
        scope.spawn(ask)
        await hold.begun.wait()
        await other.handle(cancelled(1))
        hold.release.set()
    assert [answer["result"] for answer in answers] == [{"content": [], "isError": False}]


@pytest.mark.parametrize("params", [None, [], {}, {"requestId": None}, {"requestId": []}], ids=str)
async def test_a_notice_that_names_no_call_is_nothing(params: Any) -> None:
    assert (
        await serving().handle({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        is None
    )


def test_tools_without_the_package_that_checks_their_input_are_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    assert create_sdk_mcp_server("empty")["name"] == "empty"
    with pytest.raises(ImportError, match=r"jsonschema.*quiesce\[claude\]"):
        serving(Hold().first)


@pytest.mark.parametrize("instance", [None, object(), "server"], ids=["nothing", "an object", "a name"])
def test_an_instance_that_is_no_server_is_refused(instance: Any) -> None:
    with pytest.raises(TypeError, match=f"'odd'.*{type(instance).__name__}"):
        server_of({"type": "sdk", "name": "odd", "instance": instance})
