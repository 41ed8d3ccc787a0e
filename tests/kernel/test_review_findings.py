"""Faults that were found by reading, each made to happen once."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quiesce import Grace, Scope, StopReport, own
from quiesce.kernel import _seen
from quiesce.kernel._core import ScopeCore
from tests.kernel.processes import is_gone, running, token_of_processes
from tests.world import asyncio_only


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as made:
        yield made


@asyncio_only
@pytest.mark.real_time
@pytest.mark.parametrize("cooperate", [0, 0.5])
async def test_what_the_clean_up_orphans_is_seen_before_it_also_with_time_to_cooperate(
    token: str, cooperate: float
) -> None:
    @asynccontextmanager
    async def server() -> AsyncIterator[None]:
        shell = f"setsid sleep 1{token} & echo up; wait"
        process = await asyncio.create_subprocess_exec("sh", "-c", shell, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        await process.stdout.readline()
        try:
            yield
        finally:
            process.kill()
            await process.wait()

    async with own(server(), grace=Grace(cooperate=cooperate)):
        pass
    assert running(token) == []


LATE = """
import asyncio
from contextlib import asynccontextmanager
from quiesce import own

@asynccontextmanager
async def server():
    async def start():
        await asyncio.sleep(0.05)
        process = await asyncio.create_subprocess_exec("sh", "-c", "trap '' TERM; : %s; echo; while :; do sleep 1; done")
        print(process.pid, flush=True)
        started.set()
        await asyncio.sleep(100)
    started = asyncio.Event()
    task = asyncio.create_task(start())
    yield started
    await asyncio.wait([task], timeout=0)

async def main():
    global held
    held = await own(server()).open()
    await held.value.wait()

asyncio.run(main())
"""


@pytest.mark.real_time
def test_a_process_that_was_told_to_go_when_the_loop_ended_goes_with_the_program(
    token: str, tmp_path: Path
) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE % token)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], stdout=subprocess.PIPE, timeout=15, check=False
    )
    pid = int(done.stdout.split()[0])
    give_up_at = time.monotonic() + 5
    while not is_gone(pid) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    gone = is_gone(pid)
    if not gone:
        os.kill(pid, 9)
    assert gone


@asyncio_only
@pytest.mark.real_time
async def test_the_collector_of_another_thread_does_not_stop_a_scope_there() -> None:
    threads: list[object] = []

    async def lost() -> None:
        async with Scope("lost") as scope:
            scope.token.on_cancel(lambda: threads.append(threading.current_thread()))
            await asyncio.get_running_loop().create_future()

    coroutine = lost()
    coroutine.send(None)
    worker = threading.Thread(target=coroutine.close)
    worker.start()
    while worker.is_alive():
        await asyncio.sleep(0.001)
    worker.join()
    assert worker not in threads


@asyncio_only
async def test_a_task_that_fails_after_its_block_is_not_held_by_the_scope() -> None:
    class Late(Exception):
        pass

    async def fails() -> None:
        async with Scope() as scope:
            await asyncio.sleep(0)
        raise Late(scope)

    gc.disable()
    try:
        task = asyncio.ensure_future(fails())
        await asyncio.wait([task])
        assert isinstance(task.exception(), Late)
        alive = weakref.ref(task)
        del task
        await asyncio.sleep(0)
        assert alive() is None
    finally:
        gc.enable()


async def test_a_stop_that_a_token_settles_is_told_of_once() -> None:
    ended: list[str] = []

    class Listener:
        def began(self, core: ScopeCore) -> None:
            pass

        def ended(self, core: ScopeCore, report: StopReport | None, *, late: bool) -> None:
            ended.append(core.label)

    listener = Listener()
    _seen.listeners.append(listener)
    try:
        outer = await Scope.open("outer")
        await Scope.open("inner", token=outer.token, scope=outer)
        outer.cancel()
        await outer.close()
    finally:
        _seen.listeners.remove(listener)
    assert ended.count("outer") == 1
