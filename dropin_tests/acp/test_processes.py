"""Agents and clients that are processes: when a stop returns, their trees have ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.world import asyncio_only

from quiesce import Scope
from quiesce.dropin.acp import (
    PROTOCOL_VERSION,
    spawn_agent_process,
    spawn_client_process,
    spawn_stdio_connection,
    spawn_stdio_transport,
    text_block,
)
from quiesce.dropin.acp.core import AgentSideConnection, ClientSideConnection, Connection

from .made_up import Agent, Client, others

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]

# For a prompt it starts a process, which SIGTERM does not take along; while it works, it ignores the end of its input.
AGENT = Path(__file__).parent.parent.parent / "peers" / "standins" / "acp_agent.py"
COMMAND = (sys.executable, str(AGENT))
MARK = {"ACP_TEST": os.environ.get("ACP_TEST", str(os.getpid()))}


def processes() -> list[str]:
    """The command lines of the processes that this test has started, at any depth."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"ACP_TEST={MARK['ACP_TEST']}\0" in (path / "environ").read_text():
                found.append((path / "cmdline").read_text())
        except (OSError, UnicodeDecodeError):
            continue
    return found


class Watcher(Client):
    def __init__(self) -> None:
        super().__init__()
        self.updated = asyncio.Event()

    async def session_update(self, **_: Any) -> None:
        self.updated.set()


async def start_work(connection: ClientSideConnection, client: Watcher) -> asyncio.Task[Any]:
    await connection.initialize(protocol_version=PROTOCOL_VERSION)
    session = await connection.new_session(cwd="/", mcp_servers=[])
    prompt = connection.prompt(session_id=session.session_id, prompt=[text_block("Work.")])
    task = asyncio.create_task(prompt)
    await client.updated.wait()
    return task


async def test_a_block_ends_the_agent_with_what_it_has_started() -> None:
    async with spawn_agent_process(client := Watcher(), *COMMAND, env=MARK) as (connection, process):
        assert isinstance(connection, ClientSideConnection)
        prompt = await start_work(connection, client)
    assert process.returncode is not None
    assert processes() == []
    assert (await prompt).stop_reason == "cancelled"
    assert others() == []


@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancelled_block_ends_the_agent(cancels: int) -> None:
    async def use() -> None:
        async with spawn_agent_process(client := Watcher(), *COMMAND, env=MARK) as (connection, _):
            await start_work(connection, client)
            working.set()
            await asyncio.sleep(3600)

    working = asyncio.Event()
    using = asyncio.create_task(use())
    await working.wait()
    for _ in range(cancels):
        using.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([using])
    assert using.cancelled()
    assert processes() == []
    assert others() == []


async def test_opened_in_one_task_and_closed_in_another_first_in_first_out() -> None:
    async def open_one() -> Any:
        held = await spawn_agent_process(client := Watcher(), *COMMAND, env=MARK).open()
        return held, await start_work(held.value[0], client)

    (first, first_prompt), (second, second_prompt) = [await asyncio.create_task(open_one()) for _ in range(2)]
    for held in (first, second):
        report = await asyncio.create_task(held.close())
        assert report.clean
    assert processes() == []
    assert [(await prompt).stop_reason for prompt in (first_prompt, second_prompt)] == ["cancelled"] * 2


async def test_an_exit_stack_is_closed_by_another_task() -> None:
    stack = AsyncExitStack()

    async def enter() -> None:
        connection, _ = await stack.enter_async_context(
            spawn_agent_process(client := Watcher(), *COMMAND, env=MARK)
        )
        prompts.append(await start_work(connection, client))

    prompts: list[asyncio.Task[Any]] = []
    await asyncio.create_task(enter())
    await asyncio.create_task(stack.aclose())
    assert processes() == []
    assert (await prompts[0]).stop_reason == "cancelled"


async def test_the_scope_around_stops_it() -> None:
    async with Scope() as scope:
        held = await spawn_agent_process(client := Watcher(), *COMMAND, env=MARK).open()
        prompt = await start_work(held.value[0], client)
        assert (await scope.close()).clean
    assert processes() == []
    await asyncio.wait([prompt])


async def test_a_tree_that_ignores_everything_ends() -> None:
    deaf = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    child = "subprocess.Popen(['sleep', '1000'])"
    code = f"{deaf}; {child}; print(flush=True); time.sleep(1000)"
    spawned = spawn_stdio_transport(sys.executable, "-c", code, env=MARK, shutdown_timeout=0.1)
    async with spawned as (reader, _, process):
        await reader.readline()
        assert len(processes()) == 2
    assert process.returncode is not None
    assert processes() == []
    assert spawned.report is not None
    assert spawned.report.clean


async def test_an_agent_that_cannot_be_started_is_the_error_of_the_sdk() -> None:
    with pytest.raises(FileNotFoundError):
        async with spawn_agent_process(Client(), "/no/such/program"):
            pass
    assert others() == []


async def test_the_error_of_a_block_is_raised() -> None:
    with pytest.raises(KeyError):
        async with spawn_agent_process(Client(), *COMMAND, env=MARK):
            raise KeyError("mine")
    assert processes() == []


async def test_the_other_ones_connect_too() -> None:
    async def handler(method: str, params: Any, is_notification: bool) -> Any:
        return None

    async with spawn_client_process(Agent(), sys.executable, "-c", "input()", env=MARK) as (connection, _):
        assert isinstance(connection, AgentSideConnection)
    seen: list[Any] = []
    spawned = spawn_stdio_connection(handler, *COMMAND, observers=[seen.append], env=MARK, cwd="/")
    async with spawned as (low, _):
        assert isinstance(low, Connection)
        assert (await low.send_request("initialize", {}))["protocolVersion"] == 1
    assert len(seen) == 2
    assert low.report is not None
    assert processes() == []


def test_if_the_program_is_killed_the_agent_and_its_children_end() -> None:
    code = textwrap.dedent("""
        import asyncio
        from dropin_tests.acp.test_processes import *

        async def main():
            async with spawn_agent_process(client := Watcher(), *COMMAND, env=MARK) as (connection, _):
                await start_work(connection, client)
                print("working", flush=True)
                await asyncio.sleep(1000)

        asyncio.run(main())
    """)
    root = Path(__file__).parent.parent.parent
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root, env={**os.environ, **MARK}
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"working\n"
        assert len(processes()) == 4  # the program, its guard, the agent, and what that has started
    finally:
        os.kill(program.pid, signal.SIGKILL)
        program.communicate()
    limit = time.monotonic() + 10
    while processes() and time.monotonic() < limit:
        time.sleep(0.05)
    assert processes() == []


async def test_a_process_that_a_handler_has_started_ends_with_the_connection() -> None:
    async def work(agent: Agent) -> None:
        await asyncio.create_subprocess_exec("sleep", "1000", env=MARK)
        started.set()
        await asyncio.sleep(3600)

    started = asyncio.Event()
    client = "import sys; print(PROMPT, flush=True); sys.stdin.read()".replace("PROMPT", repr(PROMPT))
    async with spawn_client_process(Agent(work), sys.executable, "-c", client) as (connection, _):
        await started.wait()
        assert processes() == ["sleep\0001000\000"]
        assert (await connection.close()).clean
        assert processes() == []


PROMPT = '{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"one","prompt":[]}}'
