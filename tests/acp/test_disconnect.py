"""A real `quiesce acp`, whose client disconnects while something in it does not stop: one grace, from there to the exit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quiesce import Grace

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(60), pytest.mark.slow]

WHOLE = Grace().total + 1.0  # what the program has from the disconnect to its exit
BUSY = 1.0  # more, on a machine that is busy
MODULE = '''
import asyncio, os, sys, threading, time
import anyio
from quiesce.agents import Agent, function_tool
from quiesce.testing import ScriptedModel, call


def begun():
    open("begun", "a").write("x")


@function_tool
def thread() -> str:
    """Block in a thread, and look at no token."""
    begun()
    time.sleep(60)
    return "late"


@function_tool
async def task() -> str:
    """Ignore every cancellation."""
    begun()
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(60)
        except BaseException:
            pass
    return "late"


@function_tool
async def executor() -> str:
    """Block a thread of asyncio's, for which the interpreter waits when it exits."""
    begun()
    await asyncio.to_thread(time.sleep, 60)
    return "late"


@function_tool
async def slow_with_stray() -> str:
    """Take half of the grace to clean up, and leave a task that ignores every cancellation."""

    async def stray():
        while True:
            try:
                await asyncio.sleep(60)
            except BaseException:
                pass

    kept.append(asyncio.create_task(stray(), name="stray"))
    try:
        begun()
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(2.5)


kept = []
tools = [thread, task, executor, slow_with_stray]


def make_agent():
    return Agent(name="deaf", model=ScriptedModel([call(os.environ["TOOL"])] * 9), tools=tools)
'''


class Served:
    """The program as its client sees it: two pipes, and what it says on stderr."""

    def __init__(self, home: Path, tool: str, arguments: list[str]) -> None:
        self.home = home
        self._asked = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quiesce", "acp", "deaf_agents:make_agent", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=home,
            env={**os.environ, "TOOL": tool, "XDG_STATE_HOME": str(home / "state")},
        )

    def ask(self, method: str, **params: Any) -> int:
        assert self.process.stdin is not None
        self._asked += 1
        message = {"jsonrpc": "2.0", "id": self._asked, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self._asked

    def answer_to(self, number: int) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number:
                return message
        raise AssertionError("it ended without an answer")

    def begin_turn(self) -> str:
        """A new session whose tool is at work."""
        session: str = self.answer_to(self.ask("session/new", cwd=str(self.home), mcpServers=[]))["result"][
            "sessionId"
        ]
        begun = self.home / "begun"
        before = begun.read_text() if begun.exists() else ""
        self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "go"}])
        while not begun.exists() or begun.read_text() == before:
            time.sleep(0.01)
        return session

    def disconnect(self) -> tuple[float, list[str]]:
        """Close the pipes; how long the process was there from then on, and its stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        began = time.monotonic()
        self.process.stdin.close()
        self.process.stdout.close()
        said = self.process.stderr.read().decode()
        self.process.wait()
        return time.monotonic() - began, said.splitlines()


@contextmanager
def served(home: Path, tool: str, *arguments: str) -> Iterator[Served]:
    (home / "deaf_agents.py").write_text(MODULE)
    program = Served(home, tool, [*arguments])
    try:
        program.answer_to(program.ask("initialize", protocolVersion=1))
        yield program
    finally:
        program.process.kill()
        program.process.wait()
        for pipe in (program.process.stdin, program.process.stdout, program.process.stderr):
            assert pipe is not None
            pipe.close()


def stuck(said: list[str]) -> set[str]:
    """What was named as left over, by kind and name, and the file in which it is stuck."""
    lines = [line.partition("left: ")[2] for line in said if line.startswith("  left: ")]
    return {f"{line.split(',')[0]} in {line.partition('stuck at ')[2].split(':')[0]}" for line in lines}


both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@both
@pytest.mark.parametrize("store", [["--store", "none"], []])
def test_a_thread_that_does_not_return_has_one_grace_and_is_all_that_is_named(
    tmp_path: Path, backend: str, store: list[str]
) -> None:
    with served(tmp_path, "thread", "--backend", backend, *store) as program:
        for _ in range(2):  # the second does not add to it
            program.begin_turn()
        took, said = program.disconnect()
    assert took < WHOLE + BUSY
    assert stuck(said) == {"thread 'thread' in deaf_agents.py"}, said
    assert not [line for line in said if "ignores" in line or "Error" in line], said
    assert program.process.returncode == 0


@both
def test_a_thread_that_an_earlier_turn_has_left_over_is_not_waited_for_again(
    tmp_path: Path, backend: str
) -> None:
    with served(tmp_path, "thread", "--backend", backend) as program:
        session = program.begin_turn()
        began = time.monotonic()
        closed = program.answer_to(program.ask("session/close", sessionId=session))
        assert time.monotonic() - began < WHOLE + BUSY
        assert closed.get("result") == {}, closed
        took, said = program.disconnect()
    assert took < WHOLE + BUSY
    assert stuck(said) == {"thread 'thread' in deaf_agents.py"}, said
    assert program.process.returncode == 0


def test_a_task_that_ignores_its_cancellation_has_one_grace(tmp_path: Path) -> None:
    with served(tmp_path, "task") as program:
        program.begin_turn()
        took, said = program.disconnect()
    assert took < WHOLE + BUSY
    assert stuck(said) == {"task 'task' in deaf_agents.py"}, said
    assert program.process.returncode == 0


def test_a_task_that_trio_cannot_leave_behind_ends_with_the_process_in_the_same_time(tmp_path: Path) -> None:
    with served(tmp_path, "task", "--backend", "trio") as program:
        program.begin_turn()
        took, said = program.disconnect()
    assert took < WHOLE + BUSY
    assert stuck(said) == {"task 'task' in deaf_agents.py"}, said
    assert program.process.returncode == 1


def test_a_thread_that_the_interpreter_waits_for_does_not_make_it_longer(tmp_path: Path) -> None:
    with served(tmp_path, "executor") as program:
        program.begin_turn()
        took, said = program.disconnect()
    assert took < WHOLE + BUSY
    assert said[-2:-1] == ["threads have kept the program from exiting: it is ended now"], said


def test_a_slow_clean_up_and_a_stray_task_share_the_grace(tmp_path: Path) -> None:
    with served(tmp_path, "slow_with_stray") as program:
        program.begin_turn()
        took, said = program.disconnect()
    assert took < WHOLE + BUSY
    assert stuck(said) == {"task 'stray' in deaf_agents.py"}, said
    assert program.process.returncode == 0
