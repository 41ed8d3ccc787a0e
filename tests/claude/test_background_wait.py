"""How long a query waits for sub-agents that work on in the background after its result."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce import Grace
from quiesce.claude import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    Message,
    PermissionResultAllow,
    Query,
    ResultMessage,
    SystemMessage,
    query,
)
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli
from tests.claude.ways_to_stop import HASTY
from tests.kernel.temperaments import virtual_worlds

CEILING = "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS"
MINUTES = 60.0
A_DAY = 24 * 60 * MINUTES

RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "duration_ms": 1,
    "duration_api_ms": 1,
    "num_turns": 1,
    "result": "launched",
}


def task(subtype: str, **fields: Any) -> list[Any]:
    return ["say", {"type": "system", "subtype": subtype, "task_id": "t1", **fields}]


STARTED = task("task_started", description="Look around", task_type="local_agent")
ENDED = task("task_notification", status="completed", output_file="/out", summary="Done")
# The state is not "idle" after this result: what follows is the work of a sub-agent in the background.
LAUNCHED: list[Any] = [["text", "I have sent someone."], STARTED, ["say", RESULT]]


def by_sub_agent(text: str) -> list[Any]:
    message = {
        "id": "msg_sub",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": text}],
    }
    return ["say", {"type": "assistant", "message": message, "parent_tool_use_id": "toolu_1"}]


async def messages_of(run: Query) -> tuple[list[Message], float]:
    """What it says, and how long it takes."""
    began = anyio.current_time()
    with anyio.fail_after(A_DAY):
        return [message async for message in run], anyio.current_time() - began


def results(messages: list[Message]) -> list[str | None]:
    return [message.result for message in messages if isinstance(message, ResultMessage)]


async def _hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
    return {}


WITH_HOOKS = {"hooks": {"PreToolUse": [HookMatcher(hooks=[_hook])]}}


@virtual_worlds
@pytest.mark.parametrize("more", [{}, WITH_HOOKS], ids=["plain", "hooks"])
async def test_a_query_ends_ten_minutes_after_its_result_though_a_sub_agent_hangs(
    more: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with MemoryCli([*LAUNCHED, ["hang"]]) as cli:
        run = query(prompt="go", options=ClaudeAgentOptions(**more), transport=cli.transport)
        messages, took = await messages_of(run)
    assert results(messages) == ["launched"]
    assert took == pytest.approx(10 * MINUTES, abs=1)
    assert cli.asked() == ["initialize", "interrupt"]
    [complaint] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "'Look around'" in complaint
    assert f"{CEILING}=0" in complaint


@virtual_worlds
@pytest.mark.parametrize(
    ("given", "ambient", "seconds"),
    [
        ("20000", None, 20.0),
        (None, "20000", 20.0),
        ("20000", "5000", 20.0),
        ("2e4", None, 20.0),
        ("soon", None, 600.0),
        ("-1", None, 600.0),
        ("nan", None, 600.0),
        ("", None, 600.0),
        ("0", None, A_DAY),
        ("9" * 400, None, A_DAY),
    ],
)
async def test_how_long_it_waits_is_said_as_to_the_cli(
    given: str | None, ambient: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ambient is not None:
        monkeypatch.setenv(CEILING, ambient)
    options = ClaudeAgentOptions(env={CEILING: given} if given is not None else {})
    async with MemoryCli([*LAUNCHED, ["hang"]]) as cli:
        began = anyio.current_time()
        with anyio.move_on_after(A_DAY):
            async for _ in query(prompt="go", options=options, transport=cli.transport):
                pass
        assert anyio.current_time() - began == pytest.approx(seconds, abs=1)


@virtual_worlds
async def test_the_turn_that_a_sub_agent_gives_rise_to_is_waited_for_whole() -> None:
    turn = [["say", {"type": "system", "subtype": "init"}], ["sleep", 9 * MINUTES], ["talk", 9 * MINUTES, 5]]
    async with MemoryCli([*LAUNCHED, ["sleep", 9 * MINUTES], ENDED, ["sleep", 9 * MINUTES], *turn]) as cli:
        messages, _ = await messages_of(query(prompt="go", transport=cli.transport))
    assert results(messages) == ["launched", "go"]
    assert "interrupt" not in cli.asked()


@virtual_worlds
async def test_what_a_sub_agent_says_does_not_prolong_the_wait() -> None:
    chatter = [by_sub_agent("still here"), ["sleep", MINUTES]] * 60
    async with MemoryCli([*LAUNCHED, *chatter]) as cli:
        messages, took = await messages_of(query(prompt="go", transport=cli.transport))
    assert results(messages) == ["launched"]
    assert took == pytest.approx(10 * MINUTES, abs=MINUTES)


@virtual_worlds
async def test_nor_does_a_consumer_that_is_slower_than_the_sub_agent() -> None:
    chatter = [by_sub_agent("still here"), ["sleep", 1.0]] * 1000
    async with MemoryCli([*LAUNCHED, *chatter]) as cli:
        read = 0
        async for _ in query(prompt="go", transport=cli.transport):
            await anyio.sleep(2)
            read += 1
    assert 600 < read < 610


@virtual_worlds
async def test_a_question_of_a_sub_agents_is_not_counted_while_it_is_answered() -> None:
    async def may(name: str, given: dict[str, Any], context: Any) -> PermissionResultAllow:
        await anyio.sleep(60 * MINUTES)
        return PermissionResultAllow()

    def state(state: str) -> list[Any]:
        return ["say", {"type": "system", "subtype": "session_state_changed", "state": state}]

    ask = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "agent_id": "t1"}
    work = [state("requires_action"), ["ask", "one", ask], ["await", "one"], state("running")]
    async with MemoryCli([*LAUNCHED, *work, ["sleep", 9 * MINUTES]]) as cli:
        options = ClaudeAgentOptions(can_use_tool=may)
        messages, _ = await messages_of(query(prompt="go", options=options, transport=cli.transport))
    assert results(messages) == ["launched", "go"]


@virtual_worlds
async def test_the_wait_begins_when_the_last_prompt_is_answered_and_no_more_can_come() -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "go"}}
        await anyio.sleep(60 * MINUTES)

    async with MemoryCli([*LAUNCHED, ["hang"]]) as cli:
        messages, took = await messages_of(query(prompt=prompts(), transport=cli.transport))
    assert results(messages) == ["launched"]
    assert took == pytest.approx(70 * MINUTES, abs=1)


@virtual_worlds
async def test_a_client_waits_for_nothing_and_ends_nothing() -> None:
    async with (
        MemoryCli([*LAUNCHED, ["sleep", 60 * MINUTES], ENDED]) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        await client.query("go")
        messages: list[Message] = []
        async for message in client.receive_messages():
            messages.append(message)
            if results(messages) == ["launched", "go"]:
                break
    assert "task_notification" in [m.subtype for m in messages if isinstance(m, SystemMessage)]


@pytest.mark.real_time
@pytest.mark.parametrize("more", [{}, WITH_HOOKS], ids=["plain", "hooks"])
async def test_a_cli_that_would_wait_for_ever_is_gone_with_its_tree(cli: Cli, more: Any) -> None:
    script = {"ignore_eof": True, "mute": ["interrupt"]}
    turn = [*LAUNCHED, ["grandchild", {"ready": cli.file("up")}], ["hang"]]
    options = cli.options(turn, script=script, **more)
    options.env[CEILING] = "300"
    messages = [message async for message in query(prompt="go", options=options, grace=HASTY)]
    cli.assert_gone()
    assert results(messages) == ["launched"]


@virtual_worlds
async def test_the_wait_ends_with_the_query(caplog: pytest.LogCaptureFixture) -> None:
    """No timer is left that would hold the session, and end what has ended."""
    async with MemoryCli([*LAUNCHED, ["hang"]]) as cli:
        run = query(prompt="go", transport=cli.transport, grace=Grace())
        async with run:
            async for message in run:
                if isinstance(message, ResultMessage):
                    break
        await anyio.sleep(20 * MINUTES)
    assert run.report is not None
    assert run.report.clean
    assert not caplog.records
