"""Terminals and sub-agents, of openhands-tools: what they have started ends with the run, or with the conversation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from openhands.sdk.conversation import ConversationExecutionStatus as Status
from openhands.tools.task import TaskToolSet
from openhands.tools.terminal import TerminalTool
from tests.world import asyncio_only

from dropin_tests.openhands.made_up import DoExecutor, call, converse, kinds, say, unanswered, working
from dropin_tests.openhands.test_runs import begun, poll_the_sdks, seen
from quiesce.dropin.openhands.sdk import Message, Tool

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(90)]
ROOT = Path(__file__).parent.parent.parent
KINDS = ("subprocess", "tmux")
DEAF = "trap '' INT TERM; sleep"


def terminal(kind: str) -> Tool:
    return Tool(name=TerminalTool.name, params={"terminal_type": kind})


def command(text: str) -> Message:
    return call(TerminalTool.name, command=text)


def alive(seconds: str) -> list[str]:
    """The processes that sleep for so long: each test has a number of its own."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if (
                words[:2] == [b"sleep", seconds.encode()]
                and b"Z" not in (path / "stat").read_bytes().split()[2:3]
            ):
                found.append(path.name)
        except OSError:
            continue
    return found


async def until(condition: Any, seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - processes begin without saying so
            await asyncio.sleep(0.05)


@asyncio_only
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deaf", [False, True])
async def test_a_stopped_run_ends_the_command_in_the_foreground(
    kind: str, deaf: bool, tmp_path: Path
) -> None:
    number = f"{os.getpid()}{KINDS.index(kind)}{int(deaf)}1"
    text = f'bash -c "{DEAF} {number}"' if deaf else f"sleep {number}"
    conversation = converse(
        command(text), command("echo it goes on"), say("done"), tools=[terminal(kind)], workspace=tmp_path
    )
    task = asyncio.create_task(conversation.arun())
    await until(lambda: alive(number))
    task.cancel()
    await asyncio.wait([task])
    assert not alive(number)
    assert conversation.report is not None
    assert conversation.report.clean, str(conversation.report)
    assert not unanswered(conversation)
    await conversation.arun()  # the shell is there as before
    assert "it goes on" in str(list(conversation.state.events)[-2])
    assert (await conversation.aclose()).clean


@pytest.mark.parametrize("kind", KINDS)
def test_close_ends_the_shell_and_its_jobs_in_the_background(kind: str, tmp_path: Path) -> None:
    number = f"{os.getpid()}{KINDS.index(kind)}2"
    conversation = converse(
        command(f"bash -c '{DEAF} {number}' & disown; nohup sleep {number} >/dev/null 2>&1 & sleep 0.5"),
        say("done"),
        tools=[terminal(kind)],
        workspace=tmp_path,
    )
    conversation.run()
    assert len(alive(number)) == 2
    assert conversation.report is not None
    assert conversation.report.clean, str(conversation.report)
    report = conversation.close()
    assert report.clean, str(report)
    assert not alive(number)


KILLED = """
    import os, sys, time
    from dropin_tests.openhands.test_terminals import command, terminal
    from dropin_tests.openhands.made_up import converse, say
    kind, number = sys.argv[1:]
    conversation = converse(command(f"sleep {number} & sleep 0.5"), say("done"), tools=[terminal(kind)])
    conversation.run()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_terminals_of_a_program_that_is_killed_end_with_it(kind: str) -> None:
    number = f"{os.getpid()}{KINDS.index(kind)}3"
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), kind, number],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    with program, program.stdout:
        assert any(line == "ready\n" for line in program.stdout)
        assert alive(number)
        program.send_signal(signal.SIGKILL)
    give_up_at = time.monotonic() + 10
    while alive(number) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    assert not alive(number)


@asyncio_only
async def test_the_run_of_a_sub_agent_is_stopped_with_its_parents(tmp_path: Path) -> None:
    seen.clear()
    working(poll_the_sdks)
    # Parent and sub-agent share the script: the parent's first answer starts the sub-agent, all others are its own.
    conversation = converse(
        call("task", prompt="Work.", subagent_type="general-purpose", description="work"),
        *(call() for _ in range(5)),
        say("done"),
        tools=[Tool(name=TaskToolSet.name), Tool(name="DoTool")],
        workspace=tmp_path,
    )
    task = asyncio.create_task(conversation.arun())
    await begun()
    conversation.interrupt()
    await asyncio.wait_for(task, 10)
    assert seen == [True]
    assert conversation.state.execution_status == Status.PAUSED
    assert conversation.report is not None
    assert conversation.report.clean, str(conversation.report)
    assert kinds(conversation)[-1] == "InterruptEvent"
    DoExecutor.begun.clear()
    report = await conversation.aclose()
    assert report.clean, str(report)
    assert not DoExecutor.begun.is_set()
