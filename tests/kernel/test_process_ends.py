"""Demand 10, when more than the process ends: the event loop under it, or the whole program."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import trio
import uvloop

from quiesce import Grace, Reason, Scope
from quiesce.kernel.process import procfs
from quiesce.kernel.process.process import Process
from quiesce.kernel.process.process_tree import Tree, live
from quiesce.kernel.scope.backend import current_backend
from tests.kernel.processes import die_slowly, is_gone, running, token_of_processes, wait_until
from tests.world import asyncio_only, trio_only

Main = Callable[[], Coroutine[Any, Any, Any]]
Run = Callable[[Main], Any]

FAMILY = "sleep {0} & setsid sleep {0} & echo up; cat; wait"
DEAF = "trap '' TERM; echo up; while :; do sleep {0}; done"
BRISK = Grace(cancel=0.1, terminate=0.1, kill=10.0)


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


def run_asyncio(factory: Callable[[], asyncio.AbstractEventLoop]) -> Run:
    def run(main: Main) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    return run


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    return loop


ASYNCIO = {"asyncio": run_asyncio(asyncio.SelectorEventLoop), "uvloop": run_asyncio(uvloop.new_event_loop)}
if sys.version_info >= (3, 12):
    ASYNCIO["asyncio-eager"] = run_asyncio(eager_loop)
ALL: dict[str, Run] = {**ASYNCIO, "trio": trio.run}

everywhere = pytest.mark.parametrize("run", ALL.values(), ids=ALL.keys())
pytestmark = pytest.mark.real_time


def shell(script: str, token: str) -> list[str]:
    return ["sh", "-c", script.format(token)]


def trees(token: str) -> list[Tree]:
    """What the program would still end at its exit."""
    return [tree for tree in live() if token in " ".join(tree.argv)]


async def started(argv: list[str], **options: Any) -> Process:
    process = await Process.open(argv, **options)
    async for _ in process.lines():
        break
    return process


# The loop


@everywhere
@pytest.mark.parametrize("script", [FAMILY, DEAF])
def test_a_process_that_was_never_closed_is_gone_when_the_loop_is(run: Run, script: str, token: str) -> None:
    kept: list[Process] = []

    async def main() -> None:
        kept.append(await started(shell(script, token), stdin="pipe", grace=BRISK))

    run(main)
    assert running(token) == []
    assert trees(token) == []
    process = kept[0]
    assert process.returncode is not None
    assert process._child is not None
    assert process._child._core.state == "settled"
    reason = process._child._core.reason
    assert reason is not None
    assert reason.kind == "shutdown"


@everywhere
def test_even_one_that_was_opened_in_the_last_moment(run: Run, token: str) -> None:
    kept: list[Process] = []

    async def main() -> None:
        kept.append(await Process.open(shell(FAMILY, token), stdin="pipe", grace=BRISK))

    run(main)
    assert running(token) == []
    assert trees(token) == []


@everywhere
def test_even_one_that_was_being_opened(run: Run, token: str) -> None:
    kept: list[Scope] = []

    async def opener() -> None:
        async with Process(shell(FAMILY, token), stdin="pipe", grace=BRISK):
            await anyio.sleep_forever()

    for turns in range(4):

        async def main(turns: int = turns) -> None:
            kept.append(scope := await Scope.open())
            scope.spawn(opener)
            for _ in range(turns):
                await anyio.sleep(0)

        run(main)
        assert running(token) == []
        assert trees(token) == []


@everywhere
def test_a_stop_under_way_goes_on_when_the_loop_ends(run: Run, token: str) -> None:
    kept: list[Process] = []

    async def main() -> None:
        kept.append(process := await started(shell(DEAF, token), stdin="pipe", grace=BRISK))
        process.cancel("enough")

    started_at = time.monotonic()
    run(main)
    assert time.monotonic() - started_at >= 0.195  # uvloop counts in milliseconds
    assert running(token) == []
    assert kept[0]._child is not None
    assert kept[0]._child._core.reason == Reason("user", "enough")
    assert kept[0].returncode == -signal.SIGKILL


@everywhere
def test_stderr_is_read_to_the_end_though_the_loop_ends(run: Run, token: str) -> None:
    kept: list[Process] = []
    script = "echo up; cat; head -c 300000 /dev/zero >&2; echo bye >&2; exit 6 # {0}"

    async def main() -> None:
        kept.append(await started(shell(script, token), stdin="pipe"))

    run(main)
    assert kept[0].returncode == 6
    assert kept[0].stderr_tail.endswith(b"\0bye\n")


@everywhere
def test_the_loop_does_not_wait_for_ever_for_what_cannot_be_ended(
    run: Run, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Process] = []

    async def main() -> None:
        grace = Grace(cancel=0.1, terminate=0.1, kill=0.1)
        kept.append(await started(shell("echo up; exec sleep {0}", token), grace=grace))
        kept.append(await started(shell("sleep {0} & echo up", token), grace=grace))

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "signal", lambda tree, number: None)
        started_at = time.monotonic()
        run(main)
        assert 0.195 <= time.monotonic() - started_at < 10
    assert wait_until(lambda: len(running(token)) == 2)
    assert len(trees(token)) == 2  # they are still known, and ended when the program ends
    for tree in trees(token):
        tree.signal(signal.SIGKILL)
        assert wait_until(tree.reap)


@everywhere
def test_nor_for_what_could_not_be_ended_before(
    run: Run, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Process] = []

    async def main() -> None:
        kept.append(process := await started(shell("echo up; exec sleep {0}", token)))
        report = await process.close(deadline=0.05)
        assert [left.kind for left in report.left] == ["process"]

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "signal", lambda tree, number: None)
        started_at = time.monotonic()
        run(main)
        assert time.monotonic() - started_at < 10
    for tree in trees(token):
        tree.signal(signal.SIGKILL)
        assert wait_until(tree.reap)


@everywhere
def test_one_that_dies_slowly_is_reaped_while_its_owner_has_time_left(
    run: Run, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_slowly(monkeypatch, 0.4)
    kept: list[object] = []

    async def main() -> None:
        scope = await Scope.open(grace=Grace(cancel=0.1, terminate=1.0, kill=30.0))
        process = await started(shell(DEAF, token), stdin="pipe", scope=scope)
        kept.extend((scope, process))
        scope.cancel("enough", grace=Grace(cancel=0.1, terminate=0.1, kill=30.0))

    run(main)
    assert trees(token) == []
    process = kept[1]
    assert isinstance(process, Process)
    assert process.returncode == -signal.SIGKILL
    assert procfs.look_up(process.pid) is None


@everywhere
def test_one_that_dies_after_its_loop_is_reaped_all_the_same(
    run: Run, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_slowly(monkeypatch, 1.0)
    kept: list[Process] = []

    async def main() -> None:
        grace = Grace(cancel=0.05, terminate=0.05, kill=0.05)
        kept.append(await started(shell(DEAF, token), stdin="pipe", grace=grace))

    run(main)
    assert len(trees(token)) == 1
    assert wait_until(lambda: procfs.look_up(kept[0].pid) is None)
    assert wait_until(lambda: not trees(token))


def test_one_whose_loop_was_closed_in_the_middle_is_reaped(token: str) -> None:
    kept: list[Process] = []

    async def main() -> None:
        kept.append(await started(shell(DEAF, token), stdin="pipe"))

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # its tasks are destroyed, and pending
    loop.run_until_complete(main())
    loop.close()
    del loop
    pid = kept[0].pid
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        kept.clear()
    gc.collect()
    assert wait_until(lambda: procfs.look_up(pid) is None)
    assert wait_until(lambda: not trees(token))


@everywhere
def test_one_that_ended_by_itself_may_be_dropped_after_its_loop_without_a_word(run: Run) -> None:
    kept: list[Process] = []

    async def main() -> None:
        kept.append(process := await Process.open(["echo", "unread"], stdin="pipe"))
        await process.wait()
        child = process._child
        assert child is not None
        while child.state != "finished":
            await anyio.sleep(0.001)

    run(main)
    kept.clear()
    gc.collect()  # where a descriptor is not closed, Python warns, and warnings are errors here


@asyncio_only
async def test_a_program_that_cancels_all_its_tasks_stops_its_processes(token: str) -> None:
    process = await started(shell(DEAF, token), stdin="pipe", grace=BRISK)
    for _ in range(3):
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0.02)
    assert await process.wait() == -signal.SIGKILL
    report = await process.close()
    assert report.clean
    assert report.reason is not None
    assert report.reason.kind in {"shutdown", "cancelled"}
    assert running(token) == []


@pytest.mark.parametrize(
    "factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_a_process_that_is_dropped_after_its_loop_is_killed(
    factory: Callable[[], asyncio.AbstractEventLoop], token: str
) -> None:
    kept: list[Process] = []

    async def main() -> None:
        kept.append(await started(shell(DEAF, token), stdin="pipe"))

    complaints: list[str] = []
    loop = factory()
    loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    loop.run_until_complete(main())
    loop.close()
    del loop
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        kept.clear()
    gc.collect()
    assert wait_until(lambda: not running(token))
    assert set(complaints) <= {"Task was destroyed but it is pending!"}
    for tree in trees(token):
        assert wait_until(tree.reap)


@trio_only
async def test_a_start_that_cannot_be_watched_is_undone(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = current_backend()

    def refuse(*_: object) -> None:
        raise RuntimeError("this trio run is over")

    scope = await Scope.open()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "start", refuse)
        with pytest.raises(RuntimeError, match="this trio run is over"):
            await Process.open(shell(FAMILY, token), stdin="pipe", scope=scope)
    assert trees(token) == []
    assert (await scope.close()).clean


# The program

PRELUDE = """
import asyncio, gc, os, signal, sys, time, warnings
import trio
from quiesce import Grace, Scope
from quiesce.kernel.process import guardian as _guardian
from quiesce.kernel.process.process import Process

token, backend = sys.argv[1:]
kept = []

async def family(**options):
    script = f"sleep {token} & setsid sleep {token} & echo up; cat; wait"
    process = await Process.open(["sh", "-c", script], stdin="pipe", grace=Grace(cancel=0.1), **options)
    async for _ in process.lines():
        break
    return process

def say(*words):
    print(*words, flush=True)

def run(main):
    trio.run(main) if backend == "trio" else asyncio.run(main())

sleep = trio.sleep if backend == "trio" else asyncio.sleep
"""

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@contextmanager
def program(token: str, backend: str, body: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", PRELUDE + body, token, backend]
    with subprocess.Popen(argv, env=env, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


@both
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_program_is_killed(token: str, backend: str, number: int) -> None:
    body = """
async def main():
    kept.append(await family())
    kept.append(await family())
    say(_guardian.pid())
    await sleep(60)
run(main)
"""
    with program(token, backend, body) as dying:
        guard = int(hear(dying))
        assert wait_until(lambda: len(running(token)) >= 4)
        dying.send_signal(number)
        assert dying.wait(15) == -number
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


@both
def test_nothing_is_left_when_the_program_is_killed_in_the_middle_of_a_stop(token: str, backend: str) -> None:
    body = """
async def main():
    script = f"trap '' TERM; sleep {token} & echo up; while :; do sleep {token}; done"
    process = await Process.open(["sh", "-c", script])
    async for _ in process.lines():
        break
    process.cancel(grace=Grace(terminate=60))
    say("stopping")
    await sleep(60)
run(main)
"""
    with program(token, backend, body) as dying:
        assert hear(dying) == "stopping"
        dying.kill()
        dying.wait(15)
        assert wait_until(lambda: not running(token))


@both
def test_a_program_that_forgets_its_processes_ends_without_them(token: str, backend: str) -> None:
    body = """
async def main():
    kept.append(await family())
run(main)
say("after", kept[0].returncode, kept[0]._child._core.state)
"""
    with program(token, backend, body) as forgetful:
        assert hear(forgetful).startswith("after -15 settled")
        assert forgetful.wait(15) == 0
        assert running(token) == []
        assert forgetful.stderr is not None
        assert forgetful.stderr.read() == ""


@both
def test_a_program_that_drops_its_processes_is_warned_and_ends_without_them(token: str, backend: str) -> None:
    body = """
warnings.simplefilter("always")
async def main():
    await family()
    gc.collect()
run(main)
say("after")
"""
    with program(token, backend, body) as careless:
        assert hear(careless) == "after"
        assert careless.wait(15) == 0
        assert running(token) == []
        assert careless.stderr is not None
        assert "ResourceWarning: process 'sh' (pid " in careless.stderr.read()


@both
def test_a_program_whose_main_fails_ends_without_its_processes(token: str, backend: str) -> None:
    body = """
async def main():
    async with Scope() as scope:
        kept.append(await family(scope=scope))
        raise ValueError("no good")
run(main)
"""
    with program(token, backend, body) as failing:
        assert failing.wait(15) == 1
        assert running(token) == []
        assert failing.stderr is not None
        assert "ValueError: no good" in failing.stderr.read()


@both
def test_a_ctrl_c_ends_the_processes_too(token: str, backend: str) -> None:
    body = """
async def main():
    async with Process(["sh", "-c", f"sleep {token} & echo up; wait"]) as process:
        async for _ in process.lines():
            say("up")
run(main)
"""
    with program(token, backend, body) as interrupted:
        assert hear(interrupted) == "up"
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(15) == -signal.SIGINT
        assert running(token) == []


def test_a_forked_child_neither_ends_nor_complains_of_its_parents_processes(token: str) -> None:
    body = """
warnings.simplefilter("error")
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside the thread that watches the guard
async def main():
    process = await family()
    kept.append(process)
    pid = os.fork()
    if pid == 0:
        kept.clear()
        del process
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    await sleep(0.1)
    say(process.returncode)
    await process.close()
    say(process.returncode)
run(main)
"""
    with program(token, "asyncio", body) as forking:
        assert hear(forking) == "None"
        assert hear(forking) == "-15"
        assert forking.wait(15) == 0
        assert forking.stderr is not None
        complaints = forking.stderr.read()
        assert "ResourceWarning" not in complaints


def test_a_block_that_the_collector_leaves_after_its_loop_ends_the_process(token: str) -> None:
    async def hold() -> None:
        async with Process(["sleep", token]):
            await asyncio.sleep(3600)

    loop = asyncio.new_event_loop()  # held to the end: what its collection would do does not count
    block = hold()
    task = loop.create_task(block)
    loop.run_until_complete(asyncio.sleep(0.05))
    assert running(token)
    loop.close()
    with pytest.warns(ResourceWarning, match="dropped without close"):
        block.close()
    del task, block
    assert wait_until(lambda: not running(token))
