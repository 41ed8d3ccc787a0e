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
        # Access control lists are not looked at, so this may miss a shared file.
        needed = [(real, 0o4), *((folder, 0o1) for folder in real.parents)]
        return may_all([(path.stat().st_mode, path.stat().st_gid, right) for path, right in needed])
    except OSError:  # it does not exist, or we may not look at it
        return False


def may_all(needed: list[tuple[int, int, int]]) -> bool:
    """Whether there may be a user, other than the owner, with each of these rights: a mode, its group, and the right.

    A member of a group has the rights of the group, even where all others have more. So one user needs, for each
    group, either the rights of its members everywhere or those of all others everywhere.
    """
    by_group: dict[int, list[tuple[int, int]]] = {}
    for mode, group, right in needed:
        by_group.setdefault(group, []).append((mode, right))
    return all(
        all(mode >> 3 & right for mode, right in files) or all(mode & right for mode, right in files)
        for files in by_group.values()
    )


def _is_store(file: Path) -> bool:
    """Whether the file is an SQLite database, or empty and so about to become one."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(16) in (b"", b"SQLite format 3\0")
    except OSError:
        return False
