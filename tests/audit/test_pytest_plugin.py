"""`--quiesce`: what a test leaves behind is told of that test, whoever runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.inner_pytest import SOURCE, Inner, run_pytest, write

pytestmark = pytest.mark.slow

BESIDE_ASYNCIO = """
    import asyncio, os, subprocess, threading, warnings
    import pytest, pytest_asyncio

    pytestmark = pytest.mark.asyncio
    HELD = []

    async def worker():
        while True:
            await asyncio.sleep(10)

    async def test_a_task_left():
        asyncio.create_task(worker())
        await asyncio.sleep(0)

    async def test_a_task_ended():
        task = asyncio.create_task(worker())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async def failing():
        raise ValueError("boom")

    async def test_an_exception_dropped():
        asyncio.create_task(failing())
        await asyncio.sleep(0)

    async def test_an_exception_looked_at():
        with pytest.raises(ValueError):
            await asyncio.create_task(failing())

    async def test_a_pending_task_dropped():
        async def waits_for_nobody():
            await asyncio.get_running_loop().create_future()
        asyncio.create_task(waits_for_nobody())
        await asyncio.sleep(0)

    async def test_a_coroutine_dropped():
        worker()

    async def test_a_coroutine_closed():
        worker().close()

    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)

    async def test_a_generator_dropped():
        async for _ in numbers():
            break

    async def test_a_generator_held():
        generator = numbers()
        HELD.append(generator)
        await anext(generator)

    async def test_a_generator_closed():
        generator = numbers()
        await anext(generator)
        await generator.aclose()

    async def test_a_thread_left():
        gate = threading.Event()
        HELD.append(gate)
        threading.Thread(target=gate.wait, name="straggler", daemon=True).start()

    async def test_a_thread_joined():
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        await asyncio.to_thread(lambda: None)

    async def test_a_process_left():
        HELD.append(subprocess.Popen(["sleep", "5"]))

    async def test_a_process_waited_for():
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()

    async def test_a_descriptor_left():
        HELD.append(os.open("/dev/null", os.O_RDONLY))

    async def test_a_descriptor_closed():
        os.close(os.open("/dev/null", os.O_RDONLY))

    @pytest_asyncio.fixture
    async def a_fixture_that_cleans_up():
        task = asyncio.create_task(worker())
        yield
        task.cancel()
        await asyncio.wait([task])

    async def test_with_a_clean_fixture(a_fixture_that_cleans_up):
        pass

    @pytest_asyncio.fixture
    async def a_fixture_that_does_not():
        asyncio.create_task(worker())
        yield

    async def test_with_a_leaky_fixture(a_fixture_that_does_not):
        pass

    @pytest.fixture
    def opened():
        files = []
        yield files
        for file in files:
            os.close(file)

    async def test_that_leaves_closing_to_a_plain_fixture(opened):
        opened.append(os.open("/dev/null", os.O_RDONLY))

    @pytest_asyncio.fixture(scope="module", loop_scope="module")
    async def server():
        class Server:
            jobs = asyncio.Queue()
        async def handle():
            await asyncio.sleep(10)
        async def serve():
            children = []
            while await Server.jobs.get() is not None:
                children.append(asyncio.create_task(handle()))
                Server.jobs.task_done()
            for child in children:
                child.cancel()
            await asyncio.wait(children)
        task = asyncio.create_task(serve())
        gate = threading.Event()
        thread = threading.Thread(target=gate.wait, name="of-the-module")
        thread.start()
        ends = os.pipe()
        yield Server
        Server.jobs.put_nowait(None)
        await task
        gate.set()
        thread.join()
        for end in ends:
            os.close(end)

    @pytest.mark.asyncio(loop_scope="module")
    async def test_first_with_the_module_s_server(server):
        server.jobs.put_nowait(1)
        await server.jobs.join()

    async def fails_when_told(told):
        await told.wait()
        raise ValueError("too late")

    @pytest.mark.asyncio(loop_scope="module")
    async def test_that_leaks_beside_the_server(server):
        server.told = asyncio.Event()
        asyncio.create_task(fails_when_told(server.told))
        await asyncio.sleep(0)

    @pytest.mark.asyncio(loop_scope="module")
    async def test_after_it_in_the_same_loop(server):
        server.told.set()
        await asyncio.sleep(0)

    async def test_that_fails_by_itself():
        asyncio.create_task(worker())
        await asyncio.sleep(0)
        assert 1 == 2

    async def test_that_is_skipped():
        pytest.skip("not today")
"""

# The test, how it ends, and what its message has.
LEAKY = {
    "test_a_task_left": (
        "failure",
        [
            "LEAKED worker",
            "in test_a_task_left",
            "in worker",
            "left behind by test_a_task_left: leaked worker",
        ],
    ),
    "test_an_exception_dropped": ("failure", ["UNRETRIEVED failing", "ValueError: boom"]),
    "test_a_pending_task_dropped": (
        "failure",
        ["DESTROYED test_a_pending_task_dropped.<locals>.waits_for_nobody", "in test_a_pending_task_dropped"],
    ),
    "test_a_coroutine_dropped": ("failure", ["UNAWAITED worker", "in test_a_coroutine_dropped"]),
    "test_a_generator_dropped": ("failure", ["GENERATOR numbers", "dropped"]),
    "test_a_generator_held": ("failure", ["GENERATOR numbers", "still referenced"]),
    "test_a_thread_left": ("failure", ["THREAD straggler"]),
    "test_a_process_left": ("failure", ["PROCESS sleep"]),
    "test_a_descriptor_left": ("failure", ["DESCRIPTOR /dev/null"]),
    "test_with_a_leaky_fixture": ("error", ["LEAKED worker", "in a_fixture_that_does_not"]),
    "test_that_leaks_beside_the_server": (
        "failure",
        ["LEAKED fails_when_told", "in test_that_leaks_beside_the_server"],
    ),
    "test_that_fails_by_itself": ("failure", ["assert 1 == 2"]),
}
CLEAN = [
    "test_a_task_ended",
    "test_an_exception_looked_at",
    "test_a_coroutine_closed",
    "test_a_generator_closed",
    "test_a_thread_joined",
    "test_a_process_waited_for",
    "test_a_descriptor_closed",
    "test_with_a_clean_fixture",
    "test_that_leaves_closing_to_a_plain_fixture",
    "test_first_with_the_module_s_server",
    "test_after_it_in_the_same_loop",
]


@pytest.fixture(scope="module")
def beside_asyncio(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    folder = tmp_path_factory.mktemp("beside_asyncio")
    write(folder, {"test_leaks.py": BESIDE_ASYNCIO})
    return run_pytest(folder, "--quiesce", plugins=["asyncio"])


@pytest.mark.parametrize("name", LEAKY)
def test_what_a_test_of_pytest_asyncio_leaves_fails_it_and_is_named(beside_asyncio: Inner, name: str) -> None:
    outcome, words = LEAKY[name]
    assert beside_asyncio.outcomes[name] == outcome, beside_asyncio.text
    for word in words:
        assert word in beside_asyncio.told[name]


@pytest.mark.parametrize("name", CLEAN)
def test_a_test_that_cleans_up_passes(beside_asyncio: Inner, name: str) -> None:
    assert beside_asyncio.outcomes[name] == "passed", beside_asyncio.told[name]


def test_each_leak_is_told_once(beside_asyncio: Inner) -> None:
    for name, message in beside_asyncio.told.items():
        if name in LEAKY and name != "test_that_fails_by_itself":
            headline = next(line for line in message.splitlines() if "left behind by" in line)
            assert "," not in headline, headline


def test_a_test_that_fails_by_itself_keeps_its_failure_and_gets_a_section(beside_asyncio: Inner) -> None:
    message = beside_asyncio.told["test_that_fails_by_itself"]
    assert "left behind by" not in message
    section = beside_asyncio.text.partition("Captured quiesce call")[2]
    assert "left behind by test_that_fails_by_itself: leaked worker" in section


def test_a_skipped_test_stays_skipped(beside_asyncio: Inner) -> None:
    assert beside_asyncio.outcomes["test_that_is_skipped"] == "skipped"


def test_the_summary_counts(beside_asyncio: Inner) -> None:
    assert beside_asyncio.summary.startswith("quiesce: 24 async tests watched, 12 with findings (4 leaked")
    assert beside_asyncio.code == 1


PLAIN_AND_LEAKY = """
    import asyncio, os

    async def worker():
        await asyncio.sleep(10)

    async def test_leaks():
        asyncio.create_task(worker())
        await asyncio.sleep(0)

    async def test_is_clean():
        await asyncio.sleep(0)

    def test_is_not_async():
        os.open("/dev/null", os.O_RDONLY)
"""


def test_in_auto_mode_and_by_the_ini_file_and_tests_that_are_not_async_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": PLAIN_AND_LEAKY})
    inner = run_pytest(tmp_path, plugins=["asyncio"], ini="asyncio_mode = auto\nquiesce = true")
    assert inner.outcomes == {
        "test_leaks": "failure",
        "test_is_clean": "passed",
        "test_is_not_async": "passed",
    }
    assert inner.summary == "quiesce: 2 async tests watched, 1 with findings (1 leaked)"


def test_it_is_off_unless_asked(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": PLAIN_AND_LEAKY})
    off = run_pytest(tmp_path, plugins=["asyncio"], ini="asyncio_mode = auto")
    assert off.code == 0
    assert "quiesce:" not in off.text


BESIDE_ANYIO = """
    import asyncio, os
    import anyio, pytest

    pytestmark = pytest.mark.anyio

    @pytest.fixture(scope="module", params=["asyncio", "trio"])
    def anyio_backend(request):
        return request.param

    async def worker():
        await anyio.sleep(10)

    def leave_a_task(anyio_backend):
        if anyio_backend == "asyncio":
            asyncio.create_task(worker())
        else:
            import trio
            trio.lowlevel.spawn_system_task(worker)

    @pytest.fixture(scope="module")
    async def wide(anyio_backend):
        leave_a_task(anyio_backend)
        ends = os.pipe()
        yield
        for end in ends:
            os.close(end)

    @pytest.fixture
    async def clean():
        async with anyio.create_task_group() as group:
            group.start_soon(worker)
            yield
            group.cancel_scope.cancel()

    @pytest.fixture
    async def leaky(anyio_backend):
        leave_a_task(anyio_backend)
        yield

    async def test_leaks(anyio_backend):
        leave_a_task(anyio_backend)
        await anyio.sleep(0)

    async def test_is_clean():
        async with anyio.create_task_group() as group:
            group.start_soon(worker)
            group.cancel_scope.cancel()

    async def test_with_a_clean_fixture(clean):
        pass

    async def test_with_a_leaky_fixture(leaky):
        await anyio.sleep(0)

    async def test_with_a_wide_fixture(wide):
        await anyio.sleep(0)

    async def test_that_leaks_beside_a_wide_fixture(wide, anyio_backend):
        leave_a_task(anyio_backend)
        await anyio.sleep(0)
"""


@pytest.fixture(scope="module")
def beside_anyio(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    folder = tmp_path_factory.mktemp("beside_anyio")
    write(folder, {"test_leaks.py": BESIDE_ANYIO})
    return run_pytest(folder, "--quiesce", plugins=["anyio"])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_beside_anyio_s_plugin_on_both_backends(beside_anyio: Inner, backend: str) -> None:
    outcomes = {name.partition("[")[0]: how for name, how in beside_anyio.outcomes.items() if backend in name}
    assert outcomes == {
        "test_leaks": "failure",
        "test_is_clean": "passed",
        "test_with_a_clean_fixture": "passed",
        "test_with_a_leaky_fixture": "error",
        "test_with_a_wide_fixture": "passed",
        "test_that_leaks_beside_a_wide_fixture": "failure",
    }, beside_anyio.text
    told = beside_anyio.told[f"test_leaks[{backend}]"]
    assert "LEAKED worker" in told
    assert "in leave_a_task" in told


BESIDE_TRIO = """
    import os
    import pytest, trio

    async def worker():
        await trio.sleep_forever()

    @pytest.mark.trio
    async def test_leaks():
        trio.lowlevel.spawn_system_task(worker)
        await trio.sleep(0)

    @pytest.mark.trio
    async def test_leaks_a_descriptor():
        os.open("/dev/null", os.O_RDONLY)

    @pytest.fixture
    async def opened():
        file = os.open("/dev/null", os.O_RDONLY)
        yield file
        os.close(file)

    @pytest.mark.trio
    async def test_is_clean(nursery, opened):
        nursery.start_soon(worker)
        await trio.sleep(0)
"""


def test_beside_pytest_trio(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": BESIDE_TRIO})
    inner = run_pytest(tmp_path, "--quiesce", plugins=["trio"])
    assert inner.outcomes == {
        "test_leaks": "failure",
        "test_leaks_a_descriptor": "failure",
        "test_is_clean": "passed",
    }, inner.text
    assert "LEAKED worker" in inner.told["test_leaks"]
    assert "a system task" in inner.told["test_leaks"]


def test_beside_all_of_them_at_once_and_spread_over_processes(tmp_path: Path) -> None:
    write(tmp_path, {"test_trio.py": BESIDE_TRIO, "test_anyio.py": BESIDE_ANYIO, "test_asyncio.py": AT_ONCE})
    write(tmp_path, {"test_bad.py": BADLY_MARKED})
    inner = run_pytest(tmp_path, "--quiesce", "-n", "2", plugins=["asyncio", "anyio", "trio", "xdist"])
    assert inner.summary.startswith(
        "quiesce: 17 async tests watched, 9 with findings (8 leaked, 1 descriptor)"
    ), inner.text
    assert inner.outcomes["test_strict_leaks"] == "failure"
    assert inner.outcomes["test_strict_is_clean"] == "passed"
    assert "there is no stop 'halt'" in inner.told["test_badly_marked"]


AT_ONCE = """
    import asyncio, pytest

    @pytest.mark.asyncio
    async def test_strict_leaks():
        asyncio.create_task(asyncio.sleep(10))
        await asyncio.sleep(0)

    @pytest.mark.asyncio
    async def test_strict_is_clean():
        await asyncio.sleep(0)
"""


BADLY_MARKED = """
    import pytest

    @pytest.mark.cancel_everywhere(stops="halt")
    async def test_badly_marked():
        pass
"""

WITHOUT_A_PLUGIN_OF_ITS_OWN = """
    import asyncio, unittest
    import pytest, uvloop
    from hypothesis import given, settings, strategies

    async def worker():
        await asyncio.sleep(10)

    async def numbers():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    class TestOfUnittest(unittest.IsolatedAsyncioTestCase):
        async def test_unittest_leaks(self):
            asyncio.create_task(worker())
            await asyncio.sleep(0)

        async def test_unittest_is_clean(self):
            await asyncio.sleep(0)

    @pytest.mark.asyncio(loop_factories=["asyncio"])
    @settings(max_examples=3)
    @given(strategies.integers())
    async def test_hypothesis_leaks(number):
        asyncio.create_task(worker())
        await asyncio.sleep(0)

    @pytest.mark.asyncio(loop_factories=["asyncio"])
    @settings(max_examples=3)
    @given(strategies.integers())
    async def test_hypothesis_is_clean(number):
        await asyncio.sleep(0)

    @pytest.mark.asyncio(loop_factories=["uvloop"])
    async def test_uvloop_leaks():
        asyncio.create_task(worker())
        async for _ in numbers():
            break

    @pytest.mark.asyncio(loop_factories=["uvloop"])
    async def test_uvloop_is_clean():
        async def answer(reader, writer):
            writer.close()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await reader.read()
            writer.close()
            await writer.wait_closed()
"""
FACTORIES = """
    import asyncio, uvloop

    def pytest_asyncio_loop_factories(config, item):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
"""


def test_beside_unittest_hypothesis_and_uvloop(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": WITHOUT_A_PLUGIN_OF_ITS_OWN, "conftest.py": FACTORIES})
    inner = run_pytest(tmp_path, "--quiesce", plugins=["asyncio", "hypothesispytest"])
    assert inner.outcomes == {
        "test_unittest_leaks": "failure",
        "test_unittest_is_clean": "passed",
        "test_hypothesis_leaks": "failure",
        "test_hypothesis_is_clean": "passed",
        "test_uvloop_leaks": "failure",
        "test_uvloop_is_clean": "passed",
    }, inner.text
    assert "LEAKED worker × 3" in inner.told["test_hypothesis_leaks"]
    assert (
        "left behind by test_uvloop_leaks: leaked worker, generator numbers"
        in inner.told["test_uvloop_leaks"]
    )


def test_loading_the_plugin_loads_neither_the_audit_nor_an_async_library() -> None:
    code = "import sys, json, quiesce.audit.pytest_plugin; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE)},
    )
    loaded = set(json.loads(answer.stdout))
    assert "quiesce.audit.pytest_plugin" in loaded
    assert not loaded & {
        "anyio",
        "trio",
        "uvloop",
        "asyncio",
        "quiesce.audit.sweep.auditing",
        "quiesce.audit.watch.process_state",
    }
