"""Processes that a tool starts by its own means: they end with the tool when that is stopped, or are named as left."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents import FunctionTool, RunConfig, Runner, function_tool
from quiesce.kernel.contain.adopted_tree import AdoptedTree
from quiesce.testing import call
from tests.agents.conversations import running as arun_beside
from tests.agents.conversations import talk
from tests.agents.scenes import (
    consumed,
    outcomes,
    requests_of,
    scripted,
    session_with,
    time_limit_once,
)
from tests.kernel.processes import running, token_of_processes
from tests.world import asyncio_only

pytestmark = pytest.mark.real_time

BRISK = Grace(cancel=0.3, terminate=5, kill=5)
CONFIG = RunConfig(grace=BRISK)


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as made:
        yield made


def tree(token: str) -> list[str]:
    """A shell with two children; they end when they are asked to."""
    return ["sh", "-c", f"sleep 1{token} & sleep 2{token} & wait"]


def deaf(token: str) -> list[str]:
    """The same, and nobody heeds a SIGTERM."""
    return ["sh", "-c", f"trap '' TERM; sleep 1{token} & sleep 2{token} & while :; do wait; done"]


async def by_anyio(command: list[str]) -> None:
    process = await anyio.open_process(command, stdin=None, stdout=None, stderr=None)
    await process.wait()


async def by_anyio_in_a_group(command: list[str]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(by_anyio, command)


async def by_asyncio(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    await process.wait()


async def by_popen(command: list[str]) -> None:
    process = subprocess.Popen(command)  # noqa: ASYNC220 - as tools do
    while process.poll() is None:
        await anyio.sleep(0.01)


def by_run_in_a_thread(command: list[str]) -> None:
    subprocess.run(command, check=False)


WAYS = [
    by_anyio,
    by_anyio_in_a_group,
    by_popen,
    by_run_in_a_thread,
]


def tool_that(start: Callable[[list[str]], Any], command: list[str], **options: Any) -> FunctionTool:
    """A tool that starts this process, waits for it, and does nothing about its end."""

    async def work() -> str:
        await start(command)
        return "done"

    def work_in_a_thread() -> str:
        start(command)
        return "done"

    made = work_in_a_thread if start is by_run_in_a_thread else work
    return function_tool(made, name_override="work", **options)


@pytest.mark.parametrize("start", WAYS)
async def test_what_a_tool_has_started_ends_with_a_run_that_is_cancelled(
    start: Callable[[list[str]], Any], token: str
) -> None:
    session = await session_with()
    agent = scripted(call("work"), tools=[tool_that(start, tree(token))])
    async with time_limit_once(lambda: len(running(token)) == 3, after=0.05):
        await Runner.run(agent, "?", session=session, run_config=CONFIG)
    assert not running(token)
    assert outcomes(await session.get_items()) == ["interrupted"]


@asyncio_only
async def test_what_a_tool_has_started_by_asyncio_ends_with_it(token: str) -> None:
    agent = scripted(call("work"), tools=[tool_that(by_asyncio, tree(token))])
    async with time_limit_once(lambda: len(running(token)) == 3, after=0.05):
        await Runner.run(agent, "?", run_config=CONFIG)
    assert not running(token)


@pytest.mark.parametrize("start", WAYS)
async def test_it_ends_with_a_conversation_that_is_interrupted(
    start: Callable[[list[str]], Any], token: str
) -> None:
    conversation = talk(call("work"), tools=(tool_that(start, tree(token)),), grace=BRISK)
    async with arun_beside(conversation):
        while len(running(token)) < 3:
            await anyio.sleep(0.005)
        await anyio.sleep(0.05)
        report = await conversation.interrupt()
    assert report.clean
    assert not running(token)
    assert outcomes(conversation.items) == ["interrupted"]


@pytest.mark.parametrize("start", WAYS)
async def test_it_ends_with_a_tool_that_is_over_its_time(
    start: Callable[[list[str]], Any], token: str
) -> None:
    agent = scripted(call("work"), "ok", tools=[tool_that(start, tree(token), timeout=1)])
    result = await Runner.run(agent, "?", run_config=CONFIG)
    assert not running(token)
    assert outcomes(result.new_items) == ["failed"]


async def test_it_ends_with_a_streamed_run_that_is_closed(token: str) -> None:
    agent = scripted(call("work"), tools=[tool_that(by_run_in_a_thread, tree(token))])
    result = Runner.run_streamed(
        agent, "?", run_config=RunConfig(grace=Grace(cancel=0.5, terminate=10, kill=10))
    )
    async with consumed(result):
        while len(running(token)) < 3:
            await anyio.sleep(0.005)
        report = await result.close()
    assert report.clean, report
    assert not running(token)
    assert outcomes(result.new_items) == ["interrupted"]


@pytest.mark.parametrize("start", [by_anyio, by_run_in_a_thread])
async def test_one_that_does_not_heed_a_sigterm_is_killed(
    start: Callable[[list[str]], Any], token: str
) -> None:
    session = await session_with()
    agent = scripted(call("work"), tools=[tool_that(start, deaf(token))])
    grace = Grace(cancel=0.2, terminate=0.2, kill=10)
    async with time_limit_once(lambda: len(running(token)) == 3, after=0.05):
        await Runner.run(agent, "?", session=session, run_config=RunConfig(grace=grace))
    assert not running(token)


async def test_one_that_cannot_be_ended_is_named_and_its_call_is_still_running(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Grace(cancel=0.2, terminate=0.2, kill=0.2)
    conversation = talk(call("work"), tools=(tool_that(by_anyio, tree(token)),), grace=quick)
    async with Scope("app", grace=Grace(cancel=0.2, terminate=0.2, kill=10)):
        with monkeypatch.context() as patch:
            patch.setattr(AdoptedTree, "signal", lambda tree, number: None)
            async with arun_beside(conversation):
                while len(running(token)) < 3:
                    await anyio.sleep(0.005)
                await anyio.sleep(0.05)
                report = await conversation.interrupt()
        assert [left.kind for left in report.left] == ["process"]
        assert outcomes(conversation.items) == ["still_running"]
        assert (await conversation.close()).clean
    assert not running(token)


async def test_a_tool_that_ends_its_process_itself_has_the_first_chance(token: str) -> None:
    ended_with: list[int | None] = []

    async def tidy(command: list[str]) -> None:
        process = await anyio.open_process(command, stdin=None, stdout=None, stderr=None)
        try:
            await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.2)
                process.send_signal(signal.SIGINT)
                ended_with.append(await process.wait())

    agent = scripted(call("work"), tools=[tool_that(tidy, ["sleep", f"1{token}"])])
    async with time_limit_once(lambda: running(token), after=0.05):
        await Runner.run(agent, "?", run_config=RunConfig(grace=Grace(cancel=10)))
    assert ended_with == [-signal.SIGINT]


async def test_what_a_tool_has_left_running_on_purpose_is_not_touched(token: str) -> None:
    started: list[Any] = []

    @function_tool
    async def start_server() -> str:
        started.append(subprocess.Popen(["sleep", f"1{token}"]))  # noqa: ASYNC220 - as tools do
        return "started"

    @function_tool
    async def wait() -> str:
        process = started[0]
        await anyio.sleep(60)
        return str(process)

    session = await session_with()
    try:
        agent = scripted(call("start_server"), call("wait"), tools=[start_server, wait])
        async with time_limit_once(lambda: len(requests_of(agent)) == 2, after=0.1):
            await Runner.run(agent, "?", session=session, run_config=CONFIG)
        assert outcomes(await session.get_items()) == ["finished", "interrupted"]
        assert running(token)
    finally:
        for process in started:
            process.kill()
            process.wait()


async def test_a_sibling_that_has_returned_keeps_what_it_has_started(token: str) -> None:
    started: list[Any] = []

    @function_tool
    async def start_server() -> str:
        started.append(await anyio.open_process(["sleep", f"1{token}"], stdin=None, stdout=None, stderr=None))
        return "started"

    @function_tool
    async def wait() -> str:
        await anyio.sleep(60)
        return "never"

    session = await session_with()
    try:
        agent = scripted([call("start_server"), call("wait")], tools=[start_server, wait])
        async with time_limit_once(lambda: running(token), after=0.3):
            await Runner.run(agent, "?", session=session, run_config=CONFIG)
        assert outcomes(await session.get_items()) == ["finished", "interrupted"]
        assert running(token)
    finally:
        for process in started:
            process.kill()
            await process.wait()


async def test_nobody_elses_process_is_touched(token: str) -> None:
    async def theirs() -> None:
        process = await anyio.open_process(["sleep", f"1{token}"], stdin=None, stdout=None, stderr=None)
        try:
            await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                lived.append(process.returncode is None)
                process.kill()
                await process.wait()

    lived: list[bool] = []

    @function_tool
    async def wait() -> str:
        await anyio.sleep(60)
        return "never"

    async with anyio.create_task_group() as group:
        agent = scripted(call("wait"), tools=[wait])
        async with time_limit_once(lambda: running(token), after=0.1):
            group.start_soon(theirs)
            await Runner.run(agent, "?", run_config=CONFIG)
        assert running(token)
        group.cancel_scope.cancel()
    assert lived == [True]
