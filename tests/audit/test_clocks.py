"""A scenario that looks at the clock, or makes the standard library look something up, does the same in every run."""

from __future__ import annotations

import asyncio
import ctypes.util
import platform
import subprocess
import threading
import time
import uuid
from collections.abc import Callable

import anyio
import pytest

from quiesce.audit import audit
from quiesce.audit.watch.clocks import Clocks

pytestmark = pytest.mark.time_limit(60)

in_both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns")


@in_both
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_loop_that_waits_for_a_moment_gets_there(backend: str, clock: str) -> None:
    second = 1_000_000_000 if clock.endswith("_ns") else 1

    async def scenario() -> None:
        ends = getattr(time, clock)() + 1000 * second
        while getattr(time, clock)() < ends:
            await anyio.sleep(100)

    result = audit(scenario, backend=backend, stops="cancel")
    assert result.clean, str(result)
    assert result.points == 10


@in_both
def test_so_it_does_with_real_io(backend: str) -> None:
    async def scenario() -> None:
        ends = time.time() + 1000
        while time.time() < ends:
            await anyio.sleep(100)

    result = audit(scenario, backend=backend, stops="cancel", phases="early", real_io=True)
    assert result.clean, str(result)
    assert result.points == 10


@in_both
def test_each_run_reads_the_same_time(backend: str) -> None:
    read: set[int] = set()

    async def scenario() -> None:
        read.add(time.time_ns())
        await anyio.sleep(time.time_ns() % 997)
        if time.time_ns() % 2:
            await anyio.sleep(1)

    audit(scenario, backend=backend).assert_clean()
    assert len(read) == 1


def test_a_task_that_is_called_by_the_time_has_the_same_name_in_every_audit() -> None:
    labels: set[str] = set()

    async def scenario() -> None:
        async def job() -> None:
            await asyncio.Event().wait()

        job.__qualname__ = f"job-{time.time()}"
        task = asyncio.create_task(job())
        await asyncio.sleep(1)
        task.cancel()

    for _ in range(2):
        (finding,) = audit(scenario, stops="cancel", phases="early").findings
        labels.add(finding.key)
    assert len(labels) == 1
    assert "leaked job-N.N" in labels.pop()


def test_a_step_that_blocks_until_a_moment_gets_there() -> None:
    async def scenario() -> None:
        ends = time.monotonic() + 0.05
        while time.monotonic() < ends:
            time.sleep(0.01)
        ends = time.time() + 0.001
        while time.time() < ends:
            pass
        await asyncio.sleep(1)

    audit(scenario, stops="cancel").assert_clean()


def test_other_threads_have_the_real_clock_and_everybody_has_it_afterwards() -> None:
    before = {name: getattr(time, name) for name in (*CLOCKS, "sleep")}
    read: list[float] = []
    with Clocks(is_real=False).following(lambda: 10_000.0):
        thread = threading.Thread(target=lambda: read.append(time.monotonic()))
        thread.start()
        thread.join()
        read.append(time.monotonic())
    assert {name: getattr(time, name) for name in before} == before
    assert read[1] - read[0] > 9_000
    assert abs(time.monotonic() - read[0]) < 1_000


def test_with_real_io_the_monotonic_clock_is_the_real_one() -> None:
    with Clocks(is_real=True).following(lambda: 10_000.0):
        ahead, monotonic = time.time(), time.monotonic()
    assert ahead - time.time() > 9_000
    assert abs(time.monotonic() - monotonic) < 1_000


@in_both
@pytest.mark.parametrize("look_up", [lambda: ctypes.util.find_library("c"), platform.processor, uuid.uuid1])
def test_a_look_up_of_the_standard_library_is_not_the_scenarios_process(
    backend: str, look_up: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What was looked up once in this process is known.
    for module, name in ((platform, "_uname_cache"), (uuid, "_node"), (uuid, "_generate_time_safe")):
        monkeypatch.setattr(module, name, None, raising=False)
    platform.processor.cache_clear() if hasattr(platform.processor, "cache_clear") else None

    async def scenario() -> None:
        look_up()
        await anyio.sleep(1)

    audit(scenario, backend=backend, stops="cancel").assert_clean()


def test_a_process_that_the_scenario_starts_is_refused_as_before() -> None:
    async def scenario() -> None:
        subprocess.run(["true"], check=False)  # noqa: ASYNC221
        await asyncio.sleep(1)

    assert audit(scenario).verdict == "BASELINE-BROKEN"
