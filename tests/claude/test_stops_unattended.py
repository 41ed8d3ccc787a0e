"""Stops that give no place to wait: a bare `break`, a dropped object, the end of the event loop, the death of the program."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import warnings
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.claude import AssistantMessage, ClaudeSDKClient, query
from quiesce.kernel.process import procfs
from tests.claude.clis import ROOT, Cli
from tests.claude.ways_to_stop import PATIENT
from tests.kernel.processes import die_slowly, wait_until
from tests.kernel.test_scope_shutdown import ALL, Run, everywhere

pytestmark = pytest.mark.real_time


def working(cli: Cli) -> Any:
    """A query whose CLI has a tool at work when it has said hello."""
    return query(prompt="work", options=cli.options([["text", "hello"], cli.ticking()]), grace=PATIENT)


def assert_stopped_by_now(cli: Cli) -> None:
    """Without the event loop having run: the interrupt was sent and the tree signalled, and what is signalled goes by itself."""
    assert wait_until(lambda: not cli.processes(), 10)
    told = [*cli.got("control_request", subtype="interrupt"), *cli.happened("unheard")]
    assert [frame["request"]["subtype"] for frame in told] == ["interrupt"]
    assert "SIGTERM" in cli.happened("signal")


async def test_after_a_bare_break_the_cli_is_interrupted_and_signalled_before_the_next_line(cli: Cli) -> None:
    messages = working(cli)
    async for message in messages:
        if isinstance(message, AssistantMessage):
            await cli.until_ticking()
            break
    assert_stopped_by_now(cli)
    report = await messages.close()
    assert report.clean, str(report)
    assert report.elapsed < PATIENT.cancel / 3, "a process that is gone was waited for, for an answer"


async def test_an_exception_in_a_bare_loop_does_the_same(cli: Cli) -> None:
    messages = working(cli)
    with pytest.raises(LookupError):
        async for message in messages:
            if isinstance(message, AssistantMessage):
                await cli.until_ticking()
                raise LookupError("the loop")
    assert_stopped_by_now(cli)
    await messages.close()


async def test_an_iterator_that_is_dropped_does_the_same(cli: Cli) -> None:
    messages = working(cli)
    iterator = aiter(messages)
    await anext(iterator)
    await cli.until_ticking()
    del iterator
    assert_stopped_by_now(cli)
    await messages.close()


async def test_a_query_that_was_its_own_iterator_does_the_same_when_it_is_dropped(cli: Cli) -> None:
    async with Scope("the user's"):
        messages = working(cli)
        await anext(messages)
        await cli.until_ticking()
        del messages
        assert_stopped_by_now(cli)
    cli.assert_gone()


async def test_a_query_that_is_dropped_in_the_middle_is_drained_by_the_scope_around_it(cli: Cli) -> None:
    async with Scope("the user's"):
        async for message in working(cli):
            if isinstance(message, AssistantMessage):
                await cli.until_ticking()
                break
        assert_stopped_by_now(cli)


async def test_a_client_that_is_dropped_is_stopped_with_a_warning(cli: Cli) -> None:
    options = cli.options([["text", "hello"], cli.ticking()])
    async with Scope("the user's") as users:
        client = ClaudeSDKClient(options, grace=PATIENT, scope=users)
        made_at = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        users.spawn(client.connect, "work", name="another task")
        await cli.until_ticking()
        kept = [client]
        del client
        with pytest.warns(ResourceWarning, match=r"dropped without close\(\)") as warned:
            kept.clear()
    cli.assert_gone()
    cli.assert_interrupted_first()
    assert f"made at tests/claude/test_stops_unattended.py:{made_at} in test_a_client_that" in str(
        warned[0].message
    )


@everywhere
def test_at_the_end_of_the_loop_a_query_that_is_being_read_is_drained(cli: Cli, run: Run) -> None:
    async def read() -> None:
        async for _ in working(cli):
            pass

    async def main() -> None:
        if run is ALL["trio"]:
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await cli.until_ticking()
                group.cancel_scope.cancel()
            return
        task = asyncio.create_task(read())
        await cli.until_ticking()
        assert not task.done()

    run(main)
    cli.assert_gone()
    cli.assert_interrupted_first()


@everywhere
def test_at_the_end_of_the_loop_a_client_that_nobody_has_closed_is_drained(cli: Cli, run: Run) -> None:
    kept: list[Any] = []

    async def main() -> None:
        client = ClaudeSDKClient(cli.options([["text", "hello"], cli.ticking()]), grace=PATIENT)
        kept.append(client)
        await client.connect("work")
        await cli.until_ticking()

    run(main)
    cli.assert_gone()
    cli.assert_interrupted_first()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        kept.clear()
        gc.collect()


@everywhere
def test_at_the_end_of_the_loop_a_query_that_was_broken_off_is_drained(cli: Cli, run: Run) -> None:
    async def main() -> None:
        async for message in working(cli):
            if isinstance(message, AssistantMessage):
                await cli.until_ticking()
                break

    run(main)
    cli.assert_gone()


@everywhere
def test_at_the_end_of_the_loop_one_that_takes_long_to_die_is_no_zombie(
    cli: Cli, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_slowly(monkeypatch, 0.5)
    script = {"ignore_term": True, "ignore_eof": True}
    pids: list[int] = []

    async def main() -> None:
        options = cli.options([["text", "hello"], ["hang"]], script=script)
        messages = query(prompt="work", options=options)  # of its five seconds the SIGKILL has a twentieth
        async for message in messages:
            if isinstance(message, AssistantMessage):
                pids.append(messages.process.pid)
                break

    run(main)
    assert procfs.look_up(pids[0]) is None


PROGRAM = """
import sys
from quiesce.claude import ClaudeAgentOptions, query

async def main():
    async for message in query(prompt="work", options=ClaudeAgentOptions(cli_path=sys.argv[1])):
        pass

if sys.argv[2] == "trio":
    import trio
    trio.run(main)
else:
    import asyncio
    asyncio.run(main())
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_when_the_program_is_killed_the_cli_and_its_tool_go_too(cli: Cli, backend: str, death: int) -> None:
    turn = [["text", "hello"], ["grandchild", {"ready": cli.file("up"), "ways": ["session"]}], cli.ticking()]
    environment = {**os.environ, **cli.environment(turn), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(cli.path), backend], env=environment, cwd=ROOT
    ) as program:
        assert wait_until(lambda: cli.ticks() > 1, 15)
        program.send_signal(death)
    assert wait_until(lambda: not cli.processes(), 10)
