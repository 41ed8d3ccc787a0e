"""`quiesce acp`: an agent served by the command, to real clients, over stdio and over WebSockets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Process
from quiesce.acp import ClientSideConnection, default_environment, spawn_agent_process, text_block
from quiesce.agents import Agent, Conversation, SQLiteStore
from quiesce.cli import main
from quiesce.cli.acp import store_path
from quiesce.models import Note
from quiesce.testing import ScriptedModel
from quiesce.wire import ConnectionEnded
from tests.acp.served_client import Client, check_items, until
from tests.kernel.processes import token_of_processes
from tests.world import World

both = pytest.mark.worlds("asyncio", "trio")
one = pytest.mark.worlds("asyncio")
pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(40)]

TOKEN = "a-token-for-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MODULE = '''
import os
from quiesce.acp.tools import run_command
from quiesce.agents import Agent, function_tool
from quiesce.testing import ScriptedModel, call

print("a word while it is imported")
os.system("echo another by a child process")


@function_tool
async def speak() -> str:
    """Print something."""
    print("a word of a tool")
    os.system("echo and of its child")
    return "spoken"


async def answer(request):
    said = [item for item in request.items if type(item).__name__ in ("UserMessage", "ToolResult")]
    last = said[-1]
    if type(last).__name__ == "ToolResult":
        return f"it says: {last.output}"
    name, _, command = last.content.partition(" ")
    if name == "speak":
        return call("speak", f"call_{len(request.items)}")
    if name == "run":
        return call("run_command", f"call_{len(request.items)}", command=command, timeout_seconds=600)
    return f"you said {last.content}, after {len(said) - 1} things"


def make_agent():
    return Agent(name="talker", model=ScriptedModel([answer] * 100), tools=[speak, run_command])


agent = make_agent()
not_an_agent = 7
broken_factory = lambda: 1 / 0
wrong_factory = lambda: "no agent"


async def async_factory():
    return agent
'''


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "talkers.py").write_text(MODULE)
    return tmp_path


def command_line(world: World, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "quiesce", "acp", "talkers:agent", "--backend", world.backend, *arguments]


class Spawned:
    """The command, as a client has started it."""

    def __init__(self, conn: ClientSideConnection, process: Process, client: Client) -> None:
        self.conn = conn
        self.process = process
        self.client = client
        self.session_id = ""

    async def say(self, text: str) -> str:
        return (await self.conn.prompt(self.session_id, [text_block(text)])).stop_reason


@asynccontextmanager
async def spawned(home: Path, world: World, *arguments: str) -> AsyncIterator[Spawned]:
    client = Client()
    line = command_line(world, *arguments)
    env = {"XDG_STATE_HOME": str(home / "state")}
    patient = {"grace": Grace(cancel=20)}  # it ends by itself, however slow the machine
    async with spawn_agent_process(client, *line, env=env, cwd=home, transport_kwargs=patient) as (
        conn,
        process,
    ):
        await conn.initialize(protocol_version=1, client_capabilities=client.capabilities)
        started = Spawned(conn, process, client)
        started.session_id = (await conn.new_session(cwd=str(home), mcp_servers=[])).session_id
        yield started


@both
async def test_an_agent_is_served_over_stdio_and_its_sessions_are_kept(home: Path, world: World) -> None:
    async with spawned(home, world) as first:
        assert await first.say("hello") == "end_turn"
        assert first.client.text() == "you said hello, after 0 things"
    assert first.process.returncode == 0
    stderr = first.process.stderr_tail.decode()
    assert stderr == "a word while it is imported\nanother by a child process\n"
    assert [path.name for path in (home / "state" / "quiesce" / "acp").glob("*.db")] == ["talkers.agent.db"]
    async with spawned(home, world) as second:
        await second.conn.load_session(str(home), first.session_id)
        second.session_id = first.session_id
        assert second.client.kinds() == ["user_message_chunk", "agent_message_chunk"]
        await second.say("again")
        assert second.client.text().endswith("you said again, after 1 things")


@one
async def test_what_a_tool_prints_does_not_get_into_the_protocol(home: Path, world: World) -> None:
    async with spawned(home, world, "--store", "none") as agent:
        assert await agent.say("speak") == "end_turn"
        assert agent.client.text() == "it says: spoken"
        able = agent.conn.agent_capabilities
        assert able is not None
        assert not able.load_session
    stderr = agent.process.stderr_tail.decode()
    assert "a word of a tool" in stderr
    assert "and of its child" in stderr


async def in_a_command(agent: Spawned, home: Path) -> None:
    await until((home / "begun").exists)


@both
async def test_a_turn_is_cancelled_in_a_tool(home: Path, world: World, token: str) -> None:
    async with spawned(home, world, "--store", "sessions.db") as agent:
        reasons: list[str] = []

        async def say() -> None:
            reasons.append(await agent.say(f"run touch begun; sleep {token}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            await in_a_command(agent, home)
            await agent.conn.cancel(agent.session_id)
        assert reasons == ["cancelled"]
        assert agent.client.updates[-1]["rawOutput"]["outcome"] == "interrupted"
        assert await agent.say("and now?") == "end_turn"
    assert agent.process.returncode == 0


async def kept(path: Path, session_id: str) -> Conversation:
    """What is in the store when the program is gone."""
    async with SQLiteStore(path) as store:
        return Conversation(Agent(name="x", model=ScriptedModel()), store=store, conversation_id=session_id)


@both
async def test_a_client_that_goes_in_the_middle_of_a_turn_leaves_nothing_but_the_history(
    home: Path, world: World, token: str
) -> None:
    async with spawned(home, world, "--store", "sessions.db") as agent:

        async def say() -> None:
            with pytest.raises(ConnectionEnded):
                await agent.say(f"run touch begun; sleep {token}")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            await in_a_command(agent, home)
            await agent.conn.close()
    assert agent.process.returncode == 0
    history = (await kept(home / "sessions.db", agent.session_id)).items
    check_items(history)
    assert isinstance(history[-1], Note)
    assert "the client disconnected" in history[-1].text


NOISY = """
import atexit, os, threading, time
from quiesce.agents import Agent
from quiesce.testing import ScriptedModel

def speak():
    while True:
        os.write(1, b"a word of a thread\\n")
        time.sleep(0.0005)

threading.Thread(target=speak, daemon=True).start()
atexit.register(lambda: print("a last word"))
agent = Agent(name="noisy", model=ScriptedModel([]))
"""


@one
async def test_nothing_but_the_protocol_is_ever_written_to_stdout(home: Path) -> None:
    (home / "noisy.py").write_text(NOISY)
    line = [sys.executable, "-m", "quiesce", "acp", "noisy:agent", "--store", "none"]
    async with Process(line, cwd=home, stdin="pipe") as process:
        await process.write(
            b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
        )
        written = await process.read()
        process.close_stdin()
        while data := await process.read():
            written += data
        assert await process.wait() == 0
        stderr = process.stderr_tail.decode()
    [answer] = written.splitlines()
    assert json.loads(answer)["id"] == 1
    assert "a word of a thread" in stderr
    assert "a last word" in stderr  # the thread may fall into its line


@one
async def test_without_a_stdout_it_says_so(home: Path) -> None:
    shell = 'exec "$0" -m quiesce acp talkers:agent --store none >&-'
    async with Process(["/bin/sh", "-c", shell, sys.executable], cwd=home) as process:
        assert await process.wait() == 1
        stderr = process.stderr_tail.decode()
    assert stderr.startswith("quiesce acp: this process was started without stdout")
    assert "Traceback" not in stderr


@both
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_in_the_middle_of_a_turn_ends_it_in_order(
    home: Path, world: World, token: str, number: signal.Signals
) -> None:
    async with spawned(home, world, "--store", "sessions.db") as agent:
        reasons: list[str] = []

        async def say() -> None:
            reasons.append(await agent.say(f"run touch begun; sleep {token}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            await in_a_command(agent, home)
            os.kill(agent.process.pid, number)
        assert reasons == ["cancelled"]
        assert await agent.process.wait() == 128 + number
    check_items((await kept(home / "sessions.db", agent.session_id)).items)


@one
async def test_the_example_is_an_agent_that_an_editor_can_start(tmp_path: Path, world: World) -> None:
    client = Client()
    line = [sys.executable, "-m", "quiesce", "acp", "acp_agent:agent", "--store", "none"]
    (tmp_path / "README.md").write_text("# Mine\n")
    async with spawn_agent_process(client, *line, cwd=EXAMPLES) as (conn, _):
        await conn.initialize(protocol_version=1)
        session = (await conn.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        assert (await conn.prompt(session, [text_block("hello")])).stop_reason == "end_turn"
    assert [one["rawOutput"]["output"] for one in client.updates if "rawOutput" in one] == [
        "# Mine\n",
        str(tmp_path),
    ]
    assert [one["title"] for one in client.asked] == ["pwd"]


# WebSockets


@asynccontextmanager
async def server(home: Path, world: World, *arguments: str) -> AsyncIterator[tuple[Process, int]]:
    """The command, serving WebSockets; its port."""
    said = bytearray()
    env = {**default_environment(), "XDG_STATE_HOME": str(home / "state"), "QUIESCE_ACP_TOKEN": TOKEN}
    line = command_line(world, "--websocket", "localhost:0", "--folder", "/", *arguments)
    line[4] = "talkers:make_agent"
    async with Process(line, cwd=home, env=env, on_stderr=said.extend) as process:
        await until(lambda: b"health at" in said or process.returncode is not None)
        found = re.search(rb"ws://localhost:(\d+)/acp", bytes(said))
        assert found is not None, said.decode()
        yield process, int(found[1])


def health(port: int) -> dict[str, Any]:
    with socket.create_connection(("localhost", port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0]
    found: dict[str, Any] = json.loads(body)
    return found


@both
async def test_many_clients_over_websockets_and_a_health_checker(
    home: Path, world: World, token: str
) -> None:
    from quiesce.wire.transports.websocket import connect_websocket

    done: list[str] = []

    async def talk(port: int, number: int) -> None:
        client = Client()
        async with ClientSideConnection(
            client, connect_websocket(f"ws://localhost:{port}/acp", headers=BEARER)
        ) as conn:
            await conn.initialize(protocol_version=1)
            session = (await conn.new_session(cwd=str(home), mcp_servers=[])).session_id
            await conn.prompt(session, [text_block(f"number {number}")])
            done.append(client.text())
            await anyio.sleep(0)

    async def drop(port: int) -> None:
        """A checker that opens a connection and goes, at one stage or another."""
        for said in (
            b"",
            b"GET /acp HT",
            b"GET /acp HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /nowhere HTTP/1.1\r\n\r\n",
        ):
            with socket.create_connection(("localhost", port), timeout=10) as connection:
                connection.sendall(said)
            await anyio.sleep(0)

    async with server(home, world, "--store", "none") as (process, port):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(talk, port, number)
            for _ in range(5):
                tasks.start_soon(drop, port)
        assert sorted(done) == sorted(f"you said number {number}, after 0 things" for number in range(20))
        await until(lambda: health(port)["connections"] == 0)
        os.kill(process.pid, signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM


@one
async def test_a_session_is_taken_up_again_over_another_websocket(home: Path, world: World) -> None:
    from quiesce.wire.transports.websocket import connect_websocket

    client = Client()
    async with server(home, world, "--store", "none") as (_, port):
        session = ""
        for turn in range(2):
            async with ClientSideConnection(
                client, connect_websocket(f"ws://localhost:{port}/acp", headers=BEARER)
            ) as conn:
                await conn.initialize(protocol_version=1)
                if turn == 0:
                    session = (await conn.new_session(cwd=str(home), mcp_servers=[])).session_id
                else:
                    await conn.load_session(str(home), session)
                await conn.prompt(session, [text_block("hello")])
        assert client.text().endswith("you said hello, after 1 things")


@one
async def test_no_web_page_may_connect_unless_it_is_named(home: Path, world: World) -> None:
    def handshake(port: int, origin: str) -> bytes:
        request = (
            f"GET /acp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nOrigin: {origin}\r\n\r\n"
        )
        with socket.create_connection(("localhost", port), timeout=10) as connection:
            connection.sendall(request.encode())
            return connection.recv(65536).split(b"\r\n")[0]

    async with server(home, world, "--store", "none", "--origin", "http://mine.example") as (_, port):
        assert b" 101 " in handshake(port, "http://mine.example")
        assert b" 403 " in handshake(port, "http://other.example")


# What it says


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        ("talkers", "write MODULE:AGENT"),
        (":agent", "write MODULE:AGENT"),
        ("nobody_has_this:agent", "there is no module 'nobody_has_this'"),
        ("broken:agent", "ZeroDivisionError"),
        ("importing:agent", "cannot be imported: No module named 'nobody_has_this'"),
        ("talkers:missing", "has no 'missing'; the agents in it: agent"),
        ("talkers:not_an_agent", "is an int, not an Agent or a function"),
        ("talkers:broken_factory", "ZeroDivisionError"),
        ("talkers:wrong_factory", "returned a str, which is not an Agent"),
        ("talkers:async_factory", "returned a coroutine, which is not an Agent"),
    ],
)
def test_an_agent_that_cannot_be_served_is_an_error_that_says_why(
    home: Path,
    named: str,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (home / "broken.py").write_text("1 / 0")
    (home / "importing.py").write_text("import nobody_has_this")
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("talkers", "broken", "importing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(["acp", named]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert complaint in err
    for name in ("talkers", "broken", "importing"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "arguments", [["--websocket", "nowhere"], ["--websocket", "localhost:99999"], ["--max-turns", "0"], []]
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["acp", *(["x:y"] if arguments else []), *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("quiesce acp: error: ")


def test_help_has_examples(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["acp", "--help"]) == 0
    assert "quiesce acp my_agents:coder --websocket localhost:7000" in capfd.readouterr().out


@one
async def test_a_port_that_is_taken_and_a_store_that_cannot_be_are_errors_in_a_line(
    home: Path, world: World
) -> None:
    (home / "no.db").mkdir()
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments in (("--store", "none", "--websocket", f"localhost:{port}"), ("--store", "no.db")):
            async with Process(command_line(world, *arguments), cwd=home) as process:
                assert await process.wait() == 1
                last = process.stderr_tail.decode().splitlines()[-1]
                assert last.startswith("quiesce acp: ")


def test_the_default_store_is_in_the_users_state_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert store_path("my.agents:coder") == Path("/state/quiesce/acp/my.agents.coder.db")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    default = tmp_path / ".local" / "state" / "quiesce" / "acp" / "my.coder.db"
    assert store_path("my:coder") == default
    for relative in ("", "state", "./state", "~/state"):
        monkeypatch.setenv("XDG_STATE_HOME", relative)
        assert store_path("my:coder") == default, "the XDG rules say to ignore a path that is not absolute"


def test_without_a_home_it_says_how_to_choose_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(path: str) -> str:
        return path

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", unknown)
    with pytest.raises(FileNotFoundError, match=r"set HOME or XDG_STATE_HOME, or use --store FILE"):
        store_path("my:coder")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert store_path("my:coder") == Path("/state/quiesce/acp/my.coder.db")
