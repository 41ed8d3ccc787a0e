"""Whether other users can read a store.

A store creates its file for its owner alone, but a file that existed before may be readable by everyone.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .terminal import say


def warn_if_shared(file: Path) -> None:
    """Warn on standard error if other users on this machine can read a store. Other files are ignored."""
    if _is_store(file) and is_shared(file):
        name = shlex.quote(str(file))
        say(
            f"quiesce: other users on this machine can read {name}, where conversations are stored; "
            f"to prevent that: chmod 600 {name}"
        )


def is_shared(file: Path) -> bool:
    """Whether another user may read the file, judging by its permissions and those of every folder above it."""
    if os.name != "posix":
        return False
    try:
        real = file.resolve(strict=True)
        # Readable for the group or for all, through folders that the group or all may pass. Access control lists
        # are not looked at, so this may miss a shared file.
        readable = real.stat().st_mode & 0o044
        return bool(readable) and all(folder.stat().st_mode & 0o011 for folder in real.parents)
    except OSError:  # it does not exist, or we may not look at it
        return False


def _is_store(file: Path) -> bool:
    """Whether the file is an SQLite database, or empty and so about to become one."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(16) in (b"", b"SQLite format 3\0")
    except OSError:
        return False
