"""`@pytest.mark.cancel_everywhere`: a test is stopped everywhere, each time with fresh fixtures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.audit.inner_pytest import Inner, run_pytest, write

pytestmark = pytest.mark.slow

SWEEPS = """
    import asyncio, os
    import pytest

    RUNS = {}

    def count(name):
        RUNS[name] = RUNS.get(name, 0) + 1

    @pytest.mark.cancel_everywhere
    async def test_clean():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))

    @pytest.mark.cancel_everywhere(stops="cancel", phases="early")
    async def test_leaky():
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])

    @pytest.fixture
    def workspace(tmp_path, monkeypatch, capsys, request):
        count(request.node.name)
        assert list(tmp_path.iterdir()) == []
        assert "WORKSPACE" not in os.environ
        monkeypatch.setenv("WORKSPACE", str(tmp_path))
        print("made")
        assert capsys.readouterr().out == "made\\n"
        (tmp_path / "lock").touch()
        yield tmp_path
        (tmp_path / "lock").unlink()

    @pytest.fixture
    async def connection(workspace):
        await asyncio.sleep(1)
        lines = [workspace.name]
        yield lines
        await asyncio.sleep(1)
        lines.clear()

    @pytest.fixture
    def wrapped(connection):
        return [connection]

    @pytest.fixture(scope="module")
    def shared():
        count("shared")
        return object()

    @pytest.mark.cancel_everywhere
    async def test_fixtures(wrapped, connection, workspace, shared):
        assert wrapped == [connection] == [[workspace.name]]
        assert (workspace / "lock").exists()
        connection.append("used")
        await asyncio.sleep(1)

    def test_fixtures_were_made_in_each_run(tmp_path_factory):
        assert RUNS["test_fixtures"] > 15
        assert list(tmp_path_factory.getbasetemp().glob("test_fixtures[0-9]*")) == []
        assert RUNS["shared"] == 1
        assert "WORKSPACE" not in os.environ

    @pytest.fixture
    async def connection_that_forgets():
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(1)
        yield
        task.cancel()
        await asyncio.wait([task])

    @pytest.mark.cancel_everywhere(stops=["cancel"])
    async def test_a_fixture_that_leaks_when_stopped_in_its_set_up(connection_that_forgets):
        await asyncio.sleep(1)

    @pytest.mark.cancel_everywhere(stops="cancel")
    @pytest.mark.parametrize("count", [1, 3])
    async def test_with_parameters(count, tmp_path):
        for _ in range(count):
            await asyncio.sleep(1)

    class TestInAClass:
        def setup_method(self):
            self.seen = []

        @pytest.mark.cancel_everywhere(stops="cancel")
        async def test_gets_a_fresh_instance(self):
            assert self.seen == []
            assert not hasattr(self, "is_used")
            self.is_used = True
            await asyncio.sleep(1)

    class Pool:
        def __init__(self):
            self.free = 1

        async def take(self):
            self.free -= 1
            await asyncio.sleep(1)  # not undone if this is cancelled

    class SafePool(Pool):
        async def take(self):
            await asyncio.sleep(1)
            self.free -= 1

    @pytest.fixture
    def pool():
        return Pool()

    @pytest.fixture
    def safe_pool():
        return SafePool()

    @pytest.mark.cancel_everywhere(stops="cancel", check=lambda pool: pool.free == 1)
    async def test_that_loses_a_slot(pool):
        await pool.take()
        pool.free += 1

    @pytest.mark.cancel_everywhere(stops="cancel", check=lambda safe_pool: safe_pool.free == 1)
    async def test_that_loses_no_slot(safe_pool):
        await safe_pool.take()
        safe_pool.free += 1

    @pytest.mark.cancel_everywhere
    async def test_that_fails_by_itself(connection):
        await asyncio.sleep(1)
        assert connection == ["no"]

    @pytest.mark.cancel_everywhere
    async def test_that_is_skipped(connection):
        pytest.skip("not today")

    @pytest.mark.cancel_everywhere
    async def test_that_goes_out():
        await asyncio.open_connection("127.0.0.1", 9)

    @pytest.fixture(scope="module")
    async def wide():
        yield

    @pytest.mark.cancel_everywhere
    async def test_with_a_wide_async_fixture(wide):
        pass

    @pytest.mark.cancel_everywhere
    async def test_that_asks_for_an_async_fixture_while_it_runs(request):
        request.getfixturevalue("connection")
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    folder = tmp_path_factory.mktemp("alone")
    write(folder, {"test_sweeps.py": SWEEPS})
    return run_pytest(folder)


@pytest.mark.parametrize(
    "name",
    [
        "test_clean",
        "test_fixtures",
        "test_fixtures_were_made_in_each_run",
        "test_with_parameters[1]",
        "test_with_parameters[3]",
        "test_gets_a_fresh_instance",
        "test_that_loses_no_slot",
    ],
)
def test_a_clean_sweep_passes_with_no_other_plugin(alone: Inner, name: str) -> None:
    assert alone.outcomes[name] == "passed", alone.told[name]


def test_the_failure_is_the_report(alone: Inner) -> None:
    message = alone.told["test_leaky"]
    assert "FINDINGS test_sweeps.py::test_leaky" in message
    assert re.search(r"cancel/early +X", message)
    assert "LEAKED Event.wait" in message
    assert "in test_leaky" in message
    assert "pytest test_sweeps.py::test_leaky --quiesce-at 'cancel/early/test_leaky:1@" in message


def test_an_async_fixture_is_stopped_too(alone: Inner) -> None:
    message = alone.told["test_a_fixture_that_leaks_when_stopped_in_its_set_up"]
    assert "LEAKED Event.wait" in message
    assert "in connection_that_forgets" in message


def test_a_check_is_given_the_fixtures_it_names(alone: Inner) -> None:
    assert "CHECK" in alone.told["test_that_loses_a_slot"]


def test_a_test_that_fails_by_itself_fails_as_ever_and_says_that_it_was_not_swept(alone: Inner) -> None:
    message = alone.told["test_that_fails_by_itself"]
    assert "assert ['test_that_fails_by_itself0'] == ['no']" in message
    assert "the test was not swept" in message
    assert alone.outcomes["test_that_is_skipped"] == "skipped"


def test_a_test_that_goes_out_is_told_of_real_io(alone: Inner) -> None:
    assert "real_io=True" in alone.told["test_that_goes_out"]


def test_what_cannot_be_made_afresh_is_refused_and_named(alone: Inner) -> None:
    message = alone.told["test_with_a_wide_async_fixture"]
    assert "its fixture 'wide' is async and module-scoped" in message
    assert "Make it function-scoped" in message
    assert (
        "the fixture 'connection' is async" in alone.told["test_that_asks_for_an_async_fixture_while_it_runs"]
    )


def test_the_summary_counts_sweeps(alone: Inner) -> None:
    assert re.match(r"quiesce: 12 tests swept in \d+ runs, 3 baseline-broken, 3 with findings", alone.summary)


BESIDE_THE_OTHERS = """
    import asyncio, os
    import anyio, pytest, pytest_asyncio, trio

    @pytest_asyncio.fixture
    async def ticket():
        await asyncio.sleep(1)
        yield 7
        await asyncio.sleep(1)

    @pytest_asyncio.fixture
    def plain(ticket):
        assert asyncio.get_running_loop().time() >= 1000
        yield ticket

    @pytest.mark.asyncio
    @pytest.mark.cancel_everywhere
    async def test_of_pytest_asyncio(plain):
        assert plain == 7
        await asyncio.sleep(3600)

    @pytest.mark.asyncio
    @pytest.mark.cancel_everywhere(stops="cancel")
    async def test_of_pytest_asyncio_that_leaks(ticket):
        asyncio.create_task(asyncio.Event().wait())

    @pytest.fixture
    async def stream():
        send, receive = anyio.create_memory_object_stream(1)
        async with send, receive:
            await anyio.sleep(1)
            yield send, receive

    @pytest.mark.anyio
    @pytest.mark.cancel_everywhere
    async def test_of_anyio(stream, anyio_backend_name, tmp_path):
        assert asyncio.events._get_running_loop() is None or anyio_backend_name == "asyncio"
        await stream[0].send(1)
        await anyio.sleep(3600)

    @pytest.fixture
    async def told(nursery):
        event = trio.Event()
        nursery.start_soon(event.wait)
        yield event
        event.set()

    @pytest.mark.trio
    @pytest.mark.cancel_everywhere
    async def test_of_pytest_trio(told, nursery):
        nursery.start_soon(trio.sleep_forever)
        await trio.sleep(3600)

    @pytest.mark.trio
    @pytest.mark.cancel_everywhere(stops="cancel")
    async def test_of_pytest_trio_that_swallows():
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            os.open("/dev/null", os.O_RDONLY)
            raise

    @pytest.mark.asyncio
    async def test_that_is_not_swept(ticket):
        assert ticket == 7
"""


def test_a_sweep_takes_tests_over_from_the_other_plugins(tmp_path: Path) -> None:
    write(tmp_path, {"test_sweeps.py": BESIDE_THE_OTHERS})
    inner = run_pytest(
        tmp_path, "--quiesce", "--quiesce-html=report.html", plugins=["asyncio", "anyio", "trio"]
    )
    assert inner.outcomes == {
        "test_of_pytest_asyncio": "passed",
        "test_of_pytest_asyncio_that_leaks": "failure",
        "test_of_anyio[asyncio]": "passed",
        "test_of_anyio[trio]": "passed",
        "test_of_pytest_trio": "passed",
        "test_of_pytest_trio_that_swallows": "failure",
        "test_that_is_not_swept": "passed",
    }, inner.text
    assert "on trio" in inner.told["test_of_pytest_trio_that_swallows"]
    assert "DESCRIPTOR /dev/null" in inner.told["test_of_pytest_trio_that_swallows"]
    page = (tmp_path / "report.html").read_text()
    assert "test_of_pytest_asyncio_that_leaks" in page
    assert "--quiesce-at" in page


REPLAYED = """
    import asyncio
    import pytest

    @pytest.mark.cancel_everywhere(stops="cancel")
    @pytest.mark.parametrize("seconds", [1, 2])
    async def test_it(seconds):
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])
"""


def test_the_one_liner_of_a_report_makes_that_run_again(tmp_path: Path) -> None:
    write(tmp_path, {"test_replay.py": REPLAYED})
    first = run_pytest(tmp_path)
    found = re.search(r"pytest '(\S+)' --quiesce-at '(\S+)'", first.told["test_it[2]"])
    assert found is not None
    nodeid, token = found.groups()
    assert nodeid == "test_replay.py::test_it[2]"
    again = run_pytest(tmp_path, nodeid, "--quiesce-at", token)
    assert list(again.outcomes) == ["test_it[2]"]
    assert re.search(r"cancel/(early|late) +X\n", again.told["test_it[2]"])
    assert "swept in 3 runs" in again.summary
    write(tmp_path, {"test_replay.py": REPLAYED.replace("sleep(seconds)", "sleep(seconds + 1)")})
    changed = run_pytest(tmp_path, nodeid, "--quiesce-at", token)
    assert "UNRESOLVED" in changed.told["test_it[2]"]
