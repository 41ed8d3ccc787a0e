"""An agent as a child process: whatever it is wrapped in, and however it or its client ends, no process is left."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from quiesce import Grace
from quiesce.acp import (
    PROTOCOL_VERSION,
    ClientSideConnection,
    default_environment,
    spawn_agent_process,
    spawn_client_process,
    text_block,
)
from quiesce.wire import ConnectionEnded
from tests.acp.pairs import HELLO, AClient, AnAgent
from tests.kernel.processes import is_gone, running, token_of_processes, wait_until

pytestmark = [pytest.mark.real_time, pytest.mark.worlds("asyncio", "trio"), pytest.mark.time_limit(60)]

HASTY = {"grace": Grace(cancel=0.2, terminate=0.2, kill=5)}
PATIENT = {"grace": Grace(cancel=30)}  # for what ends by itself, however slow the machine

# The least that is an agent: it starts in an instant, and does what its arguments say.
AGENT = """
import json, os, sys, time, signal
def says(what):
    return what in sys.argv
if says("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if says("loud"):
    sys.stderr.write("x" * (1 << 20))
    sys.stderr.flush()
if says("broken"):
    sys.exit("there is no key in the environment")
for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message or "id" not in message:
        continue
    if message["method"] == "session/prompt" and says("mortal"):
        sys.stderr.write("out of luck")
        sys.stderr.flush()
        os._exit(3)
    if message["method"] == "session/prompt" and says("silent"):
        continue
    result = {
        "initialize": {"protocolVersion": 1, "_meta": {"pid": os.getpid(), "env": dict(os.environ)}},
        "session/new": {"sessionId": "s"},
        "session/prompt": {"stopReason": "end_turn"},
    }[message["method"]]
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
while says("stubborn"):
    time.sleep(1)
"""


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


def spawned(
    token: str, *kinds: str, wrapper: tuple[str, ...] = (), **options: Any
) -> AbstractAsyncContextManager[tuple[ClientSideConnection, Any]]:
    command = [*wrapper, sys.executable, "-S", "-E", "-c", AGENT, *kinds, token]
    return spawn_agent_process(AClient(), command[0], *command[1:], **options)


async def meta_of(agent: ClientSideConnection) -> dict[str, Any]:
    answer = await agent.initialize(protocol_version=PROTOCOL_VERSION)
    assert answer.field_meta is not None
    return answer.field_meta


async def test_when_the_block_is_over_the_agent_is_gone(token: str) -> None:
    async with spawned(token, transport_kwargs=PATIENT) as (agent, process):
        assert (await meta_of(agent))["pid"] == process.pid
        session = await agent.new_session(cwd="/project", mcp_servers=[])
        assert (await agent.prompt(session.session_id, HELLO)).stop_reason == "end_turn"
    assert process.returncode == 0  # the end of its input was enough
    assert running(token) == []


async def test_behind_a_wrapper_the_real_agent_is_gone_too(token: str) -> None:
    """And what else the wrapper has started, and what pays no heed to the end of its input or to SIGTERM."""
    wrapper = ("sh", "-c", f'sleep 1{token} & "$@"; true', "wrapper")
    async with spawned(token, "stubborn", wrapper=wrapper, transport_kwargs=HASTY) as (agent, process):
        pid = (await meta_of(agent))["pid"]
        assert pid != process.pid
        assert len(running(token)) == 3
    assert wait_until(lambda: is_gone(pid))
    assert wait_until(lambda: not running(token))


async def test_what_an_agent_writes_to_stderr_never_blocks_it(token: str) -> None:
    heard: list[bytes] = []
    async with spawned(token, "loud", transport_kwargs={"on_stderr": heard.append}) as (agent, _):
        assert "pid" in await meta_of(agent)
    assert sum(map(len, heard)) == 1 << 20


async def test_an_agent_that_exits_at_once_is_named_with_its_last_words(token: str) -> None:
    with pytest.raises(ConnectionEnded, match="exited with 1: there is no key in the environment"):
        async with spawned(token, "broken") as (agent, _):
            await agent.initialize(protocol_version=PROTOCOL_VERSION)
            pytest.fail("it has answered")


async def test_an_agent_that_dies_in_the_middle_of_a_turn_fails_the_prompt_at_once(token: str) -> None:
    async with spawned(token, "mortal") as (agent, process):
        await meta_of(agent)
        with pytest.raises(ConnectionEnded, match="exited with 3: out of luck"):
            await agent.prompt("s", HELLO)
        with pytest.raises(ConnectionEnded, match="cannot be sent"):
            await agent.prompt("s", HELLO)
    assert process.returncode == 3


async def test_a_command_that_does_not_exist_is_an_error_of_the_block() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-agent"):
        async with spawn_agent_process(AClient(), "no-such-agent"):
            pytest.fail("it was started")


async def test_it_gets_an_environment_without_secrets(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hush")
    async with spawned(token, env={"COLOUR": "blue"}) as (agent, _):
        env = (await meta_of(agent))["env"]
    assert env["PATH"] == os.environ["PATH"]
    assert env["COLOUR"] == "blue"
    assert "SECRET_KEY" not in env
    assert "SECRET_KEY" not in default_environment()


@pytest.mark.worlds("asyncio")
async def test_two_cancels_leave_no_process(token: str) -> None:
    began = asyncio.Event()

    async def use() -> None:
        async with spawned(token, "stubborn", "silent", transport_kwargs=HASTY) as (agent, _):
            await meta_of(agent)
            began.set()
            await agent.prompt("s", HELLO)

    task = asyncio.create_task(use())
    await began.wait()
    task.cancel()
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert wait_until(lambda: not running(token))


async def test_out_of_time_it_is_gone_and_the_timeout_is_raised(token: str) -> None:
    with pytest.raises(TimeoutError):
        with anyio.fail_after(60) as scope:
            async with spawned(token, "stubborn", "silent", transport_kwargs=HASTY) as (agent, _):
                await meta_of(agent)
                scope.deadline = anyio.current_time()
                await agent.prompt("s", HELLO)
    assert wait_until(lambda: not running(token))


SERVED = """
import anyio, quiesce, sys
from quiesce.acp import *

class Echo:
    def on_connect(self, conn):
        self.client = conn
    async def initialize(self, protocol_version, **kwargs):
        print("this goes to stderr")
        return InitializeResponse(protocol_version=protocol_version)
    async def new_session(self, cwd, **kwargs):
        return NewSessionResponse(session_id=cwd)
    async def prompt(self, session_id, prompt, **kwargs):
        if prompt[0].text == "wait":
            try:
                await self.client.session_update(session_id, update_agent_message_text("waiting"))
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                return PromptResponse(stop_reason="cancelled")
        await self.client.session_update(session_id, update_agent_message_text(prompt[0].text))
        return PromptResponse(stop_reason="end_turn")

quiesce.run(lambda: run_agent(Echo()))
"""


async def test_run_agent_serves_stdin_and_stdout_until_their_end(token: str) -> None:
    client = AClient()
    heard: list[bytes] = []
    options: dict[str, Any] = {"on_stderr": heard.append, **PATIENT}
    command = (sys.executable, "-c", SERVED, token)
    async with spawn_agent_process(client, *command, transport_kwargs=options) as (agent, process):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
        session = await agent.new_session(cwd="/project", mcp_servers=[])
        answer = await agent.prompt(session.session_id, [text_block("hello")])
        assert answer.stop_reason == "end_turn"
        assert client.told == ["hello"]
    assert process.returncode == 0
    assert b"".join(heard) == b"this goes to stderr\n"


async def test_in_the_middle_of_a_turn_the_end_of_its_input_is_enough(token: str) -> None:
    """Its prompt catches the cancel and says so, as the protocol wants it; and the program ends by itself."""
    waiting = anyio.Event()

    async def session_update(**kwargs: Any) -> None:
        waiting.set()

    client = AClient(session_update=session_update)
    command = (sys.executable, "-c", SERVED, token)
    async with (
        anyio.create_task_group() as group,
        spawn_agent_process(client, *command, transport_kwargs=PATIENT) as (agent, process),
    ):

        async def prompts() -> None:
            with pytest.raises(ConnectionEnded, match="'session/prompt' was not answered"):
                await agent.prompt("s", [text_block("wait")])

        group.start_soon(prompts)
        await waiting.wait()
    assert process.returncode == 0


async def test_a_client_may_be_the_child(token: str) -> None:
    """The other way round: the program that we start asks, and our agent answers."""
    program = (
        'import json, sys; print(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", '
        '"params": {"protocolVersion": 1}}), flush=True); sys.stderr.write(sys.stdin.readline())'
    )
    heard: list[bytes] = []
    command = (sys.executable, "-S", "-E", "-c", program, token)
    options = {"on_stderr": heard.append}
    async with spawn_client_process(AnAgent(), *command, transport_kwargs=options) as (client, _):
        await client.wait_closed()
    assert b'"protocolVersion":1' in b"".join(heard)
