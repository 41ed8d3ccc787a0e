"""Environments are kept for the next clone: restored in another place they name only that, and half of one is never used."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "environment_cache.py"


@pytest.fixture
def cache() -> Any:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """As scripts/environment leaves one, in a clone."""
    made = tmp_path / "clone" / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    program = made / "bin" / "tool"
    program.write_text(f"#!{made}/bin/python\nimport here, sys\nprint(sys.prefix, here.__file__)\n")
    program.chmod(0o755)
    (packages,) = made.glob("lib/python3*/site-packages")
    (packages / "_editable_impl_quiesce.pth").write_text(str(made.parent / "src"))
    (made / ".test-ready").touch()
    return made


def keep(cache: Any, environment: Path, folder: Path) -> Any:
    made = cache["Made"]("key", ["test"], str(environment), str(environment.parent))
    assert cache["keep"](environment, folder, made) == 0
    return made


@pytest.mark.parametrize("name", ["another clone", "clone2"])
def test_a_restored_environment_works_where_it_is_now(
    cache: Any, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keep(cache, environment, tmp_path / "cache")
    shutil.rmtree(environment.parent)
    other = tmp_path / name
    (other / "src").mkdir(parents=True)
    (other / "src" / "here.py").touch()
    monkeypatch.setitem(cache["restore"].__globals__, "ROOT", other)
    assert cache["restore"](tmp_path / "cache" / "key", other / ".venv") == 0
    python = other / ".venv" / "bin" / "python"
    said = subprocess.run(
        [python, other / ".venv" / "bin" / "tool"], capture_output=True, text=True, check=True
    )
    assert said.stdout.split("\n")[0] == f"{other / '.venv'} {other / 'src' / 'here.py'}"
    first_line = (other / ".venv" / "bin" / "tool").read_text().splitlines()[0]
    assert first_line == f"#!{other / '.venv'}/bin/python"


def test_what_make_remembers_of_one_clone_is_not_restored_in_another(
    cache: Any, environment: Path, tmp_path: Path
) -> None:
    keep(cache, environment, tmp_path / "cache")
    other = tmp_path / "other" / ".venv"
    other.mkdir(parents=True)
    (other / ".lint-ready").touch()
    assert cache["restore"](tmp_path / "cache" / "key", other) == 0
    assert [path.name for path in other.glob(".*-ready")] == [".lint-ready"]


def test_without_a_cache_and_with_an_empty_one_nothing_is_restored(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUIESCE_CACHE", raising=False)
    assert cache["main"]("restore", tmp_path / ".venv", {"test"}) == 1
    monkeypatch.setenv("QUIESCE_CACHE", str(tmp_path / "nowhere"))
    assert cache["main"]("restore", tmp_path / ".venv", {"test"}) == 1
    assert not (tmp_path / ".venv").exists()


def test_an_entry_that_is_not_whole_is_not_used_but_replaced(
    cache: Any, environment: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    (folder / "key" / "bin").mkdir(parents=True)  # as a tool that copies badly might leave it
    assert cache["restore"](folder / "key", tmp_path / "new" / ".venv") == 1
    assert not (tmp_path / "new" / ".venv").exists()
    made = keep(cache, environment, folder)
    assert cache["read"](folder / "key") == made
    assert [path.name for path in folder.iterdir()] == ["key"]


def test_a_cache_that_cannot_be_written_costs_nothing_but_a_line(
    cache: Any, environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").touch()
    keep(cache, environment, tmp_path / "cache" / "environments")
    assert "not kept in the cache" in capsys.readouterr().err
    assert (environment / "bin" / "python").exists()


def test_old_entries_and_half_written_ones_are_removed(cache: Any, environment: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    days = {"old": 31, "used last week": 7, ".unfinished-a": 2, ".unfinished-b": 0.1}
    for name, age in days.items():
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (time.time() - age * 86400,) * 2)
    keep(cache, environment, folder)
    assert sorted(path.name for path in folder.iterdir()) == [".unfinished-b", "key", "used last week"]


def test_the_key_depends_on_what_would_be_installed(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_of = cache["key_of"]
    assert key_of({"test"}) == key_of({"test"})
    assert key_of({"test"}) != key_of({"test", "docs"})
    for name in ("pyproject.toml", "chat/pyproject.toml", "constraints.txt", "scripts/environment"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(SCRIPT.parent.parent / name, tmp_path / name)
    monkeypatch.setitem(key_of.__globals__, "ROOT", tmp_path)
    before = key_of({"test"})
    with (tmp_path / "constraints.txt").open("a") as pins:
        pins.write("another==1\n")
    assert key_of({"test"}) != before
