"""`Runner.run_sync`, in the thread's own loop; and Ctrl-C, in programs of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dropin_tests.openai_agents.made_up import UNTRACED, Scripted, say
from quiesce.dropin.agents import Agent, Runner

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
    import asyncio, sys
    from dropin_tests.openai_agents.made_up import UNTRACED, Scripted, call, say
    from quiesce.dropin.agents import Agent, Runner, function_tool

    @function_tool
    async def work() -> str:
        '''Work.'''
        print("working", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            print("cleaning up", flush=True)
            await asyncio.sleep(SECONDS)
            print("cleaned up", flush=True)
        return ""

    agent = Agent(name="a", tools=[work], model=Scripted([call("work")], [say("done")]))
    try:
        Runner.run_sync(agent, "Go.", run_config=UNTRACED)
    except KeyboardInterrupt:
        print("interrupted;", len(asyncio.all_tasks(asyncio.get_event_loop())), "tasks left")
    agent = Agent(name="a", model=Scripted([say("done")]))
    print(Runner.run_sync(agent, "Go.", run_config=UNTRACED).final_output)
"""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The loop of this thread, as `run_sync` would make it and leave it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


def test_it_runs_in_the_loop_of_the_thread_and_leaves_that_open(loop: asyncio.AbstractEventLoop) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    agent = Agent(name="a", model=Scripted([say("done")], first=note))
    for _ in range(2):
        result = Runner.run_sync(agent, "Go.", run_config=UNTRACED)
        assert result.final_output == "done"
        assert result.report.clean
    assert loops == [loop, loop]
    assert not loop.is_closed()


def test_it_makes_a_loop_in_a_thread_that_has_none() -> None:
    answers: list[object] = []

    def run() -> None:
        agent = Agent(name="a", model=Scripted([say("done")]))
        answers.append(Runner.run_sync(agent, "Go.", run_config=UNTRACED).final_output)
        asyncio.get_event_loop().close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == ["done"]


def test_in_a_running_loop_it_is_an_error_as_with_the_sdk() -> None:
    async def main() -> None:
        Runner.run_sync(Agent(name="a"), "Go.")

    with pytest.raises(RuntimeError, match="cannot be called when an event loop is already running"):
        asyncio.run(main())


def test_the_handler_of_ctrl_c_is_the_users_again(loop: asyncio.AbstractEventLoop) -> None:
    before = signal.getsignal(signal.SIGINT)
    Runner.run_sync(Agent(name="a", model=Scripted([say("done")])), "Go.", run_config=UNTRACED)
    assert signal.getsignal(signal.SIGINT) is before


def interrupt(times: int, seconds: float) -> list[str]:
    """What a program says that is interrupted while its tool works."""
    program = textwrap.dedent(PROGRAM).replace("SECONDS", str(seconds))
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = []
    with process:
        for line in process.stdout:
            said.append(line.strip())
            if line.strip() in ("working", "cleaning up") and times:
                times -= 1
                process.send_signal(signal.SIGINT)
    return said


@pytest.mark.time_limit(60)
def test_ctrl_c_stops_the_run_and_is_raised_when_it_has_cleaned_up() -> None:
    assert interrupt(1, 0.3) == ["working", "cleaning up", "cleaned up", "interrupted; 0 tasks left", "done"]


@pytest.mark.time_limit(60)
def test_a_second_ctrl_c_does_not_cut_a_clean_up_that_is_quick() -> None:
    assert interrupt(2, 0.3) == ["working", "cleaning up", "cleaned up", "interrupted; 0 tasks left", "done"]
