"""Control requests both ways: who answers what, who is cancelled, and how each ends when the session does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope, shielded
from quiesce.claude import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    CLIConnectionError,
    HookMatcher,
    PermissionResultAllow,
    ResultMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli
from tests.claude.ways_to_stop import HASTY


class Hooks:
    """A hook that stays at work until it is cancelled or told to go on, and remembers what became of each call."""

    def __init__(self, answer_when_cancelled: bool = False) -> None:
        self.began: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.go_on = anyio.Event()
        self._changed = anyio.Event()
        self._answer_when_cancelled = answer_when_cancelled

    async def __call__(self, given: Any, tool_use_id: str | None, context: Any) -> Any:
        name = given["name"]
        self.began.append(name)
        self._tell()
        try:
            await self.go_on.wait()
        except anyio.get_cancelled_exc_class():
            self.ended.append((name, "cancelled"))
            self._tell()
            if self._answer_when_cancelled:
                return {"decision": "block", "reason": "I was cancelled"}
            raise
        self.ended.append((name, "answered"))
        self._tell()
        return {}

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, *, began: int = 0, ended: int = 0) -> None:
        while len(self.began) < began or len(self.ended) < ended:
            await self._changed.wait()

    @property
    def options(self) -> ClaudeAgentOptions:
        return ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[self])]})


def hook_call(number: str) -> list[Any]:
    """A step: the CLI asks the hook, by this id."""
    request = {"subtype": "hook_callback", "callback_id": "hook_0", "input": {"name": number}}
    return ["ask", number, request]


async def read_all(client: ClaudeSDKClient) -> list[Any]:
    return [message async for message in client.receive_response()]


# What the CLI asks for, and takes back


async def test_a_request_that_is_taken_back_cancels_exactly_its_handler_which_answers_nothing() -> None:
    hooks = Hooks()
    turn = [hook_call("one"), hook_call("two"), ["wait", "begun"], ["cancel", "one"], ["await", "two"]]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(hooks.options, cli.transport) as client:
        await client.query("hi")
        await hooks.until(began=2)
        cli.raise_flag("begun")
        await hooks.until(ended=1)
        assert hooks.ended == [("one", "cancelled")]
        hooks.go_on.set()
        await read_all(client)
        assert [answer["request_id"] for answer in cli.answers()] == ["two"]


async def test_a_handler_that_makes_a_value_of_its_cancellation_answers_nothing_either() -> None:
    hooks = Hooks(answer_when_cancelled=True)
    turn = [
        hook_call("one"),
        ["wait", "begun"],
        ["cancel", "one"],
        ["sleep", 0.05],
        hook_call("two"),
        ["await", "two"],
    ]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(hooks.options, cli.transport) as client:
        await client.query("hi")
        await hooks.until(began=1)
        cli.raise_flag("begun")
        await hooks.until(began=2)
        assert hooks.ended == [("one", "cancelled")]
        hooks.go_on.set()
        await read_all(client)
        assert [answer["request_id"] for answer in cli.answers()] == ["two"]


async def test_a_request_that_is_taken_back_at_once_never_gets_to_its_handler_or_is_cancelled_in_it() -> None:
    hooks = Hooks()
    turn = [hook_call("one"), ["cancel", "one"], ["sleep", 0.05], ["text", "done"]]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(hooks.options, cli.transport) as client:
        await client.query("hi")
        await read_all(client)
        assert hooks.ended == [(name, "cancelled") for name in hooks.began]
        assert cli.answers() == []


async def test_taking_back_what_nobody_knows_changes_nothing() -> None:
    hooks = Hooks()
    hooks.go_on.set()
    turn = [
        ["cancel", "nobody"],
        hook_call("one"),
        ["await", "one"],
        ["cancel", "one"],
        ["say", {"type": "control_cancel_request"}],
    ]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(hooks.options, cli.transport) as client:
        await client.query("hi")
        assert isinstance((await read_all(client))[-1], ResultMessage)
        assert hooks.ended == [("one", "answered")]
        assert len(cli.answers()) == 1


async def test_an_id_is_forgotten_when_its_request_is_done_and_may_be_used_again() -> None:
    hooks = Hooks()
    hooks.go_on.set()
    turn = [hook_call("one"), ["await", "one"], hook_call("one"), ["await", "one"]]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(hooks.options, cli.transport) as client:
        await client.query("hi")
        await read_all(client)
        assert [answer["subtype"] for answer in cli.answers()] == ["success", "success"]


async def test_an_id_that_is_still_at_work_is_passed_over_and_the_first_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refusal would be taken for the answer to the first."""
    hooks = Hooks()
    turn = [hook_call("one"), hook_call("one"), hook_call("two"), ["await", "one"], ["await", "two"]]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(hooks.options, cli.transport) as client:
        await client.query("hi")
        await hooks.until(began=2)
        assert sorted(hooks.began) == ["one", "two"]
        assert "'one', of a request that is still being handled" in caplog.text
        hooks.go_on.set()
        await read_all(client)
        answers = sorted((answer["request_id"], answer["subtype"]) for answer in cli.answers())
        assert answers == [("one", "success"), ("two", "success")]


async def test_a_permission_and_a_call_of_a_tool_can_be_taken_back_too() -> None:
    hooks = Hooks()

    async def may(name: str, given: Any, context: Any) -> PermissionResultAllow:
        await hooks({"name": name}, None, None)
        return PermissionResultAllow()

    @tool("add", "Adds.", {})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        await hooks({"name": "add"}, None, None)
        return {"content": []}

    call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "add", "arguments": {}}}
    turn = [
        ["ask", "one", {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}}],
        ["ask", "two", {"subtype": "mcp_message", "server_name": "calc", "message": call}],
        ["wait", "begun"],
        ["cancel", "one"],
        ["cancel", "two"],
        ["sleep", 0.05],
    ]
    server = create_sdk_mcp_server("calc", tools=[add])
    options = ClaudeAgentOptions(can_use_tool=may, mcp_servers={"calc": server})
    async with MemoryCli(turn) as cli, ClaudeSDKClient(options, cli.transport) as client:
        await client.query("hi")
        await hooks.until(began=2)
        cli.raise_flag("begun")
        await read_all(client)
        assert sorted(hooks.ended) == [("Bash", "cancelled"), ("add", "cancelled")]
        assert cli.answers() == []


async def test_an_interrupt_cancels_the_tool_of_ours_that_the_cli_waits_for() -> None:
    """By a message of MCP's own: the CLI does not take that question back."""
    hooks = Hooks()

    @tool("add", "Adds.", {})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        await hooks({"name": "add"}, None, None)
        return {"content": []}

    options = ClaudeAgentOptions(mcp_servers={"calc": create_sdk_mcp_server("calc", tools=[add])})
    async with MemoryCli([["mcp", "calc", "add", {}]], mcp_servers=["calc"]) as cli:
        async with ClaudeSDKClient(options, cli.transport) as client:
            await client.query("hi")
            await hooks.until(began=1)
            await client.interrupt()
            assert (await read_all(client))[-1].subtype == "error_during_execution"
            await hooks.until(ended=1)
        assert hooks.ended == [("add", "cancelled")]


def given_up_at_once(server: str, tool: str, times: int) -> list[Any]:
    """A step: the CLI calls a tool and gives that up, so many times, in one breath."""
    lines = []
    for number in range(100, 100 + times):
        call = {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
        gone = {"method": "notifications/cancelled", "params": {"requestId": number}}
        for what, message in (("call", call), ("gone", gone)):
            request = {
                "subtype": "mcp_message",
                "server_name": server,
                "message": {"jsonrpc": "2.0", **message},
            }
            lines.append(
                json.dumps({"type": "control_request", "request_id": f"{what} {number}", "request": request})
            )
    return ["raw", "".join(line + "\n" for line in lines)]


async def assert_given_up(server: Any, tool: str) -> None:
    """None of its calls is at work a while later, and none is answered; the notices are."""
    times = 20
    options = ClaudeAgentOptions(mcp_servers={"calc": server})
    async with (
        MemoryCli([given_up_at_once("calc", tool, times), ["hang"]], mcp_servers=["calc"]) as cli,
        ClaudeSDKClient(options, cli.transport) as client,
    ):
        greetings = len(cli.answers())
        await client.query("hi")
        session: Any = client._session
        with anyio.fail_after(10):
            while len(cli.answers()) < greetings + times or session.control.is_busy:
                await anyio.sleep(0.001)
        assert {answer["request_id"].split()[0] for answer in cli.answers()[greetings:]} == {"gone"}


async def test_a_call_of_a_tool_that_is_given_up_at_once_is_given_up_whichever_is_worked_on_first() -> None:
    hooks = Hooks()

    @tool("add", "Adds.", {})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        await hooks({"name": "add"}, None, None)
        return {"content": []}

    await assert_given_up(create_sdk_mcp_server("calc", tools=[add]), "add")
    assert hooks.ended == [(name, "cancelled") for name in hooks.began]


async def test_an_interrupt_takes_back_the_hook_that_the_cli_waits_for_before_it_is_answered() -> None:
    hooks = Hooks()

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        return await hooks({"name": given["tool_name"]}, tool_use_id, context)

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with MemoryCli([["tool"]]) as cli, ClaudeSDKClient(options, cli.transport) as client:
        await client.query("hi")
        await hooks.until(began=1)
        await client.interrupt()
        await hooks.until(ended=1)
        assert hooks.ended == [("Bash", "cancelled")]
        await read_all(client)
        assert cli.answers() == []
        assert not [what for what, _ in cli.events if what == "late"]
        assert not cli.tools  # it was never started


async def test_a_hook_can_see_that_it_was_cancelled_and_why() -> None:
    seen: list[Any] = []

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append((context["signal"].cancelled, str(context["signal"].reason)))

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    turn = [hook_call("one"), ["sleep", 0.05], ["cancel", "one"], ["sleep", 0.05]]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(options, cli.transport) as client:
        await client.query("hi")
        await read_all(client)
    assert seen == [(True, "user: the CLI cancelled the request")]


async def test_handlers_are_awaited_at_close_and_answer_nothing() -> None:
    tidy: list[str] = []
    began = anyio.Event()

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:

            async def tidy_up() -> None:
                await anyio.sleep(0.05)
                tidy.append("tidy")

            await shielded(tidy_up)

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with MemoryCli([hook_call("one"), ["text", "asked"], ["hang"]]) as cli:
        async with ClaudeSDKClient(options, cli.transport) as client:
            await client.query("hi")
            await anext(aiter(client.receive_messages()))
            await began.wait()
        assert tidy == ["tidy"]
        assert cli.answers() == []


@pytest.mark.parametrize("end", ["taken back", "close"])
async def test_a_clean_up_that_fails_is_told(end: str, caplog: pytest.LogCaptureFixture) -> None:
    began = anyio.Event()

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        try:
            began.set()
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("could not roll back")

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with MemoryCli([hook_call("one"), ["wait", "now"], ["cancel", "one"]]) as cli:
        async with ClaudeSDKClient(options, cli.transport) as client:
            await client.query("hi")
            await began.wait()
            if end == "taken back":
                cli.raise_flag("now")
                await read_all(client)
                with anyio.fail_after(10):
                    while "could not roll back" not in caplog.text:
                        await anyio.sleep(0.001)
        assert "could not roll back" in caplog.text
        assert client.report is not None
        assert client.report.clean
        assert cli.answers() == []


async def test_a_hook_that_is_told_of_the_end_by_what_it_asks_for_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        await client.get_mcp_status()

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with (
        MemoryCli([hook_call("one"), ["hang"]], mute=["mcp_status"]) as cli,
        ClaudeSDKClient(options, cli.transport) as client,
    ):
        await client.query("hi")
        while "mcp_status" not in cli.asked():
            await anyio.sleep(0.001)
    assert not caplog.records


class Whim(BaseException):
    """No `Exception`, and nobody's cancellation."""


async def raise_whim() -> None:
    raise Whim("no")


async def cancel_itself() -> None:
    """What it awaits was cancelled, by nobody who wanted to cancel it."""
    inner = asyncio.ensure_future(asyncio.sleep(3600))
    inner.cancel()
    await inner


async def told_of(options: ClaudeAgentOptions, turn: list[Any], **script: Any) -> list[dict[str, Any]]:
    """How the CLI's questions in this turn are answered; the turn goes on to its result."""
    async with (
        MemoryCli(turn, [["text", "two"]], **script) as cli,
        ClaudeSDKClient(options, cli.transport) as client,
    ):
        await client.query("hi")
        with anyio.fail_after(10):
            assert isinstance((await read_all(client))[-1], ResultMessage)
        await client.query("still there?")
        assert (await read_all(client))[-1].result == "still there?"
        return cli.answers()


async def told_of_a_hook(end: Callable[[], Awaitable[None]]) -> str:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        await end()

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    (answer,) = await told_of(options, [hook_call("one"), ["await", "one"]])
    return str(answer["subtype"])


async def told_of_a_permission(end: Callable[[], Awaitable[None]]) -> str:
    async def may(name: str, given: Any, context: Any) -> PermissionResultAllow:
        await end()
        return PermissionResultAllow()

    (answer,) = await told_of(ClaudeAgentOptions(can_use_tool=may), [["tool", {"times": 1}]])
    return str(answer["subtype"])


async def told_of_a_tool(end: Callable[[], Awaitable[None]]) -> str:
    @tool("add", "Adds.", {})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        await end()
        return {"content": []}

    options = ClaudeAgentOptions(mcp_servers={"calc": create_sdk_mcp_server("calc", tools=[add])})
    answer = (await told_of(options, [["mcp", "calc", "add", {}]], mcp_servers=["calc"]))[-1]
    if answer["subtype"] == "error":
        return "error"
    return "error" if answer["response"]["mcp_response"]["result"]["isError"] else "success"


HANDLERS = pytest.mark.parametrize("told", [told_of_a_hook, told_of_a_permission, told_of_a_tool])


@HANDLERS
async def test_a_handler_that_raises_what_is_no_exception_is_answered_with_an_error(told: Any) -> None:
    assert await told(raise_whim) == "error"


@HANDLERS
@pytest.mark.worlds("asyncio", "asyncio-eager", "uvloop")
async def test_a_handler_that_ends_by_its_own_cancel_is_answered_with_an_error(told: Any) -> None:
    assert await told(cancel_itself) == "error"


@pytest.mark.worlds("asyncio", "uvloop")  # an eager task takes its first step at once
async def test_a_handler_that_is_cancelled_before_its_first_step_is_answered_with_an_error() -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        return {}

    async def cancel_handlers() -> None:
        while True:
            for task in asyncio.all_tasks():
                if "Control._answer" in task.get_name():
                    task.cancel()
            await asyncio.sleep(0)

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with Scope("the user's") as users:
        canceller = users.spawn(cancel_handlers)
        (answer,) = await told_of(options, [hook_call("one"), ["await", "one"]])
        canceller.cancel()
    assert answer["subtype"] == "error"


async def test_a_hook_may_close_the_client_that_it_works_for() -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        await client.disconnect()

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with MemoryCli([hook_call("one"), ["hang"]]) as cli:
        client = ClaudeSDKClient(options, cli.transport)
        await client.connect("hi")
        assert not [
            message async for message in client.receive_messages() if isinstance(message, ResultMessage)
        ]
        await client.close()


async def test_a_hook_may_ask_the_cli_something() -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        await client.set_permission_mode("plan")
        return {}

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with MemoryCli([hook_call("one"), ["await", "one"]]) as cli:
        async with ClaudeSDKClient(options, cli.transport) as client:
            await client.query("hi")
            await read_all(client)
        assert cli.asked() == ["initialize", "set_permission_mode"]


# What we ask the CLI for


async def test_an_interrupt_is_answered_though_nobody_reads_messages() -> None:
    async with MemoryCli([["flood", 1000, 5000], ["talk", 0.01]]) as cli:
        async with ClaudeSDKClient(cli.options, cli.transport) as client:
            await client.query("hi")
            await anyio.sleep(0.05)
            with anyio.fail_after(15):
                await client.interrupt()
            messages = await read_all(client)  # nothing of it was lost
        assert len([message for message in messages if isinstance(message, AssistantMessage)]) > 5000
        assert isinstance(messages[-1], ResultMessage)


async def test_a_cli_that_says_more_than_anybody_reads_has_to_wait_but_not_with_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quiesce.claude.session.session.UNREAD_LIMIT", 100_000)
    async with (
        MemoryCli([["flood", 1000, 2000], ["talk", 0.05]], capacity=65536) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("hi")
        session: Any = client._session
        while not session._paused:
            await anyio.sleep(0.001)
        assert 100_000 < session.mailbox.bytes < 300_000
        with anyio.fail_after(15):
            await client.interrupt()  # reads on until it is answered
        messages = await read_all(client)
    assert len([message for message in messages if isinstance(message, AssistantMessage)]) >= 2000


async def test_a_cli_that_says_more_than_anybody_reads_is_heard_when_it_takes_a_request_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quiesce.claude.session.session.UNREAD_LIMIT", 100_000)
    hooks = Hooks()
    turn = [hook_call("one"), ["wait", "begun"], ["flood", 10_000, 40], ["cancel", "one"], ["hang"]]
    async with (
        MemoryCli(turn, capacity=20_000) as cli,
        ClaudeSDKClient(hooks.options, cli.transport) as client,
    ):
        await client.query("hi")
        await hooks.until(began=1)
        cli.raise_flag("begun")
        with anyio.fail_after(15):
            await hooks.until(ended=1)
        assert hooks.ended == [("one", "cancelled")]


async def test_what_the_cli_refuses_is_an_error_with_its_words() -> None:
    async with MemoryCli() as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        with pytest.raises(ClaudeSDKError, match="mcp_reconnect: Server not found: nope"):
            await client.reconnect_mcp_server("nope")
        with pytest.raises(ClaudeSDKError, match="File rewinding is not enabled"):
            await client.rewind_files("some-id")
        await client.stop_task("nobody")
        assert await client.get_mcp_status() == {"mcpServers": []}
        await client.set_model("other")
        assert cli.got("control_request")[-1]["request"] == {"subtype": "set_model", "model": "other"}


async def test_a_request_whose_caller_is_cancelled_is_forgotten() -> None:
    async with (
        MemoryCli([["hang"]], mute=["mcp_status"]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        with anyio.move_on_after(0.05) as waited:
            await client.get_mcp_status()
        assert waited.cancelled_caught
        session: Any = client._session
        assert not session.control.is_busy
        await client.set_model(None)


@pytest.mark.parametrize(
    "end", ["disconnect", "the CLI exits", "the CLI talks nonsense", "its owner is closed"]
)
async def test_every_request_that_waits_fails_at_once_at_any_end(end: str) -> None:
    turns: dict[str, list[Any]] = {
        "the CLI exits": [["wait", "now"], ["exit", 0]],
        "the CLI talks nonsense": [["wait", "now"], ["raw", "{nonsense\n"], ["hang"]],
    }
    failed: list[BaseException] = []

    async def ask(client: ClaudeSDKClient) -> None:
        try:
            await client.get_mcp_status()
        except CLIConnectionError as error:
            failed.append(error)

    async with MemoryCli(turns.get(end, [["hang"]]), mute=["mcp_status"]) as cli:
        owner = await Scope.open("owner")
        client = ClaudeSDKClient(cli.options, cli.transport, scope=owner)
        await client.connect("hi")
        async with Scope() as users:
            asking = [users.spawn(ask, client) for _ in range(3)]
            while cli.asked().count("mcp_status") < 3:
                await anyio.sleep(0.001)
            began = anyio.current_time()
            if end == "disconnect":
                await client.disconnect()
            elif end == "its owner is closed":
                await owner.close()
            else:
                cli.raise_flag("now")
            for each in asking:
                await each.wait()
            assert anyio.current_time() - began < 10
        assert len(failed) == 3
        assert all("'mcp_status' was not answered" in str(error) for error in failed), failed
        await owner.close()


async def test_a_request_that_waits_fails_at_once_though_a_hook_takes_its_time_to_clean_up() -> None:
    began = anyio.Event()
    ended: list[str] = []

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:

            async def tidy_up() -> None:
                await anyio.sleep(2)
                ended.append("hook")

            await shielded(tidy_up)

    async def ask(client: ClaudeSDKClient) -> None:
        with pytest.raises(CLIConnectionError, match="'mcp_status' was not answered"):
            await client.get_mcp_status()
        ended.append("request")

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with MemoryCli([hook_call("one"), ["hang"]], mute=["mcp_status"]) as cli, Scope() as users:
        client = ClaudeSDKClient(options, cli.transport)
        await client.connect("hi")
        await began.wait()
        users.spawn(ask, client)
        while "mcp_status" not in cli.asked():
            await anyio.sleep(0.001)
        await client.disconnect()
    assert ended == ["request", "hook"]


async def test_a_stop_waits_no_longer_for_an_interrupt_that_was_answered_before_it_got_to_wait() -> None:
    """As the answer comes while there is still time to cooperate."""
    async with MemoryCli([["hang"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport, grace=Grace(cooperate=0.5, cancel=30))
        await client.connect("hi")
        report = await client.close()
        assert cli.asked() == ["initialize", "interrupt"]
        assert 0.5 <= report.elapsed < 9  # a third of the 30 s would be given to an answer


@pytest.mark.real_time
async def test_a_cli_that_exits_with_0_fails_every_request_at_once(cli: Cli) -> None:
    failed: list[str] = []

    async def ask(client: ClaudeSDKClient) -> None:
        with pytest.raises(CLIConnectionError, match="was not answered: the CLI has exited") as caught:
            await client.get_mcp_status()
        failed.append(str(caught.value))

    options = cli.options(
        [["complain", "out of paper\n"], ["wait", cli.file("now")], ["exit", 0]],
        script={"mute": ["mcp_status"]},
    )
    client = ClaudeSDKClient(options, grace=HASTY)
    await client.connect("hi")
    async with Scope() as users:
        users.spawn(ask, client)
        users.spawn(ask, client)
        while len(cli.got("control_request", subtype="mcp_status")) < 2:
            await anyio.sleep(0.005)
        cli.raise_flag("now")
    assert len(failed) == 2
    assert all("out of paper" in text for text in failed)
    with pytest.raises(CLIConnectionError, match="not answered"):
        await client.interrupt()
    await client.disconnect()
    cli.assert_gone()


async def test_a_query_that_was_stopped_asks_nothing_more() -> None:
    async with MemoryCli([["text", "hello"], ["hang"]]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)
        async with messages:
            await anext(aiter(messages))
        with pytest.raises(CLIConnectionError, match="'interrupt' was not answered: the session is closed"):
            await messages.interrupt()


def call_of_the_hook() -> list[Any]:
    return ["ask", "req-1", {"subtype": "hook_callback", "callback_id": "hook_0", "input": {}}]


class SlowHook:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.cancelled = False
        self.begun = anyio.Event()

    async def __call__(self, given: Any, tool_use_id: str | None, context: Any) -> Any:
        self.begun.set()
        try:
            await anyio.sleep(self.seconds)
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise
        return {}

    @property
    def options(self) -> ClaudeAgentOptions:
        return ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[self])]})


async def test_a_cancel_request_cancels_the_hook_in_flight() -> None:
    hook = SlowHook(60)
    turn = [call_of_the_hook(), ["wait", "begun"], ["cancel", "req-1"], ["sleep", 0.05]]
    async with MemoryCli(turn) as cli, ClaudeSDKClient(hook.options, cli.transport) as client:
        await client.query("hi")
        await hook.begun.wait()
        cli.raise_flag("begun")
        _ = [message async for message in client.receive_response()]
        assert hook.cancelled
        assert cli.answers() == []


async def test_a_cancel_request_for_an_unknown_id_does_nothing() -> None:
    async with (
        MemoryCli([["cancel", "no-such-request"], ["text", "hello"]]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("hi")
        assert isinstance([message async for message in client.receive_response()][-1], ResultMessage)


async def test_of_a_hook_that_has_ended_nothing_is_kept() -> None:
    hook = SlowHook(0)
    async with (
        MemoryCli([call_of_the_hook(), ["await", "req-1"]]) as cli,
        ClaudeSDKClient(hook.options, cli.transport) as client,
    ):
        await client.query("hi")
        _ = [message async for message in client.receive_response()]
        session: Any = client._session
        assert len(session.control._inflight) == 0
        assert [answer["subtype"] for answer in cli.answers()] == ["success"]
