"""Whether others can read what is kept. A store makes its file for its owner alone; one that was there before may be open to all."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .terminal import say


def warn_if_shared(file: Path) -> None:
    """Say on standard error if others on this machine can read that file; what is no store is none of our business."""
    if _is_store(file) and is_shared(file):
        name = shlex.quote(str(file))
        say(
            f"quiesce: others on this machine can read {name}, where conversations are kept: chmod 600 {name} changes that"
        )


def is_shared(file: Path) -> bool:
    """Whether somebody else may read it, as far as permissions tell: of the file, and of every folder on the way to it."""
    if os.name != "posix":
        return False
    try:
        real = file.resolve(strict=True)
        readable = real.stat().st_mode & 0o044
        return bool(readable) and all(folder.stat().st_mode & 0o011 for folder in real.parents)
    except OSError:  # it is not there, or not for us to see
        return False


def _is_store(file: Path) -> bool:
    """Or will be one: a file with nothing in it."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(16) in (b"", b"SQLite format 3\0")
    except OSError:
        return False
