"""The thread that tells when a blocked event loop holds up a stop: what it takes for blocked, and when it wakes up."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest

from quiesce.kernel.scope import blocked_loop
from quiesce.kernel.scope.blocked_loop import BLOCKED_AFTER


class Stop:
    """Stands for a scope that is being stopped."""

    label = "slow"

    def __init__(self) -> None:
        self.notes: list[str] = []

    def add_notes(self, notes: list[str]) -> None:
        self.notes += notes


class Loop:
    """Stands for an event loop, with one stop under way, that may or may not come to what it is asked."""

    def __init__(self) -> None:
        self.stopping = {Stop(): None}
        self.thread = threading.get_ident()
        self.runs = True
        self.asked: list[Callable[[], object]] = []

    def is_running(self) -> bool:
        return self.runs

    def run_from_anywhere(self, fn: Callable[[], object]) -> None:
        self.asked.append(fn)

    def take_a_turn(self) -> None:
        while self.asked:
            self.asked.pop()()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr(blocked_loop, "_backends", [made])
    return made


class Watch:
    """Looks at the moments that a test chooses, and keeps what it tells."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._asked: dict[Any, list[float]] = {}
        self._told: set[Any] = set()
        self._caplog = caplog

    def look(self, now: float) -> int:
        """Look once; how often it has warned of a blocked loop so far."""
        with self._caplog.at_level(logging.WARNING, "quiesce"):
            self.busy = blocked_loop._check_loops(self._asked, self._told, now)
        return self._caplog.text.count("the event loop's thread was blocked for over")


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> Watch:
    return Watch(caplog)


def test_a_loop_that_takes_no_turn_is_blocked_after_a_while_and_told_of_once(
    loop: Loop, watch: Watch
) -> None:
    assert watch.look(100.0) == 0
    assert watch.busy
    assert watch.look(100.0 + BLOCKED_AFTER - 0.01) == 0
    assert watch.look(100.0 + BLOCKED_AFTER) == 1
    assert watch.look(100.0 + 10 * BLOCKED_AFTER) == 1


def test_a_loop_that_takes_turns_is_not_blocked(loop: Loop, watch: Watch) -> None:
    for step in range(10):
        assert watch.look(100.0 + step * BLOCKED_AFTER) == 0
        loop.take_a_turn()


def test_a_loop_that_is_blocked_again_is_told_of_again(loop: Loop, watch: Watch) -> None:
    watch.look(100.0)
    assert watch.look(101.0) == 1
    loop.take_a_turn()
    assert watch.look(102.0) == 1
    assert watch.look(103.0) == 2


def test_a_loop_that_has_ended_in_the_middle_of_a_stop_is_not_looked_at(loop: Loop, watch: Watch) -> None:
    watch.look(100.0)
    loop.runs = False
    assert watch.look(200.0) == 0
    assert not watch.busy


def test_a_new_stop_is_not_blamed_for_an_older_one(loop: Loop, watch: Watch) -> None:
    watch.look(100.0)
    stops, loop.stopping = loop.stopping, {}
    assert watch.look(100.1) == 0
    assert not watch.busy
    loop.stopping = stops
    assert watch.look(200.0) == 0, "its time begins now"
    assert watch.look(200.0 + BLOCKED_AFTER) == 1


# In programs of their own, as the thread lives as long as the process -----------------------------------------


def run_program(main: str) -> str:
    program = f"""
import os, sys, time
import anyio
from quiesce import Scope
from quiesce.kernel.scope import blocked_loop

async def tidies_up(seconds):
    try:
        await anyio.sleep(60)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(seconds)

async def blocks(seconds):
    try:
        await anyio.sleep(60)
    finally:
        time.sleep(seconds)

{textwrap.dedent(main)}
anyio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_thread_that_has_gone_to_sleep_is_woken_by_the_next_stop() -> None:
    main = """
    async def main():
        blocked_loop.POLL, blocked_loop.QUIET = 0.01, 0.05
        async with Scope() as scope:
            scope.spawn(tidies_up, 0.05)
            await anyio.sleep(0.01)
            scope.cancel()
        assert not blocked_loop.asleep
        while not blocked_loop.asleep:
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        scope = await Scope.open()
        scope.spawn(blocks, 5 * blocked_loop.BLOCKED_AFTER)
        await anyio.sleep(0.01)
        report = await scope.close()
        print(*report.notes)
    """
    assert "the event loop's thread was blocked for over 0." in run_program(main)


def test_in_a_forked_process_the_next_stop_starts_a_thread_of_its_own() -> None:
    main = """
    async def main():
        scope = await Scope.open()
        scope.spawn(tidies_up, 0.2)
        await anyio.sleep(0.01)
        scope.cancel()
        assert not blocked_loop.asleep
        if not os.fork():
            print("asleep" if blocked_loop.asleep else "awake", blocked_loop._thread, flush=True)
            os._exit(0)
        os.wait()
        await scope.close()
    """
    assert run_program(main) == "asleep None\n"
