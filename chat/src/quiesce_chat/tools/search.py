"""The search in files, as a program of its own: only killing its process stops a regular expression that runs forever.

It imports only the standard library, and is run by its path. It reads one JSON object from standard input: `folder`,
`place` (inside the folder; both are real paths) and `pattern`. It prints the matches, or what is wrong, with exit
status 2 or 3.

Links are not followed, not even one that replaces a folder during the search. A file with several names (hard
links) is skipped, because one of them may be outside the folder.
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
LARGEST = 2_000_000  # bytes; larger files are skipped
LONGEST = 300  # characters shown of a line
BAD_PATTERN = 2
BAD_PLACE = 3
# O_PATH needs only permission to pass through a folder, not to list it. It does not exist on macOS.
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SKIPPED = {".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"}


def search(folder: str, place: str, pattern: str) -> Iterator[str]:
    """Yield the lines that match a regular expression, in the file `place` or in all files below it."""
    expression, found = re.compile(pattern), 0
    for file, at, entry in _files_at(place):
        name = os.path.relpath(file, folder)
        for number, line in enumerate(_lines_of(at, entry), 1):
            if expression.search(line):
                shown = line if len(line) <= LONGEST else f"{line[:LONGEST]} [... the line goes on]"
                yield f"{name}:{number}: {shown}"
                found += 1
                if found == MATCHES:
                    yield f"[stopped at {MATCHES} matches]"
                    return
    if not found:
        yield "Nothing found."


def _files_at(place: str) -> Iterator[tuple[str, int, str]]:
    """Yield each file's path, a descriptor of its folder, and its name in there."""
    parent = _open_folder(os.path.dirname(place))
    try:
        name = os.path.basename(place) or "."
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            yield place, parent, name
            return
        # `fwalk` opens each folder relative to its parent's descriptor. `walk` would open it by path, and a link that
        # replaces a folder on that path would be followed.
        for here, folders, names, at in os.fwalk(name, dir_fd=parent):
            folders[:] = sorted(set(folders) - _SKIPPED)
            above = os.path.normpath(os.path.join(os.path.dirname(place), here))
            yield from ((os.path.join(above, name), at, name) for name in sorted(names))
    except FileNotFoundError:
        return
    finally:
        os.close(parent)


def _open_folder(path: str) -> int:
    """Open a folder one path component at a time, so that no link is followed on the way."""
    # O_NOFOLLOW alone checks only the last component of a path.
    at = os.open(os.sep, _STEP)
    for part in filter(None, path.split(os.sep)):
        below = os.open(part, _STEP, dir_fd=at)
        os.close(at)
        at = below
    return at


def _lines_of(at: int, name: str) -> list[str]:
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except OSError:  # a link, or not readable
        return []
    with os.fdopen(opened, "rb") as data:
        try:
            known = os.fstat(opened)
            if not stat.S_ISREG(known.st_mode) or known.st_size > LARGEST or known.st_nlink > 1:
                return []
            text = data.read(LARGEST)
        except OSError:
            return []
    # A NUL byte near the beginning: a binary file.
    return [] if b"\0" in text[:4096] else _split(text.decode("utf-8", "replace"))


def _split(text: str) -> list[str]:
    """Split at the line ends that `open` recognises, so that line numbers agree with `read_file`."""
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


def main() -> int:
    """Search as standard input says, and return the exit status."""
    request = json.load(sys.stdin)
    out = sys.stdout.buffer
    try:
        for line in search(request["folder"], request["place"], request["pattern"]):
            out.write(f"{line}\n".encode("utf-8", "replace"))
    except (re.error, OverflowError, RecursionError) as error:
        out.write(
            f"{request['pattern']!r} is not a valid regular expression: {error}\n".encode("utf-8", "replace")
        )
        return BAD_PATTERN
    except OSError as error:
        out.write(f"{request['place']!r} cannot be searched: {error.strerror}\n".encode("utf-8", "replace"))
        return BAD_PLACE
    return 0


if __name__ == "__main__":
    sys.exit(main())
