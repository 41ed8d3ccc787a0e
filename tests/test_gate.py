"""What `bash .ci/run` says of tests that fail once, twice, or too often."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"

# A test that fails while the file beside it is not there, and writes it: so it passes the second time.
FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    seen = Path(__file__).with_name(f"seen-{{number}}")
    if not seen.exists():
        seen.touch()
        print("what it printed")
        raise RuntimeError("the machine was busy")

def test_good():
    pass
"""
BROKEN = """
def test_broken():
    assert 1 + 1 == 3

def test_good():
    pass
"""
# A module that cannot be imported the first time only.
UNIMPORTABLE = """
from pathlib import Path

seen = Path(__file__).with_name("seen")
if not seen.exists():
    seen.touch()
    raise RuntimeError("the machine was busy")

def test_good():
    pass
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where `tests.second_try` is
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:quiesce -p no:quiesce-fixtures")
    return runpy.run_path(str(SCRIPTS / "gate.py"))


def stage_of(gate: Any, folder: Path, source: str, *options: str) -> Any:
    """A stage that runs one file of tests."""
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.second_try", *options, "test_it.py"]
    return gate["Stage"]("it", command)


def program(gate: Any, source: str, again: str, limit: float = 60.0) -> Any:
    return gate["Stage"]("program", [sys.executable, "-c", source], again, {}, limit)


def run(gate: Any, folder: Path, *stages: Any) -> int:
    """The exit status of a gate with these stages."""
    status: int = gate["Gate"](folder, None).run(stages)
    return status


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_flaky_test_is_listed_with_its_first_failure_and_fails_nothing(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    status = run(gate, tmp_path, stage_of(gate, tmp_path, FLAKY.format(count=1), *options))
    last = capfd.readouterr().out.rpartition("\nflaky: ")[2]
    assert status == 0, last
    assert last.startswith("1\n  test_it.py::test_flaky[0] failed, and passed when it ran alone")
    assert "RuntimeError: the machine was busy" in last
    assert last.endswith("All stages passed.\n")
    kept = (tmp_path / "build" / "gate" / "flaky-1.txt").read_text()
    assert "RuntimeError: the machine was busy" in kept
    assert "what it printed" in kept


def test_a_flaky_test_of_another_folder_is_tried_again_under_the_same_rules(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = FLAKY.format(count=1).replace("def test_flaky", "async def test_flaky")
    status = run(gate, tmp_path, stage_of(gate, tmp_path, source, "-p", "tests.conftest"))
    last = capfd.readouterr().out.rpartition("\nflaky: ")[2]
    assert status == 0, last
    assert "[asyncio" in last


def test_a_test_that_fails_twice_fails_the_gate_and_what_follows_does_not_run(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = run(gate, tmp_path, stage_of(gate, tmp_path, BROKEN), program(gate, "print('never')", "all"))
    said = capfd.readouterr().out
    assert status == 1
    assert "FAILED TWICE test_it.py::test_broken: alone, it printed" in said
    last = said.rpartition("\nflaky: ")[2].splitlines()
    assert last[0] == "none"
    assert [line.split() for line in last[3:5]] == [
        ["it", last[3].split()[1], "FAILED"],
        ["program", "-", "not", "run"],
    ]
    assert last[-1] == "FAILED: it"
    assert "never" not in said


def test_more_than_five_flaky_tests_fail_the_gate(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    stages = []
    for folder in folders:
        folder.mkdir()
        (folder / "test_it.py").write_text(FLAKY.format(count=3))
        command = [sys.executable, "-m", "pytest", "-p", "tests.second_try", f"{folder.name}/test_it.py"]
        stages.append(gate["Stage"](folder.name, command))
    status = run(gate, tmp_path, *stages)
    said = capfd.readouterr().out
    assert status == 1
    assert said.endswith("FAILED: 6 tests are flaky; at most 5 are accepted\n")


def test_more_than_five_failures_in_one_stage_have_no_second_try(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = run(gate, tmp_path, stage_of(gate, tmp_path, FLAKY.format(count=6)))
    said = capfd.readouterr().out
    assert status == 1
    assert "6 tests failed, and a gate accepts at most 5 flaky ones: none was run again" in said


def test_a_module_that_cannot_be_imported_has_no_second_try(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = run(gate, tmp_path, stage_of(gate, tmp_path, UNIMPORTABLE))
    assert status == 1
    assert capfd.readouterr().out.endswith("FAILED: it\n")


PROGRAM = "import pathlib; seen = pathlib.Path('seen'); first = not seen.exists(); seen.touch(); print('it spoke'); exit({status})"


def test_a_stage_of_programs_is_run_again_as_a_whole(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = run(gate, tmp_path, program(gate, PROGRAM.format(status="3 * first"), "all"))
    last = capfd.readouterr().out.rpartition("\nflaky: ")[2]
    assert status == 0
    assert last.startswith("1\n  program failed, and passed when it ran alone")
    assert "| it spoke" in last


def test_what_make_was_given_is_not_given_to_each_stage(
    gate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--only\\ suites")
    monkeypatch.setenv("ARGS", "--only suites")
    stage = program(
        gate, "import os, sys; sys.exit('MAKEFLAGS' in os.environ or 'ARGS' in os.environ)", "nothing"
    )
    assert run(gate, tmp_path, stage) == 0


@pytest.mark.parametrize(("again", "times"), [("all", 2), ("nothing", 1)])
def test_a_stage_that_fails_every_time_fails_the_gate(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], again: str, times: int
) -> None:
    status = run(gate, tmp_path, program(gate, PROGRAM.format(status=3), again))
    said = capfd.readouterr().out
    assert status == 1
    assert said.count("it spoke") == times


def test_a_stage_that_hangs_is_ended_with_its_children(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = "import subprocess; subprocess.run(['sleep', '600'])"
    status = run(gate, tmp_path, program(gate, source, "nothing", limit=1.0))
    assert status == 1
    assert "program: not done after 1 s" in capfd.readouterr().out


MEETING = """
import pathlib, time
pathlib.Path({mine!r}).touch()
while not pathlib.Path({other!r}).exists(): time.sleep(0.01)
print("met", {other!r})
"""


def light(gate: Any, name: str, source: str) -> Any:
    return gate["Stage"](name, [sys.executable, "-c", source], "nothing", {}, 60.0, "light")


def test_light_stages_run_side_by_side_and_what_they_print_is_not_mixed(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stages = [light(gate, a, MEETING.format(mine=a, other=b)) for a, b in (("one", "two"), ("two", "one"))]
    assert run(gate, tmp_path, *stages) == 0
    said = capfd.readouterr().out
    assert "################ output of one\nmet two\n################ one: passed" in said
    assert "################ output of two\nmet one\n################ two: passed" in said


def test_a_light_stage_that_fails_ends_the_one_beside_it(
    gate: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = light(gate, "fails", "import time; time.sleep(0.5); exit(1)")
    waits = light(gate, "waits", "import subprocess; subprocess.run(['sleep', '600'])")
    more = [
        light(gate, name, "import subprocess; subprocess.run(['sleep', '600'])") for name in ("more", "next")
    ]
    assert run(gate, tmp_path, waits, fails, *more) == 1
    said = capfd.readouterr().out
    assert said.endswith("FAILED: fails\n")
    assert re.search(r"\nwaits +1  ended, beside another\n", said)
    assert re.search(r"\nnext +-  not run\n", said)


def test_people_run_tests_without_a_second_try() -> None:
    said = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "test"],
        cwd=ROOT,
        env={name: os.environ[name] for name in os.environ if name != "SECOND_TRY"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "pytest" in said
    assert "second_try" not in said
