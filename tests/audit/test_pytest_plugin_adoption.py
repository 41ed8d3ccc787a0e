"""Ignores with reasons, baselines, and what is said of options and markers that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.audit.inner_pytest import Inner, run_pytest, write

pytestmark = pytest.mark.slow

IGNORES = """
    import asyncio
    import pytest

    pytestmark = [
        pytest.mark.asyncio,
        pytest.mark.quiesce_ignore("leaked of_the_module", reason="ends with the process"),
        pytest.mark.quiesce_ignore("leaked nobody_of_the_module", reason="was fixed"),
    ]

    async def of_the_module():
        await asyncio.sleep(10)

    async def of_a_test():
        await asyncio.sleep(10)

    async def of_the_session():
        await asyncio.sleep(10)

    async def leave(*functions):
        for function in functions:
            asyncio.create_task(function())
        await asyncio.sleep(0)

    async def test_with_what_the_module_ignores():
        await leave(of_the_module)

    async def test_with_nothing():
        pass

    @pytest.mark.quiesce_ignore("leaked of_a_*", reason="the broker does it")
    async def test_with_its_own():
        await leave(of_a_test, of_the_session)

    @pytest.mark.quiesce_ignore("leaked of_a_*", reason="the broker does it")
    async def test_with_its_own_and_more():
        async def more():
            await asyncio.sleep(10)
        await leave(of_a_test, more)

    @pytest.mark.quiesce_ignore("leaked of_a_*", reason="the broker does it")
    async def test_with_a_stale_one():
        await leave()

    @pytest.mark.parametrize("leaks", [False, True])
    @pytest.mark.quiesce_ignore("leaked of_a_*", reason="the broker does it")
    async def test_with_one_that_some_parameters_show(leaks):
        await leave(*[of_a_test] * leaks)

    @pytest.mark.cancel_everywhere(stops="cancel", ignore={"late of_a_test *": "it ends by itself"})
    async def test_a_sweep_with_its_own():
        task = asyncio.create_task(of_a_test())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])

    @pytest.mark.cancel_everywhere(stops="cancel", ignore={"late of_a_test *": "it ends by itself"})
    async def test_a_sweep_with_a_stale_one():
        await asyncio.sleep(1)
"""
WIDE = """
quiesce_ignore =
    leaked of_the_session -- it is the driver's
    thread nobody* -- was fixed
"""


@pytest.fixture(scope="module")
def ignoring(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    folder = tmp_path_factory.mktemp("ignoring")
    write(folder, {"test_ignores.py": IGNORES})
    return run_pytest(folder, "--quiesce", plugins=["asyncio"], ini=WIDE)


def test_ignored_findings_do_not_fail(ignoring: Inner) -> None:
    assert ignoring.outcomes == {
        "test_with_what_the_module_ignores": "passed",
        "test_with_nothing": "passed",
        "test_with_its_own": "passed",
        "test_with_its_own_and_more": "failure",
        "test_with_a_stale_one": "error",
        "test_with_one_that_some_parameters_show[False]": "passed",
        "test_with_one_that_some_parameters_show[True]": "passed",
        "test_a_sweep_with_its_own": "passed",
        "test_a_sweep_with_a_stale_one": "failure",
    }, ignoring.text
    assert "leaked test_with_its_own_and_more.<locals>.more" in ignoring.told["test_with_its_own_and_more"]
    assert "ignored (the broker does it): LEAKED of_a_test" in ignoring.told["test_with_its_own_and_more"]


@pytest.mark.parametrize("name", ["test_with_a_stale_one", "test_a_sweep_with_a_stale_one"])
def test_an_ignore_that_its_test_no_longer_needs_fails_it(ignoring: Inner, name: str) -> None:
    assert "matches nothing any more: remove it" in ignoring.told[name]


def test_a_wider_ignore_that_no_test_needs_fails_the_session_and_is_named(ignoring: Inner) -> None:
    stale = [
        line.strip() for line in ignoring.text.splitlines() if line.endswith("remove it") and "ignore" in line
    ]
    assert (
        "the ignore 'thread nobody*' (was fixed) of the session matches nothing any more: remove it" in stale
    )
    assert (
        "the ignore 'leaked nobody_of_the_module' (was fixed) of test_ignores.py matches nothing any more: remove it"
        in stale
    )
    assert not any("of_the_session" in line or "leaked of_the_module" in line for line in stale)


def test_only_a_whole_session_can_say_that_a_wide_ignore_is_stale(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "test_one.py": """
                import asyncio, pytest

                @pytest.mark.asyncio
                async def test_clean():
                    await asyncio.sleep(0)
            """
        },
    )
    narrowed = run_pytest(tmp_path, "--quiesce", "test_one.py", plugins=["asyncio"], ini=WIDE)
    assert narrowed.code == 0, narrowed.text
    whole = run_pytest(tmp_path, "--quiesce", plugins=["asyncio"], ini=WIDE)
    assert whole.code == 1
    assert whole.outcomes == {"test_clean": "passed"}
    assert (
        "the ignore 'leaked of_the_session' (it is the driver's) of the session matches nothing" in whole.text
    )


ADOPTED = """
    import asyncio
    import pytest

    async def old():
        await asyncio.sleep(10)

    @pytest.mark.asyncio
    async def test_old():
        asyncio.create_task(old())
        await asyncio.sleep(0)

    @pytest.mark.asyncio
    async def test_other():
        await asyncio.sleep(0)

    @pytest.mark.cancel_everywhere(stops="cancel")
    async def test_swept():
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
"""


def test_a_code_base_adopts_a_baseline_and_only_what_is_new_fails(tmp_path: Path) -> None:
    write(tmp_path, {"test_adopted.py": ADOPTED})
    writing = run_pytest(
        tmp_path, "--quiesce", "--quiesce-write-baseline=known.json", "-n", "2", plugins=["asyncio", "xdist"]
    )
    assert writing.code == 0, writing.text
    assert "wrote 2 findings of 2 tests to known.json" in writing.text
    entries = json.loads((tmp_path / "known.json").read_text())["findings"]
    found = {entry["scenario"]: entry["finding"] for entry in entries}
    assert set(found) == {"test_adopted.py::test_old", "test_adopted.py::test_swept"}
    assert found["test_adopted.py::test_old"].startswith("leaked old ")

    known = run_pytest(tmp_path, "--quiesce", "--quiesce-baseline=known.json", plugins=["asyncio"])
    assert known.code == 0, known.text
    assert "2 known" in known.summary

    leak = "        asyncio.create_task(old())\n"
    moved = ADOPTED.replace(leak, "").replace("async def test_other():\n", f"async def test_other():\n{leak}")
    write(tmp_path, {"test_adopted.py": moved})
    changed = run_pytest(tmp_path, plugins=["asyncio"], ini="quiesce = true\nquiesce_baseline = known.json")
    assert changed.outcomes == {"test_old": "passed", "test_other": "failure", "test_swept": "passed"}, (
        changed.text
    )
    assert "in the baseline, and gone: leaked old" in changed.text
    assert "(test_adopted.py::test_old)" in changed.text


MARKED = """
    import pytest

    @pytest.mark.{marker}
    {kind} test_it():
        pass
"""


# The marker, what it stands on, and what is said of it.
BAD = [
    ("quiesce_ignore('leaked x')", "async def", "quiesce_ignore('leaked x') has no reason"),
    ("quiesce_ignore(reason='why')", "async def", "quiesce_ignore names no finding"),
    ("cancel_everywhere(stops='halt')", "async def", "there is no stop 'halt'; there are cancel"),
    ("cancel_everywhere(phases='soon')", "async def", "there is no phase 'soon'"),
    ("cancel_everywhere(backend='curio')", "async def", "there is no backend 'curio'"),
    ("cancel_everywhere(stops='shutdown', backend='trio')", "async def", "does not exist on trio"),
    ("cancel_everywhere(stop='cancel')", "async def", "there is no option stop"),
    ("cancel_everywhere(patience=-1)", "async def", "patience must be a number of seconds above 0, not -1"),
    ("cancel_everywhere(ignore={'leaked x': ''})", "async def", "the ignore 'leaked x' has no reason"),
    ("cancel_everywhere(check=3)", "async def", "check=3 is not a function"),
    ("cancel_everywhere", "def", "the test is not an async function"),
]


@pytest.fixture(scope="module")
def with_bad_markers(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    folder = tmp_path_factory.mktemp("bad")
    write(folder, {f"test_{i}.py": MARKED.format(marker=m, kind=k) for i, (m, k, _) in enumerate(BAD)})
    return run_pytest(folder)


@pytest.mark.parametrize("number", range(len(BAD)), ids=[marker for marker, _, _ in BAD])
def test_a_marker_that_makes_no_sense_is_refused_before_any_test_runs(
    with_bad_markers: Inner, number: int
) -> None:
    line = next(line for line in with_bad_markers.text.splitlines() if f"test_{number}.py::test_it" in line)
    assert BAD[number][2] in line
    assert with_bad_markers.code == pytest.ExitCode.USAGE_ERROR
    assert with_bad_markers.outcomes == {}


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": "def test_it(): pass\n"})
    unreasoned = run_pytest(tmp_path, "--quiesce-ignore=leaked x")
    assert unreasoned.code == pytest.ExitCode.USAGE_ERROR
    assert "the quiesce ignore 'leaked x' has no reason" in unreasoned.text
    missing = run_pytest(tmp_path, "--quiesce-baseline=nowhere.json")
    assert missing.code == pytest.ExitCode.USAGE_ERROR
    assert "there is no baseline file" in missing.text
    assert "--quiesce-write-baseline" in missing.text
