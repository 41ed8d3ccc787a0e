"""The scripts behind `make`."""

from __future__ import annotations

import platform
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def offences() -> Any:
    return runpy.run_path(str(SCRIPTS / "check_tree.py"))["offences"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "index-url = https://packages.example/" + "sim" + "ple",
        "resolved: https://regis" + "try.example/left-pad",
        "cd /" + "work/main",
        "see /" + "root/.cache",
        "PATH=/" + "opt/tool/bin:$PATH",
        "open('/" + "home/someone/notes')",
        "<<<<<<< HEAD",
        ">>>>>>> 0123abc",
    ],
)
def test_what_does_not_belong_into_the_tree_is_found_with_its_line(
    tree: Path, offences: Any, line: str
) -> None:
    (tree / "notes.txt").write_text(f"first\n{line}\n")
    (found,) = offences(tree)
    assert found.startswith("notes.txt:2: ")


@pytest.mark.parametrize(
    "line",
    [
        "https://example.org/" + "work/item",
        "the " + "work" + "/life balance, root/branch",
        "src/" + "opt/module.py and ./" + "root/",
        "#!/usr/bin/env bash",
        "/proc/self/fd, /tmp/x, /dev/null",
    ],
)
def test_ordinary_paths_and_prose_are_no_offence(tree: Path, offences: Any, line: str) -> None:
    (tree / "notes.txt").write_text(line)
    assert list(offences(tree)) == []


def test_ignored_files_are_not_part_of_the_tree(tree: Path, offences: Any) -> None:
    (tree / ".gitignore").write_text("build/\n")
    (tree / "build").mkdir()
    (tree / "build" / "log").write_text("/" + "work/main")
    assert list(offences(tree)) == []


def test_this_interpreter_or_one_like_it_is_found() -> None:
    found = runpy.run_path(str(SCRIPTS / "interpreters.py"))["find_interpreters"]()
    minors = [interpreter.minor for interpreter in found]
    assert ".".join(platform.python_version_tuple()[:2]) in minors
    assert len(set(minors)) == len(minors)


def test_pins_that_differ_between_interpreters_carry_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    constraint_lines = runpy.run_path(str(SCRIPTS / "pin_versions.py"))["constraint_lines"]
    resolved = {"3.11": {"b": "1", "old": "5"}, "3.12": {"b": "1", "A": "2"}, "3.13": {"b": "3", "A": "2"}}
    assert constraint_lines(resolved) == [
        "A==2; python_version == '3.12' or python_version == '3.13'",
        "b==1; python_version == '3.11' or python_version == '3.12'",
        "b==3; python_version == '3.13'",
        "old==5; python_version == '3.11'",
    ]


def test_coverage_is_told_per_package_the_least_covered_first() -> None:
    script = runpy.run_path(str(SCRIPTS / "measure_coverage.py"))

    def file(lines: int, of: int, branches: int, of_branches: int) -> dict[str, Any]:
        counts = {"covered_lines": lines, "num_statements": of, "percent_covered": 50.0}
        return {"summary": {**counts, "covered_branches": branches, "num_branches": of_branches}}

    files = {
        "src/quiesce/__init__.py": file(3, 3, 0, 0),
        "src/quiesce/kernel/scope/scope.py": file(60, 70, 10, 20),
        "src/quiesce/kernel/base/token.py": file(10, 10, 0, 0),
        "chat/src/quiesce_chat/__init__.py": file(0, 0, 0, 0),
        "chat/src/quiesce_chat/tools/files.py": file(1, 4, 0, 0),
    }
    assert [line.split() for line in script["figures"](files)] == [
        ["package", "lines", "branches", "both"],
        ["quiesce_chat", "1/4", "0/0", "25.0%"],
        ["kernel", "70/80", "10/20", "80.0%"],
        ["quiesce", "3/3", "0/0", "100.0%"],
        ["all", "74/87", "10/20", "78.5%"],
    ]


def test_every_target_that_is_named_outside_the_makefile_is_in_it() -> None:
    root = SCRIPTS.parent
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    texts = [*(root / ".github").rglob("*.*"), root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    named = {
        name for path in texts for name in re.findall(r"(?:`|run: |\$ )make ([a-z-]+)", path.read_text())
    }
    gate = runpy.run_path(str(SCRIPTS / "gate.py"))
    stages = [*gate["EACH_CHANGE"], *gate["NIGHTLY"]]
    named |= {stage.name for stage in stages if stage.command[0] == "make"}
    assert len(named) > 10
    assert named <= targets


def test_the_gate_builds_the_documentation_and_runs_its_programs_side_by_side() -> None:
    gate = runpy.run_path(str(SCRIPTS / "gate.py"))
    groups = {stage.name: stage.group for stage in gate["EACH_CHANGE"]}
    assert groups["docs"] == groups["test-docs"] == "checks"
    recipes = dict(
        re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", (SCRIPTS.parent / "Makefile").read_text(), re.MULTILINE)
    )
    assert "mkdocs build --strict" in recipes["docs"]
    assert "PYTEST" not in recipes["docs"]
    assert "tests/test_docs.py" in recipes["test-docs"]


@pytest.fixture
def pip_lines() -> Any:
    return runpy.run_path(str(SCRIPTS / "pip_settings.py"))["lines"]


def test_what_a_variable_tells_pip_wins_over_what_its_files_do(pip_lines: Any) -> None:
    listed = ":env:.timeout='3'\nglobal.timeout='1'\ninstall.timeout='2'\ndownload.timeout='4'\n"
    assert list(pip_lines(listed, {})) == ["set PIP_TIMEOUT=3"]


def test_a_list_of_several_lines_becomes_one_line(pip_lines: Any) -> None:
    assert list(pip_lines("global.trusted-host='\\na.example\\nb.example'\n", {})) == [
        "set PIP_TRUSTED_HOST=a.example b.example"
    ]


def test_files_and_folders_that_settings_name_are_lent_if_they_exist(pip_lines: Any, tmp_path: Path) -> None:
    (tmp_path / "index" / "pages").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "ca.pem").touch()
    index, wheels = f"file://{tmp_path}/index/pages", f"{tmp_path}/wheels {tmp_path}/missing"
    listed = f"global.extra-index-url={index!r}\nglobal.find-links={wheels!r}\nglobal.cache-dir='/var/tmp'\n"
    found = list(pip_lines(listed, {"SSL_CERT_FILE": f"{tmp_path}/ca.pem", "https_proxy": "p", "HOME": "/"}))
    assert [line for line in found if line.startswith("lend ")] == [
        f"lend {tmp_path}/ca.pem",
        f"lend {tmp_path}/index",  # and not only the pages, which refer to files beside them
        f"lend {tmp_path}/wheels",
    ]
    assert [line.partition("=")[0] for line in found if line.startswith("set ")] == [
        "set SSL_CERT_FILE",
        "set https_proxy",
        "set PIP_EXTRA_INDEX_URL",
        "set PIP_FIND_LINKS",
    ]


def test_what_coverage_leaves_out_exists() -> None:
    names = runpy.run_path(str(SCRIPTS / "measure_coverage.py"))["LEFT_OUT"]
    for name in names:
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (SCRIPTS.parent / file).read_text()
