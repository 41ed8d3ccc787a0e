"""The rules of the house, broken on purpose: each such test must fail, and say what it left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

BROKEN = """
    import asyncio, os, signal, subprocess, sys, threading, time, warnings

    import anyio, pytest, trio
    from hypothesis import given, strategies

    import quiesce, tests.leaks, tests.time_limit, tests.world
    from tests.world import asyncio_only, trio_only

    tests.leaks.PATIENCE = 0.2
    tests.time_limit.FIXTURE_LIMIT = 1.0
    tests.world.IDLE_LIMIT = 0.3
    kept = []


    @asyncio_only
    async def test_task():
        kept.append(asyncio.create_task(asyncio.sleep(3600), name="stray task"))

    @trio_only
    async def test_system_task():
        trio.lowlevel.spawn_system_task(trio.sleep, 3600, name="stray task")

    @asyncio_only
    @given(strategies.integers())
    async def test_task_in_one_example(number):
        if number > 100:
            kept.append(asyncio.create_task(asyncio.sleep(3600), name="stray task"))

    def test_thread():
        threading.Thread(target=time.sleep, args=(5,), name="stray thread").start()

    def test_resident_thread_that_is_no_daemon():
        threading.Thread(target=time.sleep, args=(5,), name="quiesce-idle 1").start()

    def test_child():
        kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)  # stray child"]))

    def test_zombie():
        pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def test_descriptor(tmp_path):
        kept.append(os.open(tmp_path / "stray file", os.O_CREAT))

    def test_unclosed_file(tmp_path):
        open(tmp_path / "stray file", "w")

    @asyncio_only
    async def test_error_nobody_retrieved():
        async def fail():
            raise LookupError("lost error")
        asyncio.create_task(fail())
        await asyncio.sleep(0.01)

    @asyncio_only
    async def test_error_in_a_callback():
        def fail():
            raise LookupError("lost error")
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0.01)

    @asyncio_only
    async def test_own_exception_handler():
        def fail():
            raise LookupError("expected error")
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0.01)

    async def test_coroutine_nobody_awaited():
        anyio.sleep(1)

    async def test_warning():
        warnings.warn("stray warning")

    @pytest.mark.worlds("asyncio", "asyncio-eager", "trio")
    async def test_hang():
        await anyio.Event().wait()

    @pytest.mark.time_limit(1)
    async def test_busy_loop():
        while True:
            pass

    @pytest.mark.time_limit(1)
    async def test_endless_yielding():
        while True:
            await anyio.sleep(0)

    @pytest.mark.real_time
    @pytest.mark.time_limit(1)
    async def test_endless_wait():
        await anyio.sleep(3600)

    @pytest.mark.time_limit(1)
    def test_endless_wait_without_a_loop():
        time.sleep(3600)

    @pytest.mark.time_limit(1)
    def test_endless_wait_in_a_trio_run_of_its_own():
        trio.run(trio.sleep_forever)

    @pytest.mark.time_limit(1)
    def test_endless_wait_in_a_program():
        quiesce.run(anyio.sleep_forever, backend="trio")

    @pytest.fixture
    def endless_set_up():
        time.sleep(3600)

    def test_endless_set_up(endless_set_up):
        pass

    @pytest.fixture
    def endless_tear_down():
        yield
        time.sleep(3600)

    def test_endless_tear_down(endless_tear_down):
        pass

    async def test_after_all_that_an_honest_test():
        await anyio.sleep(0.001)
"""

RESIDENT = """
    import sys, threading, time, types

    import trio

    guardian = types.ModuleType("quiesce.kernel.process.guardian")

    def test_a_daemon_that_quiesce_keeps_may_stay():
        threading.Thread(target=time.sleep, args=(2,), name="quiesce-watchdog", daemon=True).start()

    def test_an_idle_worker_of_trio_may_stay():
        async def main():
            await trio.to_thread.run_sync(time.sleep, 0.001)
        trio.run(main)

    def test_the_guardian_and_its_pipe_may_stay():
        import os, subprocess
        reading, writing = os.pipe()
        global child
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=reading)
        os.close(reading)
        guardian.pid, guardian.fd = lambda: child.pid, lambda: writing
        sys.modules["quiesce.kernel.process.guardian"] = guardian

    def test_the_guardian_goes():
        import os
        os.close(guardian.fd())
        child.wait()

    def test_a_thread_on_its_way_out_is_waited_for():
        threading.Thread(target=time.sleep, args=(0.2,)).start()
"""


DEAF = """
    import signal, time

    import pytest, tests.time_limit

    tests.time_limit.LAST_RESORT = 1.0

    @pytest.mark.time_limit(0.5)
    def test_deaf():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(3600)

    @pytest.mark.parametrize("number", range(20))
    def test_honest(number):
        assert signal.SIGALRM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
"""


@dataclass(frozen=True)
class Verdict:
    outcome: str
    text: str


def verdicts(directory: Path, source: str, *more: str) -> dict[str, Verdict]:
    """Run `source` as a test module under the rules of the house; what became of each test."""
    module, report = directory / "test_inner.py", directory / "report.xml"
    module.write_text(textwrap.dedent(source))
    options = [
        "-p",
        "tests.conftest",
        "-c",
        "pyproject.toml",
        f"--rootdir={directory}",
        f"--junitxml={report}",
        *more,
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(module)]
    environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "hypothesis")}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert report.exists(), result.stdout + result.stderr
    found = {}
    for case in ET.parse(report).iter("testcase"):
        parts = [part for part in case if part.tag in {"failure", "error", "skipped"}]
        outcome = "+".join(part.tag for part in parts) or "passed"
        found[case.attrib["name"]] = Verdict(outcome, "\n".join(part.text or "" for part in parts))
    return found


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    return verdicts(tmp_path_factory.mktemp("broken"), BROKEN)


@pytest.mark.time_limit(60)
@pytest.mark.parametrize(
    ("test", "named"),
    [
        ("test_task", "left behind: task 'stray task', running sleep"),
        ("test_system_task", "left behind: task 'stray task', running sleep"),
        ("test_task_in_one_example", "left behind: task 'stray task', running sleep"),
        ("test_thread", "left behind: thread 'stray thread'"),
        ("test_resident_thread_that_is_no_daemon", "left behind: thread 'quiesce-idle 1'"),
        ("test_child", "# stray child"),
        ("test_zombie", "a zombie nobody waited for"),
        ("test_descriptor", "stray file"),
        ("test_unclosed_file", "ResourceWarning: unclosed file"),
        ("test_error_nobody_retrieved", "LookupError: lost error"),
        ("test_error_in_a_callback", "LookupError: lost error"),
        ("test_coroutine_nobody_awaited", "coroutine 'sleep' was never awaited"),
        ("test_warning", "UserWarning: stray warning"),
        ("test_hang", "in test_hang"),
        ("test_busy_loop", "in test_busy_loop"),
        ("test_endless_yielding", "in test_endless_yielding"),
        ("test_endless_wait", "in test_endless_wait"),
        ("test_endless_wait_without_a_loop", "in test_endless_wait_without_a_loop"),
        ("test_endless_wait_in_a_trio_run_of_its_own", "in test_endless_wait_in_a_trio_run_of_its_own"),
        ("test_endless_wait_in_a_program", "in test_endless_wait_in_a_program"),
    ],
)
def test_a_test_that_breaks_a_rule_fails_in_each_world_and_says_how(
    broken: dict[str, Verdict], test: str, named: str
) -> None:
    runs = {name: verdict for name, verdict in broken.items() if name.partition("[")[0] == test}
    assert runs
    for name, verdict in runs.items():
        assert verdict.outcome == "failure", name
        assert named in verdict.text, name


@pytest.mark.parametrize("fixture", ["endless_set_up", "endless_tear_down"])
def test_a_fixture_that_hangs_is_an_error_of_its_test(broken: dict[str, Verdict], fixture: str) -> None:
    verdict = broken[f"test_{fixture}"]
    assert verdict.outcome == "error"
    assert f"in {fixture}" in verdict.text


@pytest.mark.parametrize("test", ["test_own_exception_handler", "test_after_all_that_an_honest_test"])
def test_a_test_that_breaks_no_rule_passes_whoever_went_before(broken: dict[str, Verdict], test: str) -> None:
    runs = [verdict for name, verdict in broken.items() if name.partition("[")[0] == test]
    assert runs
    assert {verdict.outcome for verdict in runs} == {"passed"}


@pytest.mark.time_limit(60)
def test_what_no_signal_can_interrupt_fails_alone_where_tests_share_processes(tmp_path: Path) -> None:
    found = verdicts(tmp_path, DEAF, "-n2")
    assert "test_inner.py::test_deaf" in found.pop("test_deaf").text
    assert {name: verdict.outcome for name, verdict in found.items()} == {
        f"test_honest[{number}]": "passed" for number in range(20)
    }


@pytest.mark.time_limit(60)
def test_what_quiesce_keeps_by_design_is_no_leak(tmp_path: Path) -> None:
    for name, verdict in verdicts(tmp_path, RESIDENT).items():
        assert verdict == Verdict("passed", ""), name
