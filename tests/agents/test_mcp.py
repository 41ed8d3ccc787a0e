"""MCP servers of an agent: their tools, cancelled calls, servers that end or will not end, and who closes them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents import RunContextWrapper, function_tool
from quiesce.agents.agent.context import ToolContext
from quiesce.agents.agent.errors import InvalidToolArguments, UserError
from quiesce.agents.agent.tool import FunctionTool
from quiesce.agents.mcp import create_static_tool_filter
from quiesce.agents.mcp.server import MCPServerError, MCPServerStdio, MCPServerStreamableHttp, MCPToolError
from tests.agents.scenes import scripted, time_limit_once
from tests.kernel.processes import is_gone

pytestmark = pytest.mark.real_time

HERE = Path(__file__).parent
EVERYWHERE = pytest.mark.worlds("asyncio", "asyncio-eager", "uvloop", "trio")
BOTH = pytest.mark.worlds("asyncio", "trio")
SHORT = Grace(cancel=0.2, terminate=0.2, kill=10)


def misbehaving(*modes: str, **options: Any) -> MCPServerStdio:
    params = {"command": sys.executable, "args": [str(HERE / "mcp_server.py"), *modes]}
    return MCPServerStdio(params, name="misbehaving", **options)


def context() -> ToolContext[Any]:
    return ToolContext(None)


async def tools_of(server: Any) -> dict[str, FunctionTool]:
    return {tool.name: tool for tool in await server.list_tools()}


async def wait_for(path: Path, text: str) -> None:
    with anyio.fail_after(15):
        while text not in written(path):
            await anyio.sleep(0.01)


def written(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# Using


@EVERYWHERE
async def test_tools_of_a_server_are_listed_and_called() -> None:
    async with misbehaving("noisy") as server:
        tools = await tools_of(server)
        assert list(tools) == ["echo", "fail", "work", "die", "pid", "stop_reading", "with_dots_and_slashes"]
        echo = tools["echo"]
        assert (echo.description, echo.strict, echo.isolation) == ("echo.", False, "task")
        assert echo.parameters["properties"] == {"text": {"type": "string"}}
        assert (echo.side_effects, tools["fail"].side_effects) == (False, True)
        assert await echo.invoke(context(), '{"text": "hello"}') == "hello"
        assert await tools["with_dots_and_slashes"].invoke(context(), '{"text": "hello"}') == "hello"
        with pytest.raises(MCPToolError, match=r"^it broke"):
            await tools["fail"].invoke(context(), '{"text": "it broke"}')
        with pytest.raises(InvalidToolArguments, match="takes a JSON object"):
            await echo.invoke(context(), "[]")


@BOTH
async def test_the_official_server_is_understood_and_told_of_a_cancelled_call(tmp_path: Path) -> None:
    params = {"command": sys.executable, "args": [str(HERE / "official_mcp_server.py")]}
    log = tmp_path / "log"
    async with MCPServerStdio(params) as server:
        tools = await tools_of(server)
        assert tools["add"].description == "Add two numbers."
        assert await tools["add"].invoke(context(), '{"a": 1, "b": 2}') == "3"
        async with time_limit_once(log.exists):
            await tools["work"].invoke(context(), f'{{"log": "{log}"}}')
        await wait_for(log, "cancelled")
        assert await tools["add"].invoke(context(), '{"a": 3, "b": 4}') == "7"


async def test_tools_can_be_left_out_and_the_list_kept() -> None:
    async with misbehaving(tool_filter={"blocked_tool_names": ["die"]}, cache_tools_list=True) as server:
        first = await server.list_tools()
        assert "die" not in {tool.name for tool in first}
        assert await server.list_tools() is first
        server.tool_filter = {"allowed_tool_names": ["pid"]}
        server.cache_tools_list = False
        assert list(await tools_of(server)) == ["pid"]
        server.tool_filter = lambda name: name.startswith("e")
        assert list(await tools_of(server)) == ["echo"]


async def test_a_filter_may_be_made_by_the_function_that_openais_sdk_has_for_it() -> None:
    chosen = create_static_tool_filter(allowed_tool_names=["pid", "die"], blocked_tool_names=("die",))
    assert chosen == {"allowed_tool_names": ["pid", "die"], "blocked_tool_names": ["die"]}
    assert create_static_tool_filter() is None
    async with misbehaving(tool_filter=chosen) as server:
        assert list(await tools_of(server)) == ["pid"]
        server.tool_filter = create_static_tool_filter()
        assert len(await tools_of(server)) > 2


async def test_all_tools_of_an_agent_are_its_own_and_those_of_its_servers() -> None:
    server = misbehaving(tool_filter=create_static_tool_filter(allowed_tool_names=["pid"]))
    agent = scripted(tools=[function_tool(lambda: "", name_override="own")], mcp_servers=[server])
    tools = await agent.get_all_tools(RunContextWrapper(None))
    assert [tool.name for tool in tools] == ["own", "pid"]
    assert not server.connected  # it was connected to be asked, and closed again


def test_options_of_the_server_are_those_of_its_tools() -> None:
    with pytest.raises(UserError, match="MCPServerStdio needs params with 'command'"):
        MCPServerStdio({"url": "http://127.0.0.1"})
    with pytest.raises(UserError, match="MCPServerStreamableHttp needs params with 'url'"):
        MCPServerStreamableHttp({"command": "x"})


async def test_a_server_that_is_not_connected_says_what_to_do() -> None:
    server = misbehaving()
    with pytest.raises(UserError, match=r"not connected: `await server\.connect"):
        await server.list_tools()
    assert await server.close() is None


# Cancelled


@EVERYWHERE
async def test_a_cancelled_call_is_told_to_the_server_and_the_session_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with misbehaving("--log", str(log)) as server:
        tools = await tools_of(server)
        ctx = context()
        async with time_limit_once(lambda: ctx.output_so_far):
            await tools["work"].invoke(ctx, "")
        assert ctx.output_so_far == "half way\n"
        await wait_for(log, "cancelled ")
        assert await tools["echo"].invoke(context(), '{"text": "still here"}') == "still here"
    assert log.read_text().splitlines()[1:] == ["end of input"]


@BOTH
async def test_a_call_to_a_server_that_reads_no_more_is_cancelled_at_once() -> None:
    async with misbehaving(grace=SHORT) as server:
        tools = await tools_of(server)
        await tools["stop_reading"].invoke(context(), "")
        began = time.monotonic()
        with anyio.move_on_after(0.1):
            await tools["echo"].invoke(context(), f'{{"text": "{"x" * 300_000}"}}')
        assert time.monotonic() - began < 10


# Ending


@EVERYWHERE
async def test_a_server_that_dies_fails_every_call_with_how_it_died() -> None:
    told = (
        "MCP server 'misbehaving' has ended: it exited with status 3; the end of its stderr:\nI cannot go on"
    )
    async with misbehaving() as server:
        tools = await tools_of(server)
        errors: list[str] = []

        async def call(name: str) -> None:
            with pytest.raises(MCPServerError) as caught:
                await tools[name].invoke(context(), "")
            errors.append(str(caught.value))

        async with Scope() as scope:
            scope.spawn(call, "work")
            await anyio.sleep(0.05)
            scope.spawn(call, "die")
        await call("echo")
        assert errors == [told] * 3


@BOTH
async def test_a_server_that_ignores_eof_and_sigterm_is_killed_with_its_child() -> None:
    server = misbehaving("deaf", grace=SHORT)
    await server.connect()
    tools = await tools_of(server)
    pid = int(await tools["pid"].invoke(context(), ""))
    children = children_of(pid)
    began = time.monotonic()
    report = await server.close()
    assert time.monotonic() - began < 10
    assert report is not None
    assert report.clean
    assert children
    assert all(is_gone(process) for process in (pid, *children))


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (misbehaving("silent", connect_timeout=0.3), "cannot be connected: no answer within 0.3 s"),
        (MCPServerStdio({"command": "nonesuch-9"}), "cannot start 'nonesuch-9': no such program"),
        (
            MCPServerStdio({"command": sys.executable, "args": ["-c", "exit('bad configuration')"]}),
            "it exited with status 1; the end of its stderr:\nbad configuration",
        ),
        (MCPServerStreamableHttp({"url": "http://127.0.0.1:9/mcp"}), "cannot be connected"),
    ],
    ids=["silent", "missing", "fails", "refused"],
)
@BOTH
async def test_a_server_that_cannot_be_connected_says_why(server: Any, told: str) -> None:
    with pytest.raises(MCPServerError) as caught:
        await server.connect()
    assert told in str(caught.value)
    assert not server.connected


@BOTH
async def test_connecting_can_be_cancelled() -> None:
    server = misbehaving("silent")
    with anyio.move_on_after(0.3) as limit:
        await server.connect()
    assert limit.cancelled_caught
    assert not server.connected


# Whose


@BOTH
async def test_it_can_be_connected_in_one_task_and_closed_in_another() -> None:
    server = misbehaving()

    async def connect() -> None:
        await server.connect(scope=owner)

    async with Scope() as owner:
        async with Scope() as tasks:
            tasks.spawn(connect)
        pid = int(await server.call_tool("pid", {}))
        async with Scope() as tasks:
            tasks.spawn(server.cleanup)
            tasks.spawn(server.cleanup)
    assert is_gone(pid)


@BOTH
async def test_runs_that_use_it_share_it_and_the_last_one_closes_it() -> None:
    server = misbehaving()
    pids: list[int] = []

    async def a_run(seconds: float) -> None:
        async with server.use():
            pids.append(int(await server.call_tool("pid", {})))
            await anyio.sleep(seconds)
            assert int(await server.call_tool("pid", {})) == pids[0]

    async with Scope() as scope:
        scope.spawn(a_run, 0)
        scope.spawn(a_run, 0.2)
    assert len(set(pids)) == 1
    assert not server.connected
    assert is_gone(pids[0])


async def test_a_run_does_not_close_what_its_user_has_connected() -> None:
    async with misbehaving() as server:
        async with server.use():
            pass
        assert await server.call_tool("echo", {"text": "hello"}) == "hello"
        with pytest.raises(UserError, match="connected already"):
            await server.connect()


def test_one_server_serves_two_event_loops_at_once_with_a_process_for_each() -> None:
    server = misbehaving()
    both_are_in = threading.Barrier(2, timeout=10)
    pids: dict[str, list[int]] = {"asyncio": [], "trio": []}

    async def a_run(backend: str) -> None:
        async with server.use():
            pids[backend].append(int(await server.call_tool("pid", {})))
            await anyio.to_thread.run_sync(both_are_in.wait)
            pids[backend].append(int(await server.call_tool("pid", {})))
        assert not server.connected
        await anyio.to_thread.run_sync(
            both_are_in.wait
        )  # that one loop has closed its own is nothing to the other

    def in_a_loop(backend: str) -> None:
        anyio.run(a_run, backend, backend=backend)

    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(in_a_loop, backend) for backend in pids]
        for run in runs:
            run.result(20)
    assert [len(set(of_a_loop)) for of_a_loop in pids.values()] == [1, 1]
    assert pids["asyncio"] != pids["trio"]
    assert all(is_gone(pid) for of_a_loop in pids.values() for pid in of_a_loop)
    assert not server.connected


def test_a_session_of_a_loop_that_has_ended_is_not_taken_for_one_of_the_next() -> None:
    server = misbehaving()

    async def a_program() -> str:
        scope = await Scope.open("app")
        await server.connect(scope=scope)
        try:
            return str(await server.call_tool("echo", {"text": "hello"}))
        finally:
            await scope.close()  # its owner has ended it: nobody has closed the server

    assert [anyio.run(a_program), anyio.run(a_program)] == ["hello", "hello"]


# HTTP


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    bound = socket.socket()  # nobody else gets its port, and nobody answers there before the server listens
    bound.bind(("127.0.0.1", 0))
    port, fd = bound.getsockname()[1], bound.fileno()
    command = [sys.executable, str(HERE / "official_mcp_server.py"), str(fd)]
    with bound, subprocess.Popen(command, pass_fds=[fd]) as server:
        try:
            give_up_at = time.monotonic() + 30
            while time.monotonic() < give_up_at:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()


# On trio, the HTTP client that mcp uses leaves the generators of a stream that was cancelled to the collector.
@pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")
@pytest.mark.worlds("asyncio", "uvloop", "trio")
async def test_a_server_over_http_is_used_and_told_of_a_cancelled_call(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with MCPServerStreamableHttp({"url": url, "headers": {"x-test": "1"}, "timeout": 15}) as server:
        tools = await tools_of(server)
        assert await tools["add"].invoke(context(), '{"a": 1, "b": 2}') == "3"
        async with time_limit_once(log.exists):
            await tools["work"].invoke(context(), f'{{"log": "{log}"}}')
        await wait_for(log, "cancelled")
        assert await tools["add"].invoke(context(), '{"a": 3, "b": 4}') == "7"
