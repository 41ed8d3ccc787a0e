"""A child process as the other side: how it is spoken to, how it ends, and what is said of that."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from quiesce import Grace
from quiesce.wire import ConnectionEnded, Limits, Notification, Peer
from quiesce.wire.transports.child_process import ChildProcess, ProcessExited
from tests.kernel.processes import running, token_of_processes

pytestmark = [pytest.mark.slow, pytest.mark.real_time]

MakeAgent = Callable[..., ChildProcess]

# Answers what it is asked with what it was asked with, and does as it is told before.
AGENT = """
import json, os, signal, subprocess, sys, time

def say(message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()

def answer(request, result):
    say({"jsonrpc": "2.0", "id": request["id"], "result": result})

for line in sys.stdin:
    request = json.loads(line)
    method, params = request["method"], request.get("params")
    if method == "echo":
        answer(request, params)
    elif method == "env":
        answer(request, [os.environ.get("FLAVOUR"), os.getcwd()])
    elif method == "die":
        sys.stderr.write("first line\\nthe last words\\n")
        sys.stderr.flush()
        os._exit(params)
    elif method == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif method == "fork":  # a grandchild that holds stdout
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True, file=__import__('sys').stderr); time.sleep(600)"
        grandchild = subprocess.Popen([sys.executable, "-I", "-S", "-c", code, *sys.argv[1:]], stdin=subprocess.DEVNULL)
        answer(request, grandchild.pid)
    elif method == "answer and exit":
        say({"jsonrpc": "2.0", "method": "farewell", "params": "x" * 50_000})
        answer(request, "done")
        os._exit(0)
    elif method == "make noise, then answer and exit":
        for _ in range(5):
            say({"jsonrpc": "2.0", "method": "noise"})
        sys.stdin.readline()
        answer(request, "done")
        os._exit(0)
    elif method == "close stdout":
        os.close(1)
        time.sleep(600)
    elif method == "close stdin":
        os.close(0)
        answer(request, None)
        time.sleep(600)
    elif method == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        answer(request, None)
        time.sleep(600)
sys.stderr.write("end of input\\n")
"""

HASTY = Grace(cancel=0.05, terminate=0.05, kill=5)
PATIENT = Grace(cancel=15)  # for what ends by itself, however slow the machine


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


@pytest.fixture
def agent(token: str) -> MakeAgent:
    def make(**options: Any) -> ChildProcess:
        return ChildProcess([sys.executable, "-I", "-S", "-c", AGENT, token], name="agent", **options)

    return make


async def until(condition: Any) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


async def test_it_is_asked_and_answers_and_is_gone_at_the_end(agent: MakeAgent, token: str) -> None:
    child = agent(grace=PATIENT)
    async with Peer(child, grace=PATIENT) as peer:
        assert await peer.request("echo", {"a": [1]}) == {"a": [1]}
        assert peer.name == "agent"
        assert child.process.pid in running(token)
    assert child.process.returncode == 0
    assert (
        child.process.stderr_tail == b"end of input\n"
    )  # it was asked by the end of its input, not by a signal
    assert not running(token)


async def test_it_has_the_environment_and_the_directory_that_it_was_given(
    agent: MakeAgent, tmp_path: Any
) -> None:
    child = agent(env={**os.environ, "FLAVOUR": "vanilla"}, cwd=tmp_path)
    async with Peer(child) as peer:
        assert await peer.request("env") == ["vanilla", str(tmp_path)]


async def test_stderr_is_heard_piece_by_piece(agent: MakeAgent) -> None:
    heard: list[bytes] = []
    async with Peer(agent(on_stderr=heard.append, grace=PATIENT), grace=PATIENT) as peer:
        await peer.request("echo")
    assert b"".join(heard) == b"end of input\n"


async def test_a_request_that_it_dies_of_says_how_and_quotes_its_last_words(agent: MakeAgent) -> None:
    async with Peer(agent()) as peer:
        with pytest.raises(
            ConnectionEnded, match=r"(?s)'die' was not answered: .*agent exited with 3: .*the last words"
        ):
            await peer.request("die", 3)
        await peer.wait_closed()
        assert isinstance(peer.error, ProcessExited)
        assert peer.error.returncode == 3
        assert peer.error.stderr_tail == b"first line\nthe last words\n"
        with pytest.raises(ConnectionEnded, match="exited with 3"):
            await peer.request("echo")


async def test_a_signal_that_ended_it_is_named(agent: MakeAgent) -> None:
    async with Peer(agent()) as peer:
        with pytest.raises(ConnectionEnded, match="agent was ended by SIGKILL"):
            await peer.request("crash")
    assert isinstance(peer.error, ProcessExited)
    assert peer.error.returncode == -signal.SIGKILL


async def test_what_it_said_before_it_exited_is_read(agent: MakeAgent) -> None:
    farewells: list[int] = []

    async def farewell(text: str) -> None:
        farewells.append(len(text))

    async with Peer(agent(), notifications={"farewell": farewell}) as peer:
        assert await peer.request("answer and exit") == "done"
        await peer.wait_closed()
    assert farewells == [50_000]


async def test_what_it_said_before_it_exited_is_read_though_reading_had_to_wait(
    agent: MakeAgent,
) -> None:
    async def noise(params: Any) -> None:
        await anyio.sleep_forever()

    answers: list[Any] = []
    noises = {"noise": Notification(noise, lane=lambda params: "noise")}
    async with (
        Peer(agent(grace=HASTY), notifications=noises, limits=Limits(waiting=1)) as peer,
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            answers.append(await peer.request("make noise, then answer and exit"))

        await peer.request("fork")  # and a grandchild holds its stdout
        group.start_soon(ask)
        await until(lambda: not peer.statistics().reading)
        await peer.notify("go on")
        await peer.wait_closed()
    assert answers == ["done"]


async def test_its_exit_ends_the_connection_though_a_grandchild_holds_its_stdout(
    agent: MakeAgent, token: str
) -> None:
    child = agent(grace=HASTY)
    async with Peer(child, grace=Grace(cancel=5)) as peer:
        grandchild = await peer.request("fork")
        await until(lambda: b"up" in child.process.stderr_tail)
        with pytest.raises(ConnectionEnded, match="exited with 7"):
            await peer.request("die", 7)
        assert grandchild in running(token)  # it has held the pipe to the end
        await peer.wait_closed()
    assert not running(token)


async def test_one_that_is_deaf_to_everything_is_killed(agent: MakeAgent, token: str) -> None:
    peer = await Peer.open(agent(grace=HASTY))
    await peer.request("deaf")
    report = await peer.close()
    assert report.clean
    assert not running(token)


async def test_one_that_closes_its_stdout_and_lives_on_has_ended_the_connection(
    agent: MakeAgent, token: str
) -> None:
    async with Peer(agent(grace=HASTY)) as peer:
        with pytest.raises(ConnectionEnded, match="'close stdout' was not answered"):
            await peer.request("close stdout")
    assert not isinstance(peer.error, ProcessExited)
    assert not running(token)


async def test_one_that_closes_its_stdin_cannot_be_told_anything_and_has_ended_the_connection(
    agent: MakeAgent, token: str
) -> None:
    async with Peer(agent(grace=HASTY)) as peer:
        await peer.request("close stdin")
        with pytest.raises(ConnectionEnded):
            await peer.request("echo", "does anybody hear?")
    assert not running(token)


async def test_a_peer_that_is_cancelled_leaves_no_process(agent: MakeAgent, token: str) -> None:
    with anyio.move_on_after(10) as limit:
        async with Peer(agent(grace=HASTY)) as peer:
            await peer.request("deaf")
            limit.cancel()
            await anyio.sleep_forever()
    assert not running(token)


async def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program-anywhere"):
        await Peer.open(ChildProcess(["no-such-program-anywhere"]))


async def test_it_is_started_once_and_has_no_process_before(agent: MakeAgent) -> None:
    child = agent()
    with pytest.raises(RuntimeError, match="'agent' is not started yet"):
        _ = child.process
    async with Peer(child):
        pass
    with pytest.raises(RuntimeError, match="'agent' was started before"):
        await Peer.open(child)


async def test_a_flood_of_answers_from_one_that_is_not_read_does_not_keep_it_alive(token: str) -> None:
    code = 'import sys\nwhile True: sys.stdout.write(\'{"jsonrpc": "2.0", "method": "noise"}\\n\')'
    async with Peer(ChildProcess([sys.executable, "-I", "-S", "-c", code, token], grace=HASTY)):
        await anyio.sleep(0.02)
    assert not running(token)


def test_how_it_ended_survives_being_pickled() -> None:
    error = ProcessExited("agent", 3, b"oops")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.returncode, again.stderr_tail) == (str(error), 3, b"oops")
