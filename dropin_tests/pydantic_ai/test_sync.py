"""`run_sync` and `run_stream_sync`, in the thread's own loop; and Ctrl-C, in programs of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pydantic_ai
import pytest

from dropin_tests.pydantic_ai.made_up import Scripted, call, say
from quiesce.dropin.pydantic_ai import Agent

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
    import asyncio
    from dropin_tests.pydantic_ai.made_up import Scripted, call, say
    from quiesce.dropin.pydantic_ai import Agent, RunCancelled

    async def work() -> str:
        '''Work.'''
        print("working", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            print("cleaning up", flush=True)
            await asyncio.sleep(0.6)
            print("cleaned up", flush=True)
        return ""

    agent = Agent(Scripted([call("work")], [say("done")]), tools=[work])
    try:
        USE
    except KeyboardInterrupt as error:
        done = RunCancelled.from_cancellation(error)
        print("interrupted;", len(asyncio.all_tasks(asyncio.get_event_loop())), "tasks left", done is not None)
    print(Agent(Scripted([say("done")])).run_sync("Go.").output)
"""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The loop of this thread, as `run_sync` would make it and leave it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_it_runs_in_the_loop_of_the_thread_and_leaves_that_open(loop: asyncio.AbstractEventLoop) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    agent = Agent(Scripted([say("done")], first=note))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as asyncio has for generators after the loop has closed all
        for _ in range(2):
            result = agent.run_sync("Go.")
            assert result.output == "done"
            assert result.report.clean
            with agent.run_stream_sync("Go.") as streamed:
                assert list(streamed.stream_text(delta=True, debounce_by=None)) == ["done"]
    assert loops == [loop] * 4
    assert agent.name == "agent"
    assert not loop.is_closed()


def test_in_a_running_loop_it_is_an_error_as_with_the_sdk() -> None:
    async def main() -> None:
        Agent(Scripted([say("done")])).run_sync("Go.")

    with pytest.raises(RuntimeError, match="when an event loop is already running"):
        asyncio.run(main())


def test_in_a_tool_it_is_an_error_as_with_the_sdk(loop: asyncio.AbstractEventLoop) -> None:
    def ask() -> str:
        """Ask."""
        return Agent(Scripted([say("done")])).run_sync("Go.").output

    agent = Agent(Scripted([call("ask")], [say("done")]), tools=[ask])
    with pytest.raises(pydantic_ai.UserError, match="cannot be used inside a synchronous tool"):
        agent.run_sync("Go.")


def test_an_agent_that_was_not_exited_can_be_entered_in_another_loop() -> None:
    agent = Agent(Scripted([say("done")]))

    async def enter() -> None:
        await agent.__aenter__()

    async def use() -> str:
        async with agent:
            return (await agent.run("Go.")).output

    asyncio.run(enter())
    assert asyncio.run(use()) == "done"
    assert agent.report is not None
    assert agent.report.clean


def test_a_stream_that_is_left_early_has_ended(loop: asyncio.AbstractEventLoop) -> None:
    model = Scripted([say("one two three")], then=lambda: asyncio.sleep(60))
    with Agent(model).run_stream_sync("Go.") as result:
        for _ in result.stream_text(delta=True, debounce_by=None):
            break
    assert model.closed == 1
    assert len(asyncio.all_tasks(loop)) == 0


def interrupt(times: int, use: str) -> list[str]:
    """What a program says that is interrupted while its tool works."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).replace("USE", use)],
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
                time.sleep(0.2)  # or it would be raised in the tool itself, where the handler is Python's own
                process.send_signal(signal.SIGINT)
    return said


@pytest.mark.time_limit(60)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_stops_the_run_and_is_raised_when_it_has_cleaned_up(times: int) -> None:
    said = interrupt(times, "agent.run_sync('Go.')")
    assert said == ["working", "cleaning up", "cleaned up", "interrupted; 0 tasks left True", "done"]


@pytest.mark.time_limit(60)
def test_ctrl_c_stops_a_stream_and_is_raised_when_it_has_cleaned_up() -> None:
    said = interrupt(1, "agent.run_stream_sync('Go.')")
    assert said == ["working", "cleaning up", "cleaned up", "interrupted; 0 tasks left True", "done"]
