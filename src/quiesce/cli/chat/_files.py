"""Files of one folder: to read, to list and to write. `_search` searches them, `_change` says what a write would change.

Paths are inside the folder, also after following links: a courtesy that catches mistakes of a model. It is no sandbox, for the shell and Python may
touch anything; they are asked about instead. Everything here is plain synchronous code for a thread; what takes long looks at its token.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from quiesce import current_token

LINES = 2000  # of a file, at once
LONGEST = 2000  # characters of a line
MOST = 60_000  # characters of a file, at once
LISTED = 1000
_GOES_ON = " [... the line goes on]"


class BadPath(Exception):
    """A path that the file tools do not touch; the message says why."""


def inside(folder: Path, path: str) -> Path:
    """The file that `path` means; BadPath if that is elsewhere."""
    try:
        found = (folder / os.path.expanduser(path)).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise BadPath(f"{path!r} is no path: {error}") from error
    if found != folder and folder not in found.parents:
        raise BadPath(
            f"{path!r} is not in {folder}: the file tools stay in there (a shell command need not, if it is approved)"
        )
    return found


def read(folder: Path, path: str, first_line: int = 1, lines: int = LINES) -> str:
    """So many lines of a file, with their numbers."""
    file = inside(folder, path)
    if file.is_dir():
        raise BadPath(f"{path!r} is a folder: list it")
    if not file.exists():
        raise BadPath(f"there is no file {path!r}")
    if not file.is_file():
        raise BadPath(f"{path!r} is no plain file, and reading it might never end")
    first, wanted = max(first_line, 1), min(max(lines, 1), LINES)
    told, room = list[str](), MOST
    with file.open(encoding="utf-8", errors="replace") as opened:
        for number, line in enumerate(_lines_of(opened), 1):
            if number < first:
                continue
            numbered = f"{number:6}  {line}\n"
            if len(told) == wanted or (told and len(numbered) > room):
                return "".join(told) + f"[more from line {number} on]"
            told.append(numbered)
            room -= len(numbered)
    if not told:
        return "The file is empty." if first == 1 else f"The file has fewer than {first} lines."
    return "".join(told)


def _lines_of(opened: TextIO) -> Iterator[str]:
    """Without their ends, and no more than the beginning of each: a line may be as long as the file."""
    token = current_token()
    while piece := opened.readline(LONGEST + 1):
        token.raise_if_cancelled()
        line = piece.removesuffix("\n")
        goes_on = len(line) > LONGEST
        while goes_on and piece and not piece.endswith("\n"):
            token.raise_if_cancelled()
            piece = opened.readline(65536)
        yield line[:LONGEST] + _GOES_ON if goes_on else line


def write(folder: Path, path: str, content: str) -> str:
    """Put `content` into a file, in place of what is there: all of it, or nothing."""
    file = inside(folder, path)
    if file.is_dir():
        raise BadPath(f"{path!r} is a folder")
    existed = file.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        half.write_text(content, encoding="utf-8", errors="surrogateescape", newline="")
        if existed:
            half.chmod(file.stat().st_mode & 0o7777)
        half.replace(file)
    finally:
        half.unlink(missing_ok=True)
    return f"{'Wrote' if existed else 'Made'} {path}, {len(content.splitlines())} lines."


def list_folder(folder: Path, path: str = ".") -> str:
    """Names in a folder; folders end with a slash."""
    place = inside(folder, path)
    if not place.is_dir():
        raise BadPath(f"{path!r} is no folder")
    names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in os.scandir(place))
    more = [f"[{len(names) - LISTED} more]"] if len(names) > LISTED else []
    return "\n".join(names[:LISTED] + more) or "The folder is empty."
