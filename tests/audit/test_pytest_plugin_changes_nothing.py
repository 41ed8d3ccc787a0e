"""`--quiesce` changes nothing: every warning and error arrives where it would have, and no object lives or dies otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.audit.inner_pytest import Inner, run_pytest, write

pytestmark = [pytest.mark.slow, pytest.mark.time_limit(60)]

# Each of these passes without the plugin, and so it has to with it. MARK is that of the plugin that runs async tests.
WATCHFUL = """
    import asyncio, gc, pickle, sys, threading, types, warnings, weakref
    import pytest
    LIBRARY

    pytestmark = pytest.mark.MARK

    class Thing:
        pass

    class FailsToDie:
        def __del__(self):
            raise ValueError("in __del__")

    async def work():
        await LIBRARY_SLEEP(0)

    THING = Thing()
    HOLDER = [THING]
    COLLECTOR = gc.isenabled(), gc.get_freeze_count(), gc.get_threshold(), list(gc.callbacks), gc.get_debug()

    async def test_expects_a_coroutine_never_awaited():
        with pytest.warns(RuntimeWarning, match="never awaited"):
            work()

    async def test_records_it_with_its_text_and_place():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
        assert [str(each.message) for each in caught] == ["coroutine 'work' was never awaited"]
        assert caught[0].filename == __file__
        assert caught[0].lineno == sys._getframe().f_lineno - 3

    async def test_records_it_with_the_filters_as_they_are():
        with warnings.catch_warnings(record=True) as caught:
            work()
        assert len(caught) == 1

    async def test_has_warnings_recorded_by_a_fixture(recwarn):
        work()
        assert recwarn.pop(RuntimeWarning)

    async def test_expects_a_file_not_closed():
        with pytest.warns(ResourceWarning, match="unclosed file"):
            open(__file__)

    async def test_silences_a_file_not_closed():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            open(__file__)

    async def test_hands_its_filters_to_another_process():
        there = pickle.loads(pickle.dumps(warnings.filters))
        with warnings.catch_warnings(record=True) as caught:
            warnings.filters[:] = there
            warnings.warn("heard all the same")
        assert [str(each.message) for each in caught] == ["heard all the same"]

    async def test_makes_a_warning_an_error(monkeypatch):
        raised = []
        monkeypatch.setattr(sys, "unraisablehook", lambda error: raised.append(type(error.exc_value)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            work()
        assert raised == [RuntimeWarning]

    async def test_hooks_errors_that_cannot_be_raised(monkeypatch):
        raised = []
        monkeypatch.setattr(sys, "unraisablehook", lambda error: raised.append(str(error.exc_value)))
        FailsToDie()
        assert raised == ["in __del__"]

    async def test_hooks_errors_of_threads(monkeypatch):
        raised = []
        monkeypatch.setattr(threading, "excepthook", lambda error: raised.append(error.exc_type))
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        assert raised == [ZeroDivisionError]

    async def test_the_collector_is_as_it_was():
        assert COLLECTOR == (gc.isenabled(), gc.get_freeze_count(), gc.get_threshold(), list(gc.callbacks), gc.get_debug())

    async def test_no_collection_runs_unasked():
        gc.collect()  # so that the next one of the interpreter's own is not due
        before = gc.get_stats()
        assert gc.get_stats() == before

    async def test_all_objects_and_referrers_are_there():
        assert any(each is HOLDER for each in gc.get_referrers(THING))
        assert any(each is HOLDER for each in gc.get_objects())

    async def test_an_exception_has_no_other_referrers():
        try:
            raise ValueError
        except ValueError as caught:
            error = caught
        kinds = {type(each) for each in gc.get_referrers(error)}
        assert kinds <= {types.FrameType, types.CoroutineType}

    async def test_garbage_dies_at_the_next_collection():
        thing = Thing()
        thing.itself = thing
        seen = weakref.ref(thing)
        del thing
        gc.collect()
        assert seen() is None
        assert gc.garbage == []

    async def test_a_coroutine_says_nothing_of_its_origin():
        coroutine = work()
        try:
            assert (coroutine.cr_origin, sys.get_coroutine_origin_tracking_depth()) == (None, 0)
        finally:
            coroutine.close()
"""
OF_ASYNCIO = """
    async def test_a_finished_task_dies_when_it_is_dropped():
        task = asyncio.create_task(work())
        await task
        await asyncio.sleep(0)
        seen = weakref.ref(task)
        del task
        assert seen() is None

    async def test_the_error_of_a_task_group_has_no_other_referrers():
        import anyio
        group = anyio.create_task_group()
        async def fails_in_a_group():
            async with group:
                raise ValueError
        with pytest.RaisesGroup(pytest.RaisesGroup(ValueError)) as caught:
            async with anyio.create_task_group() as outer:
                outer.start_soon(fails_in_a_group)
        error = caught.value.exceptions[0].exceptions[0]
        del caught
        kinds = {type(each) for each in gc.get_referrers(error)}
        assert kinds <= {types.FrameType, types.CoroutineType}

    async def test_the_loop_s_exception_handler_is_called():
        told = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context["message"]))
        asyncio.create_task(fails())
        await asyncio.sleep(0)
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(told) == 2

    async def fails():
        raise ValueError

    async def test_reports_an_error_to_the_loop_on_purpose():
        asyncio.get_running_loop().call_exception_handler({"message": "handled already"})
"""
LIBRARIES = {
    "asyncio": ("import asyncio", "asyncio.sleep", OF_ASYNCIO),
    "trio": ("import trio", "trio.sleep", ""),
}


def suite(library: str) -> str:
    imported, sleep, more = LIBRARIES[library]
    text = WATCHFUL.replace("MARK", library).replace("LIBRARY_SLEEP", sleep).replace("LIBRARY", imported)
    return text + more


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_test_that_looks_closely_passes_as_without(tmp_path: Path, library: str) -> None:
    write(tmp_path, {"test_it.py": suite(library)})
    without = run_pytest(tmp_path, plugins=[library])
    assert set(without.outcomes.values()) == {"passed"}, without.text
    inner = run_pytest(tmp_path, "--quiesce", plugins=[library])
    assert inner.outcomes == without.outcomes, inner.text
    assert inner.code == 0
    assert "nothing left behind" in inner.summary


CARELESS = """
    import gc, sys
    import pytest
    LIBRARY

    pytestmark = pytest.mark.MARK

    class FailsToDie:
        def __del__(self):
            raise ValueError("in __del__")

    async def work():
        await LIBRARY_SLEEP(0)

    async def test_drops_a_coroutine():
        work()

    async def test_drops_a_file():
        open(__file__)

    async def test_drops_what_fails_to_die():
        FailsToDie()

    async def test_drops_nothing():
        await work()
"""


def warnings_of(inner: Inner) -> list[str]:
    """What pytest says of warnings in its summary, without how long it took and without what comes after."""
    text = inner.text.partition("warnings summary")[2].partition("-- Docs")[0]
    return re.sub(r"0x[0-9a-f]+", "0x", text).splitlines()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("filters", ["", "error", "error::ResourceWarning", "default"])
def test_a_warning_that_no_test_expects_goes_where_it_would_have_gone(
    tmp_path: Path, library: str, filters: str
) -> None:
    imported, sleep, _ = LIBRARIES[library]
    text = CARELESS.replace("MARK", library).replace("LIBRARY_SLEEP", sleep).replace("LIBRARY", imported)
    write(tmp_path, {"test_it.py": text})
    options = ["-W", filters] if filters else []
    without = run_pytest(tmp_path, *options, plugins=[library])
    inner = run_pytest(
        tmp_path, "--quiesce", "--quiesce-write-baseline=known.json", *options, plugins=[library]
    )
    assert inner.outcomes == without.outcomes, inner.text
    assert warnings_of(inner) == warnings_of(without)
    for name, told in without.told.items():
        assert "PytestUnraisableExceptionWarning" in told
        assert "PytestUnraisableExceptionWarning" in inner.told[name]
    assert "3 with findings (1 unawaited, 1 unclosed, 1 unraisable)" in inner.summary


LEFT_TO_ITSELF = """
    import asyncio
    import pytest

    STEPS = []

    async def goes_on():
        for _ in range(4):
            await asyncio.sleep(0)
        STEPS.append(1)

    @pytest.mark.asyncio
    async def test_leaves_a_task():
        asyncio.create_task(goes_on())
        await asyncio.sleep(0)

    def test_the_task_was_cancelled_where_it_stood():
        assert STEPS == []
"""


def test_a_task_that_is_left_gets_no_more_turns_than_without(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": LEFT_TO_ITSELF})
    assert run_pytest(tmp_path, plugins=["asyncio"]).code == 0
    inner = run_pytest(tmp_path, "--quiesce", plugins=["asyncio"])
    assert inner.outcomes == {
        "test_leaves_a_task": "failure",
        "test_the_task_was_cancelled_where_it_stood": "passed",
    }, inner.text
    assert "OUTLIVED goes_on" in inner.told["test_leaves_a_task"]


IN_A_CYCLE = """
    import gc
    import pytest

    gc.disable()  # without the plugin, no collection runs by chance
    pytestmark = pytest.mark.anyio

    class Holder:
        pass

    class FailsToDie(Holder):
        def __del__(self):
            raise ValueError("in __del__")

    async def test_drops_a_file_in_a_cycle():
        holder = Holder()
        holder.itself, holder.file = holder, open(__file__)

    async def test_drops_what_fails_to_die_in_a_cycle():
        holder = FailsToDie()
        holder.itself = holder

    async def test_drops_nothing():
        pass
"""


def test_no_test_fails_because_the_collector_ran_after_it(tmp_path: Path) -> None:
    # Beside anyio's plugin, on both backends: pytest-asyncio makes a collection of its own after each test.
    write(tmp_path, {"test_it.py": IN_A_CYCLE})
    without = run_pytest(tmp_path, "-W", "error", plugins=["anyio"])
    assert set(without.outcomes.values()) == {"passed"}, without.text
    inner = run_pytest(
        tmp_path, "-W", "error", "--quiesce", "--quiesce-write-baseline=known.json", plugins=["anyio"]
    )
    assert inner.outcomes == without.outcomes, inner.text
    # pytest itself collects at the end of the session, and fails that.
    for run in (without, inner):
        assert "unclosed file" in run.text
        assert "ValueError: in __del__" in run.text
    assert inner.code == without.code == 1
    assert "4 with findings (2 unclosed, 2 unraisable)" in inner.summary


HOOKED = """
    import sys

    heard = []

    def pytest_sessionstart():
        sys.unraisablehook = lambda error: heard.append(str(error.exc_value))

    def pytest_unconfigure():
        print("heard", sorted(heard))
"""


@pytest.mark.parametrize("filters", ["default", "error::pytest.PytestUnraisableExceptionWarning"])
def test_a_hook_of_the_user_s_hears_what_it_would_have_heard(tmp_path: Path, filters: str) -> None:
    write(tmp_path, {"conftest.py": HOOKED, "test_it.py": IN_A_CYCLE})
    inner = run_pytest(tmp_path, "-s", "-W", filters, "--quiesce", plugins=["anyio"])
    assert "heard ['in __del__', 'in __del__']" in inner.text


BETWEEN_TWO_TESTS = """
    opened = []

    def pytest_runtest_logreport(report):
        if report.when == "teardown":
            opened.append(open(f"{report.nodeid.rpartition(':')[2]}.log", "w"))
"""


def test_what_a_plugin_opens_between_two_tests_is_no_test_s(tmp_path: Path) -> None:
    text = CARELESS.partition("    async def test_drops_a_coroutine")[0] + "\n".join(
        f"    async def test_{n}():\n        await work()\n" for n in range(3)
    )
    text = (
        text.replace("MARK", "asyncio")
        .replace("LIBRARY_SLEEP", "asyncio.sleep")
        .replace("LIBRARY", "import asyncio")
    )
    write(tmp_path, {"conftest.py": BETWEEN_TWO_TESTS, "test_it.py": text})
    inner = run_pytest(tmp_path, "--quiesce", plugins=["asyncio"])
    assert set(inner.outcomes.values()) == {"passed"}, inner.text


AFTER_A_FAILURE = """
    import asyncio, gc, warnings, weakref
    import pytest

    pytestmark = pytest.mark.asyncio

    class Thing:
        pass

    async def test_fails():
        assert False

    async def test_garbage_stays_until_somebody_collects_it():
        gc.disable()
        thing = Thing()
        thing.itself, seen = thing, weakref.ref(thing)
        del thing
        warnings.warn("careful", ResourceWarning)
        assert seen() is not None
        gc.enable()

    async def test_the_filters_look_like_filters():
        for action, message, category, module, line in warnings.filters:
            assert message is None or isinstance(message.pattern, str)
"""


def test_nothing_is_collected_while_a_test_runs(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": AFTER_A_FAILURE})
    without = run_pytest(tmp_path, plugins=["asyncio"])
    inner = run_pytest(tmp_path, "--quiesce", "--quiesce-write-baseline=known.json", plugins=["asyncio"])
    assert inner.outcomes == without.outcomes, inner.text
    assert list(inner.outcomes.values()).count("passed") == 2
