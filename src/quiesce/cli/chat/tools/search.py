"""The search in files: a program of its own, for a regular expression may take for ever, and nothing stops that but the end of its process.

It imports nothing but the standard library and is run by its path. From standard input it takes one JSON object: `folder`, `place` (in the folder; both
are real paths) and `pattern`. It prints what it has found, or what is wrong, with status 2 or 3.

Links are not followed, not even one that takes the place of a folder during the search. A file with several names (hard links) is skipped, as one of
them may be outside of the folder.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
from collections.abc import Iterator

MATCHES = 200
LARGEST = 2_000_000  # bytes of a file that is searched
LONGEST = 300  # characters of a line that are shown
BAD_PATTERN = 2
BAD_PLACE = 3
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SKIPPED = {".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"}


def search(folder: str, place: str, pattern: str) -> Iterator[str]:
    """Lines in which a regular expression is found, in all files at or below a place."""
    wanted, found = re.compile(pattern), 0
    for file, at, entry in _files_at(place):
        name = os.path.relpath(file, folder)
        for number, line in enumerate(_lines_of(at, entry), 1):
            if wanted.search(line):
                yield f"{name}:{number}: {line if len(line) <= LONGEST else line[:LONGEST] + ' [... the line goes on]'}"
                found += 1
                if found == MATCHES:
                    yield f"[stopped at {MATCHES} matches]"
                    return
    if not found:
        yield "Nothing found."


def _files_at(place: str) -> Iterator[tuple[str, int, str]]:
    """Each file's path, a descriptor of the folder that it is in, and its name there."""
    parent = _open_folder(os.path.dirname(place))
    try:
        name = os.path.basename(place) or "."
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            yield place, parent, name
            return
        for here, folders, names, at in os.fwalk(name, dir_fd=parent):
            folders[:] = sorted(set(folders) - _SKIPPED)
            above = os.path.normpath(os.path.join(os.path.dirname(place), here))
            yield from ((os.path.join(above, name), at, name) for name in sorted(names))
    except FileNotFoundError:
        return
    finally:
        os.close(parent)


def _open_folder(path: str) -> int:
    """Step by step, so that no link is followed on the way."""
    at = os.open(os.sep, _STEP)
    for part in filter(None, path.split(os.sep)):
        below = os.open(part, _STEP, dir_fd=at)
        os.close(at)
        at = below
    return at


def _lines_of(at: int, name: str) -> list[str]:
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except OSError:  # a link, or not for us
        return []
    with os.fdopen(opened, "rb") as data:
        try:
            known = os.fstat(opened)
            if not stat.S_ISREG(known.st_mode) or known.st_size > LARGEST or known.st_nlink > 1:
                return []
            text = data.read(LARGEST)
        except OSError:
            return []
    return [] if b"\0" in text[:4096] else _split(text.decode("utf-8", "replace"))


def _split(text: str) -> list[str]:
    """At the ends of lines that `open` knows, so that their numbers are those of `read_file`."""
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


def main() -> int:
    """The exit status."""
    asked = json.load(sys.stdin)
    out = sys.stdout.buffer
    try:
        for line in search(asked["folder"], asked["place"], asked["pattern"]):
            out.write(f"{line}\n".encode("utf-8", "replace"))
    except (re.error, OverflowError, RecursionError) as error:
        out.write(f"{asked['pattern']!r} is no regular expression: {error}\n".encode("utf-8", "replace"))
        return BAD_PATTERN
    except OSError as error:
        out.write(f"{asked['place']!r} cannot be searched: {error.strerror}\n".encode("utf-8", "replace"))
        return BAD_PLACE
    return 0


if __name__ == "__main__":
    sys.exit(main())
