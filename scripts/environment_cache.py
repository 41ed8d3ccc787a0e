"""Environments that were installed once, kept for the next clone: scripts/environment asks here first if
QUIESCE_CACHE names a folder.

    environment_cache.py restore|keep DIRECTORY EXTRA[,EXTRA...]

An entry is a copy of a virtual environment, with this project in it as an editable install. Its name is a
hash of all that decides what pip would install: the interpreter, the extras, the project's metadata,
constraints.txt. To restore it is to copy it and to write the new place over the old one in the few files that
name it. An entry gets its name when it is whole, so that one that was being written when the machine stopped
is never used; it is removed a day later, and so is an entry that was not used for a month.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE_OF = "made-of.json"  # in an environment: what it is, and where it was made
UNFINISHED = ".unfinished-"
DAY = 24 * 3600.0
MONTH = 30 * DAY


@dataclass(frozen=True)
class Made:
    key: str
    extras: list[str]
    directory: str
    root: str


def main(action: str, directory: Path, extras: set[str]) -> int:
    named = os.environ.get("QUIESCE_CACHE")
    if not named:
        return 1 if action == "restore" else 0
    folder = Path(named) / "environments"
    there = read(directory)
    extras |= set(there.extras if there else ())
    key = key_of(extras)
    if action == "keep":
        return keep(directory, folder, Made(key, sorted(extras), str(directory), str(ROOT)))
    if there and there.key == key:
        return 0
    return restore(folder / key, directory)


def key_of(extras: set[str]) -> str:
    """What decides what pip would install."""
    tables = [tomllib.loads((ROOT / name).read_text()) for name in ("pyproject.toml", "chat/pyproject.toml")]
    parts = [
        sys.version,
        os.path.realpath(sys.executable),
        platform.platform(),
        json.dumps([[table["project"], table["build-system"]] for table in tables], sort_keys=True),
        (ROOT / "constraints.txt").read_text(),
        Path(__file__).read_text(),
        (ROOT / "scripts" / "environment").read_text(),
        ",".join(sorted(extras)),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def keep(directory: Path, folder: Path, made: Made) -> int:
    (directory / MADE_OF).write_text(json.dumps(asdict(made)))
    unfinished = folder / f"{UNFINISHED}{made.key}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        copy(directory, unfinished)
        for stamp in unfinished.glob(".*-ready"):  # what the Makefile remembers of this clone
            stamp.unlink()
        if read(folder / made.key) is None:  # there is nothing, or nothing of use
            shutil.rmtree(folder / made.key, ignore_errors=True)
        unfinished.rename(folder / made.key)
    except (OSError, subprocess.CalledProcessError) as error:
        # A full disk, or another clone that was quicker: the environment itself is as good as without a cache.
        print(f"not kept in the cache: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return 0


def restore(entry: Path, directory: Path) -> int:
    made = read(entry)
    if made is None:
        return 1
    fresh = directory.with_name(f"{directory.name}.restored")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        copy(entry, fresh)
        for path in files_that_name_their_place(fresh):
            path.write_bytes(moved(path.read_bytes(), {made.directory: directory, made.root: ROOT}))
        for stamp in directory.glob(".*-ready"):
            stamp.rename(fresh / stamp.name)
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)
        os.utime(entry)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not restored from the cache: {error}", file=sys.stderr)
        shutil.rmtree(fresh, ignore_errors=True)
        return 1
    print(f"restored {directory.name} from the cache: {', '.join(made.extras)}")
    return 0


def moved(text: bytes, places: dict[str, Path]) -> bytes:
    """The text with other places in it. All at once: the name of a new place may begin with that of an old one."""
    new = {os.fsencode(old): os.fsencode(place) for old, place in places.items()}
    longest_first = sorted(new, key=len, reverse=True)
    pattern = b"(?:" + b"|".join(map(re.escape, longest_first)) + rb")(?![\w.-])"
    return re.sub(pattern, lambda found: new[found[0]], text)


def files_that_name_their_place(environment: Path) -> Iterator[Path]:
    yield environment / "pyvenv.cfg"
    yield environment / MADE_OF
    for path in (environment / "bin").iterdir():
        if path.is_file() and not path.is_symlink() and b"\0" not in path.read_bytes()[:512]:
            yield path
    for packages in environment.glob("lib/python3*/site-packages"):
        yield from packages.glob("*quiesce*.pth")
        yield from packages.glob("quiesce*.dist-info/direct_url.json")


def read(environment: Path) -> Made | None:
    try:
        return Made(**json.loads((environment / MADE_OF).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(target)], check=True)


def sweep(folder: Path) -> None:
    now = time.time()
    for entry in folder.iterdir():
        is_unfinished = entry.name.startswith(UNFINISHED)
        if now - entry.stat().st_mtime > (DAY if is_unfinished else MONTH):
            shutil.rmtree(entry, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).absolute(), set(sys.argv[3].split(","))))
