"""Threat: a folder with modules of its own, which run when somebody works in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quiesce_chat.tools.programs import python_command

EVIL = "open('ran', 'a').write(__name__ + '\\n')\n"
# Modules that are imported late, by us or by what we use.
NAMES = [
    "typing",
    "json",
    "ssl",
    "argparse",
    "difflib",
    "sqlite3",
    "anyio",
    "msgspec",
    "httpx",
    "rich",
    "secrets",
    "typing_extensions",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(EVIL)
    (tmp_path / "mine.py").write_text("x = 7\n")
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


def test_the_python_tool_does_not_run_the_folders_modules(folder: Path) -> None:
    done = run(
        folder, *python_command("import json, ssl, sqlite3, sys\nprint(json.dumps([1]), __name__, sys.argv)")
    )
    assert (done.stdout, done.stderr) == ("[1] __main__ ['-c']\n", "")
    assert not (folder / "ran").exists()


def test_the_python_tool_finds_modules_of_the_folder_that_nobody_else_has(folder: Path) -> None:
    done = run(folder, *python_command("import mine; print(mine.x)"))
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_an_error_in_the_python_tool_names_the_line(folder: Path) -> None:
    done = run(folder, *python_command("x = 1\nraise ValueError(x)"))
    assert done.returncode == 1
    assert "line 2" in done.stderr
    assert "ValueError: 1" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["tour", "--list"],
        ["ask", "hello", "--model", "nonsense"],
        ["chat", "--list"],
        ["audit", "--help"],
    ],
)
def test_python_m_quiesce_does_not_run_the_folders_modules(folder: Path, arguments: list[str]) -> None:
    done = run(folder, sys.executable, "-m", "quiesce", *arguments)
    assert "Traceback" not in done.stderr
    assert not (folder / "ran").exists(), (folder / "ran").read_text()
