"""Throw-away environments for other people's releases: pinned, kept until what they are made of changes.

They are made under build/, or in the folder that QUIESCE_CACHE names. One that was half made is made again.

Each has a file that names every package in it with its version, so that nothing is left to resolve, and quiesce from
this tree, as a wheel. They have no pip of their own: the pip of this Python serves them from outside, which saves
making one for each.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interpreters import find_interpreters

ROOT = Path(__file__).resolve().parent.parent
INSTALL_LIMIT = 600  # seconds for one step of an environment: the heavy ones have gigabytes to unpack


def environments(name: str) -> Path:
    """The folder for the environments of one program."""
    cache = os.environ.get("QUIESCE_CACHE")
    return Path(cache) / name if cache else ROOT / "build" / name


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One program at a time: two would replace the environments under each other's feet."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class NotInstalled(Exception):
    """A release that cannot be had here, and why."""


def build_wheel(folder: Path) -> Path:
    """quiesce from this tree, built once for all environments."""
    shutil.rmtree(folder, ignore_errors=True)
    run([*pip(), "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    return next(folder.glob("quiesce-*.whl"))


def make_environment(
    environment: Path, versions: Path, wheel: Path, *, minor: int = 11, is_fresh: bool = False
) -> float:
    """Make or refresh it, with Python 3.`minor` or newer; the seconds that it took."""
    started = time.monotonic()
    python = find_python(minor)
    stamp, wanted = environment / "made-of.txt", f"{python}\n{versions.read_text()}"
    if is_fresh or not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        run([str(python), "-m", "venv", "--without-pip", str(environment)])
        # The file names every package, so that nothing is left to resolve; `pip check` sees if one is missing.
        run([*pip(environment), "install", "--no-deps", "--no-compile", "--requirement", str(versions)])
        (environment / "home").mkdir()
        stamp.write_text(wanted)
    run([*pip(environment), "install", "--force-reinstall", "--no-deps", "--no-index", str(wheel)])
    run([*pip(environment), "check"])
    return time.monotonic() - started


def find_python(minor: int) -> Path:
    """This Python, or another of the machine that is new enough."""
    if sys.version_info >= (3, minor):
        return Path(sys.executable)
    for found in find_interpreters():
        if tuple(map(int, found.minor.split("."))) >= (3, minor):
            return Path(found.path)
    raise NotInstalled(f"it needs Python 3.{minor} or newer, and there is none on the PATH or under pyenv")


def pip(environment: Path | None = None) -> list[str]:
    """The pip of this Python, at work on an environment that has none of its own."""
    if importlib.util.find_spec("pip") is None:
        raise SystemExit(
            f"{sys.executable} has no pip, so nothing can be installed; on Debian it comes with python3-pip"
        )
    there = [] if environment is None else ["--python", str(environment / "bin" / "python")]
    return [sys.executable, "-m", "pip", *there, "--quiet", "--disable-pip-version-check"]


def run(command: list[str]) -> None:
    """Run an installer; what it says is only worth reading if it fails."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"not done after {INSTALL_LIMIT} s: {' '.join(command[-2:])}") from error
    except subprocess.CalledProcessError as error:
        said = "\n".join(line for line in error.stderr.splitlines() if not line.startswith("WARNING"))
        raise NotInstalled(f"pip failed: {' '.join(command[-2:])}\n{error.stdout}{said}") from error
