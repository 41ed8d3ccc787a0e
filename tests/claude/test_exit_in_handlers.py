"""`sys.exit()` in a hook, a permission or a tool: the session stops, and whoever uses it gets the SystemExit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.claude import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    CLIConnectionError,
    HookMatcher,
    create_sdk_mcp_server,
    query,
    tool,
)
from tests.claude.clis import ROOT, Cli
from tests.claude.memory_cli import MemoryCli

STATUS = 7


async def a_hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
    sys.exit(STATUS)


async def a_permission(name: str, given: Any, context: Any) -> Any:
    sys.exit(STATUS)


@tool("add", "Adds.", {})
async def a_tool(given: dict[str, Any]) -> dict[str, Any]:
    sys.exit(STATUS)


TOOL = ["tool", {"times": 1}]
HANDLERS: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {
    "hook": ({"hooks": {"PreToolUse": [HookMatcher(hooks=[a_hook])]}}, TOOL, {}),
    "permission": ({"can_use_tool": a_permission}, TOOL, {}),
    "tool": (
        {"mcp_servers": {"calc": create_sdk_mcp_server("calc", tools=[a_tool])}},
        ["mcp", "calc", "add", {}],
        {"mcp_servers": ["calc"]},
    ),
}

Use = Callable[[MemoryCli, ClaudeAgentOptions], Awaitable[None]]


async def is_stopped(cli: MemoryCli) -> None:
    while "interrupt" not in cli.asked():
        await anyio.sleep(0.001)


async def read_a_query(cli: MemoryCli, options: ClaudeAgentOptions) -> None:
    async for _ in query(prompt="hi", options=options, transport=cli.transport):
        pass


async def read_slowly(cli: MemoryCli, options: ClaudeAgentOptions) -> None:
    """It is told with the next message that it asks for."""
    async for _ in query(prompt="hi", options=options, transport=cli.transport):
        await is_stopped(cli)


async def leave_the_block_of_a_query(cli: MemoryCli, options: ClaudeAgentOptions) -> None:
    async with query(prompt="hi", options=options, transport=cli.transport) as messages:
        await anext(messages)
        await is_stopped(cli)


async def read_a_response(cli: MemoryCli, options: ClaudeAgentOptions) -> None:
    async with ClaudeSDKClient(options, cli.transport) as client:
        await client.query("hi")
        async for _ in client.receive_response():
            pass


async def wait_for_an_answer(cli: MemoryCli, options: ClaudeAgentOptions) -> None:
    """That fails as at any end of the session; the end of the block tells of the exit."""
    async with ClaudeSDKClient(options, cli.transport) as client:
        await client.query("hi")
        with pytest.raises(CLIConnectionError, match="SystemExit"):
            await client.get_mcp_status()


async def say_more(cli: MemoryCli, options: ClaudeAgentOptions) -> None:
    async with ClaudeSDKClient(options, cli.transport) as client:
        await client.query("hi")
        await is_stopped(cli)
        await client.query("and then?")


async def leave_a_block(cli: MemoryCli, options: ClaudeAgentOptions) -> None:
    async with ClaudeSDKClient(options, cli.transport) as client:
        await client.query("hi")
        await is_stopped(cli)


async def disconnect(cli: MemoryCli, options: ClaudeAgentOptions) -> None:
    client = ClaudeSDKClient(options, cli.transport)
    await client.connect("hi")
    await is_stopped(cli)
    await client.disconnect()


USES: list[Use] = [
    read_a_query,
    read_slowly,
    leave_the_block_of_a_query,
    read_a_response,
    wait_for_an_answer,
    say_more,
    leave_a_block,
    disconnect,
]


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_whoever_uses_the_session_gets_the_exit(
    handler: str, use: Use, caplog: pytest.LogCaptureFixture
) -> None:
    more, step, script = HANDLERS[handler]
    async with MemoryCli([step, ["hang"]], mute=["mcp_status"], **script) as cli:
        with anyio.fail_after(10), pytest.raises(SystemExit) as caught:
            await use(cli, ClaudeAgentOptions(**more))
    assert caught.value.code == STATUS
    assert "interrupt" in cli.asked()
    assert not cli.tools, "the tool has run, though its hook had no answer"
    assert not caplog.records


async def test_an_exit_in_a_scope_of_a_hook_is_the_same() -> None:
    async def leave() -> None:
        sys.exit(STATUS)

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        async with Scope("the user's") as scope:
            scope.spawn(leave)
            scope.spawn(anyio.sleep_forever)

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with MemoryCli([TOOL]) as cli:
        with pytest.raises(SystemExit) as caught:
            await read_a_query(cli, options)
    assert caught.value.code == STATUS


async def test_an_exit_in_the_clean_up_of_a_hook_comes_out_of_the_close() -> None:
    started = anyio.Event()

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            sys.exit(STATUS)

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with MemoryCli([TOOL]) as cli:
        client = ClaudeSDKClient(options, cli.transport)
        await client.connect("hi")
        await started.wait()
        with pytest.raises(SystemExit) as caught:
            await client.disconnect()
    assert caught.value.code == STATUS
    assert client.report is not None


async def test_an_exit_in_a_stream_of_prompts_is_one_too() -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "one"}}
        sys.exit(STATUS)

    async with MemoryCli([["hang"]]) as cli:
        with pytest.raises(SystemExit) as caught:
            async for _ in query(prompt=prompts(), transport=cli.transport):
                pass
    assert caught.value.code == STATUS


PROGRAM = """
import sys
import quiesce
from quiesce.claude import ClaudeAgentOptions, ClaudeSDKClient, HookMatcher, query

async def hook(given, tool_use_id, context):
    sys.exit(7)

options = ClaudeAgentOptions(cli_path=sys.argv[1], hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})

async def use_query():
    async for message in query(prompt="work", options=options):
        pass
    print("it goes on")

async def use_client():
    async with ClaudeSDKClient(options) as client:
        await client.query("work")
        async for message in client.receive_response():
            pass
    print("it goes on")

main = {"query": use_query, "client": use_client}[sys.argv[3]]
if sys.argv[2] == "trio":
    import trio
    trio.run(main)
elif sys.argv[2] == "uvloop":
    import uvloop
    uvloop.run(main())
elif sys.argv[2] == "quiesce":
    quiesce.run(main)
else:
    import asyncio
    asyncio.run(main())
"""


@pytest.mark.real_time
@pytest.mark.parametrize("use", ["query", "client"])
@pytest.mark.parametrize("run", ["asyncio", "uvloop", "trio", "quiesce"])
def test_a_program_ends_with_the_status_that_its_hook_has_given(cli: Cli, run: str, use: str) -> None:
    turn = [["text", "hello"], cli.ticking(), ["text", "done"]]
    environment = {**os.environ, **cli.environment(turn), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(cli.path), run, use],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (STATUS, "", "")
    assert cli.ticks() == 0
    cli.assert_gone()
