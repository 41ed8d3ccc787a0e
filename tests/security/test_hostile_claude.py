"""Threat: the Claude CLI is hostile or broken: it asks for what nobody offered, floods, never reads, and says what no reader can take."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from quiesce.claude import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    HookMatcher,
    PermissionResultAllow,
    ResultMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from quiesce.claude.words.json import decode
from quiesce.wire import Limits
from quiesce.wire.transports.child_process import ProcessExited
from tests.claude.memory_cli import MemoryCli
from tests.claude.ways_to_stop import HASTY
from tests.kernel.temperaments import virtual_worlds
from tests.security.test_foreign_text import ATTACKS, check

pytestmark = virtual_worlds

RESULT = {
    "type": "result",
    "subtype": "success",
    "duration_ms": 1,
    "duration_api_ms": 1,
    "is_error": False,
    "num_turns": 1,
    "session_id": "s",
}


def asks(number: Any, **request: Any) -> list[Any]:
    """A step: a control request."""
    return ["say", {"type": "control_request", "request_id": number, "request": request}]


def may_use(number: Any, wanted: Any, name: Any = "Bash") -> list[Any]:
    return asks(number, subtype="can_use_tool", tool_name=name, input=wanted, tool_use_id="toolu_1")


def calls(number: str, server: Any, message: Any) -> list[Any]:
    return asks(number, subtype="mcp_message", server_name=server, message=message)


class Ours:
    """A hook, a permission and a tool, and what they were called with."""

    def __init__(self, *, waits: bool = False) -> None:
        self.called: list[Any] = []
        self.go_on = anyio.Event()
        if not waits:
            self.go_on.set()

    async def _came(self, given: Any) -> None:
        self.called.append(given)
        await self.go_on.wait()

    async def hook(self, given: Any, tool_use_id: str | None, context: Any) -> Any:
        await self._came(given)
        return {}

    async def may(self, name: str, given: Any, context: Any) -> PermissionResultAllow:
        await self._came((name, given))
        return PermissionResultAllow()

    @property
    def options(self) -> ClaudeAgentOptions:
        @tool("add", "Adds.", {"a": int})
        async def add(given: dict[str, Any]) -> dict[str, Any]:
            await self._came(given)
            return {"content": []}

        return ClaudeAgentOptions(
            hooks={"PreToolUse": [HookMatcher(hooks=[self.hook])]},
            can_use_tool=self.may,
            mcp_servers={"calc": create_sdk_mcp_server("calc", tools=[add])},
        )


@asynccontextmanager
async def attacked(ours: Ours, *steps: Any) -> AsyncIterator[tuple[MemoryCli, Any]]:
    """A client whose CLI does this, and hangs; however it ends."""
    async with MemoryCli([*steps, ["hang"]]) as cli:
        client = ClaudeSDKClient(ours.options, cli.transport, grace=HASTY)
        await client.connect("hi")
        try:
            yield cli, client._session
        finally:
            with suppress(ClaudeSDKError):
                await client.disconnect()


async def until(is_so: Any, turns: int = 2000) -> None:
    """Wait until that holds; not for long."""
    for _ in range(turns):
        if is_so():
            return
        await anyio.sleep(0.001)
    raise AssertionError("it never was so")


# What nobody offered


@pytest.mark.parametrize(
    "step",
    [
        asks("r", subtype="run_anything", command="rm -rf ~"),
        asks("r", subtype=["hook_callback"], callback_id="hook_0"),
        asks("r"),
        asks("r", subtype="hook_callback", callback_id="hook_7", input={}),
        asks("r", subtype="hook_callback", callback_id=0, input={}),
        asks("r", subtype="hook_callback", callback_id=["hook_0"], input={}),
        asks("r", subtype="hook_callback", input={}),
        calls("r", "other", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}),
        calls("r", ["calc"], {"id": 1, "method": "tools/call", "params": {"name": "add"}}),
        calls(
            "r", "calc", {"id": 1, "method": "tools/call", "params": {"name": "rm", "arguments": {"a": 1}}}
        ),
        calls(
            "r", "calc", {"id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": "1"}}}
        ),
        calls("r", "calc", {"id": 1, "method": "tools/call", "params": {"name": "add", "arguments": [1]}}),
        calls(
            "r", "calc", {"id": [1], "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}}
        ),
        calls("r", "calc", {"id": 1, "method": ["tools/call"], "params": {"name": "add"}}),
        calls("r", "calc", ["tools/call"]),
        calls("r", "calc", "tools/call"),
    ],
    ids=range(16),
)
async def test_what_was_not_offered_is_refused_and_nothing_runs(step: Any) -> None:
    ours = Ours()
    async with MemoryCli([step, ["text", "hi"]]) as cli:
        messages = [
            message async for message in query(prompt="hi", options=ours.options, transport=cli.transport)
        ]
        [answer] = cli.answers()
    assert ours.called == []
    assert answer["request_id"] == "r"
    told = json.dumps(answer)
    assert '"error"' in told or '"isError": true' in told
    assert isinstance(messages[-1], ResultMessage)


@pytest.mark.parametrize("number", [None, 1, ["r"], {"r": 1}, True], ids=str)
async def test_a_request_without_an_id_runs_nothing(number: Any) -> None:
    ours = Ours()
    async with MemoryCli([may_use(number, {"command": "ls"}), ["text", "hi"]]) as cli:
        assert [
            message async for message in query(prompt="hi", options=ours.options, transport=cli.transport)
        ]
        assert cli.answers() == []
    assert ours.called == []


@pytest.mark.parametrize("wanted", ["rm -rf ~", ["rm"], 1, True], ids=str)
async def test_nobody_is_asked_about_an_input_that_is_none(wanted: Any) -> None:
    """Who decides looks into an object; in a text or a list they find nothing to refuse."""
    ours = Ours()
    async with MemoryCli([may_use("r", wanted), ["text", "hi"]]) as cli:
        assert [
            message async for message in query(prompt="hi", options=ours.options, transport=cli.transport)
        ]
        [answer] = cli.answers()
    assert ours.called == []
    assert answer["subtype"] == "error"


async def test_what_is_allowed_is_what_was_asked_though_the_cli_asks_again_by_that_id() -> None:
    ours = Ours(waits=True)
    async with attacked(ours, may_use("r", {"command": "ls"}), may_use("r", {"command": "rm -rf ~"})) as (
        cli,
        _,
    ):
        await until(lambda: ours.called)
        await anyio.sleep(0.1)
        ours.go_on.set()
        await until(cli.answers)
        await anyio.sleep(0.1)
        [answer] = cli.answers()
    assert ours.called == [("Bash", {"command": "ls"})]
    assert answer["response"] == {"behavior": "allow", "updatedInput": {"command": "ls"}}


async def test_an_id_that_is_used_again_is_asked_about_again() -> None:
    ours = Ours()
    async with attacked(ours, may_use("r", {"command": "ls"})) as (cli, _):
        await until(cli.answers)
        cli.say(may_use("r", {"command": "rm -rf ~"})[1])
        await until(lambda: len(cli.answers()) == 2)
    assert [given["command"] for _, given in ours.called] == ["ls", "rm -rf ~"]


@pytest.mark.parametrize(
    "response",
    [
        None,
        1,
        [],
        {},
        {"request_id": None},
        {"request_id": ["req_1"]},
        {"request_id": "req_2_00000000", "response": {"mcpServers": 1}},
    ],
    ids=str,
)
async def test_an_answer_to_what_was_not_asked_is_nobodys(response: Any) -> None:
    async with MemoryCli(mute=["mcp_status"]) as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        with anyio.move_on_after(1) as limit:
            async with anyio.create_task_group() as group:
                group.start_soon(client.get_mcp_status)
                await until(lambda: "mcp_status" in cli.asked())
                for subtype in ("success", "error"):
                    told = {**response, "subtype": subtype} if isinstance(response, dict) else response
                    cli.say({"type": "control_response", "response": told})
        assert limit.cancelled_caught
        assert not client._session.mailbox.ended  # type: ignore[union-attr]


# What no reader can take

VALUES: list[Any] = [None, True, -1, 1e308, "", "\x1b[2J", "\ud800", "\x00", [], [[1]], {}, {"a": {"b": []}}]
KINDS = ["user", "assistant", "system", "result", "stream_event", "rate_limit_event", "conversation_reset"]
FIELDS = ["message", "subtype", "event", "rate_limit_info", "is_error", "origin", "deferred_tool_use", "uuid"]


@pytest.mark.parametrize("kind", [*KINDS, "control_response", "control_cancel_request", "command_lifecycle"])
async def test_a_field_of_any_type_is_a_message_or_an_error_of_this_package(kind: str) -> None:
    for field in [*FIELDS, "response", "request_id", "command_uuid", "state", "type"]:
        for value in VALUES:
            wrong = {**RESULT, "message": {"content": [], "model": "m"}, "type": kind, field: value}
            async with MemoryCli() as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
                session: Any = client._session
                session.frames_came([json.dumps(wrong).encode()])
                assert session._error is None or isinstance(session._error, ClaudeSDKError), (field, value)
                session._error = None  # it is looked at; leaving the block would raise it


def deepest() -> int:
    """How deeply JSON may be nested to be read just so."""
    most = 0
    for depth in range(50, 1000):
        try:
            decode(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
        except (ValueError, RecursionError):
            break
        most = depth
    return most


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"control_request","request_id":"r","request":%s}',
        b'{"type":"control_request","request_id":"r","request":{"subtype":%s}}',
        b'{"type":"control_response","response":{"request_id":%s}}',
        b'{"type":"control_cancel_request","request_id":%s}',
        b'{"type":"command_lifecycle","command_uuid":%s}',
        b'{"type":%s}',
        b'{"type":"system","subtype":%s}',
    ],
    ids=range(7),
)
async def test_whatever_is_nested_in_a_line_is_read_or_is_an_error(line: bytes) -> None:
    """What reads lines is called by the event loop: what it raises is lost, and with it every line behind that one."""
    ours = Ours()
    most = deepest()
    async with attacked(ours) as (_, session):
        for depth in range(most - 30, most + 5):
            session.frames_came([line % (b"[" * depth + b"]" * depth)])
        session.frames_came([json.dumps(RESULT).encode()])
        assert session.failed_result is None
        assert session.mailbox.ended or session.mailbox._unread


async def test_whatever_is_nested_in_a_result_the_end_of_the_cli_is_told() -> None:
    status: Any = []
    for _ in range(deepest()):  # it was read where there was more room than where it is told
        status = [status]
    ours = Ours()
    async with attacked(ours) as (_, session):
        session.frames_came([json.dumps({**RESULT, "is_error": True}).encode()])
        session.failed_result["api_error_status"] = status
        session.mailbox._open.clear()
        session.link_ended(ProcessExited("claude", 1, b""))
        assert session.mailbox.ended


@pytest.mark.parametrize("size", [100_000, 5_000_000])
async def test_a_line_without_end_is_not_kept(size: int) -> None:
    async with MemoryCli([["raw", "{" + "x" * size], ["hang"]]) as cli:
        options = ClaudeAgentOptions(max_buffer_size=50_000)
        with pytest.raises(ClaudeSDKError, match="more than 50000 bytes"):
            async for _ in query(prompt="hi", options=options, transport=cli.transport):
                pass


# Floods


async def test_who_asks_and_does_not_read_is_given_up() -> None:
    ours = Ours()
    bound = Limits().unsent + Limits().backlog
    line = json.dumps(asks("r", subtype="x" * 1_000_000)[1]).encode()
    async with attacked(ours) as (_, session):
        most = 0  # nobody gets round to reading what is sent meanwhile
        for _ in range(bound // 1_000_000 + 10):
            session.frames_came([line])
            most = max(most, session._link.pending)
        assert most < bound + 2_000_000


async def test_the_requests_at_work_are_bounded() -> None:
    ours = Ours(waits=True)
    async with attacked(ours) as (_, session):
        for number in range(3000):
            session.frames_came([json.dumps(may_use(str(number), {})[1]).encode()])
        assert len(session.control._inflight) <= Limits().concurrent + Limits().waiting


async def test_what_nobody_reads_is_bounded_while_a_request_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiesce.claude.session.session.UNREAD_LIMIT", 10_000)
    monkeypatch.setattr("quiesce.claude.session.session.MOST_UNREAD", 200_000)
    ours = Ours(waits=True)
    said = {
        "type": "assistant",
        "message": {"model": "m", "content": [{"type": "text", "text": "x" * 10_000}]},
    }
    async with attacked(ours, may_use("r", {}), *[["say", said]] * 300) as (_, session):
        await until(lambda: ours.called)
        await anyio.sleep(0.5)
        assert session.mailbox.bytes < 1_000_000


# What is logged and reported


async def test_what_is_logged_of_a_request_is_short(caplog: pytest.LogCaptureFixture) -> None:
    ours = Ours(waits=True)
    number = "r" * 1_000_000
    async with attacked(ours) as (_, session):
        for _ in range(2):
            session.frames_came([json.dumps(may_use(number, {})[1]).encode()])
    assert all(len(record.getMessage()) < 2000 for record in caplog.records)


async def test_nonsense_is_not_logged_once_a_message(caplog: pytest.LogCaptureFixture) -> None:
    ours = Ours()
    async with attacked(ours) as (_, session):
        session.frames_came([b'{"type":"control_request"}'] * 1000)
    assert 0 < len(caplog.records) < 100


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
async def test_what_it_says_reaches_no_log_and_no_report_as_it_is(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ours = Ours()
    async with attacked(
        ours,
        asks(text, subtype=text),
        asks(text, subtype="hook_callback", callback_id=text),
        asks(1, subtype=text),
        calls("a", text, {"id": text, "method": text}),
        calls("b", "calc", {"id": text, "method": "tools/call", "params": {"name": text}}),
        ["say", {"type": "assistant", "message": {"content": text}}],
    ) as (_, session):
        await until(lambda: session.mailbox.ended)
    report = session.core.report()
    check(str(report))
    for record in caplog.records:
        check(logging.Formatter("%(message)s").format(record))
