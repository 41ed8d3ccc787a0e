"""The chat's files: to read, to list and to write, below one folder.

`quiesce._safe.files` decides which files those are, and opens them. It is not a sandbox, for the shell and Python may touch anything; you are asked about
those instead. Everything here is synchronous code for a thread, and stops when its token is cancelled.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TextIO

from quiesce import current_token
from quiesce._safe.files import Folders, Seen, encoded

LINES = 2000  # of a file, at once
LONGEST = 2000  # characters of a line
MOST = 60_000  # characters of a file, at once
LISTED = 1000
_GOES_ON = " [... the line goes on]"


def read(folders: Folders, path: str, first_line: int = 1, lines: int = LINES) -> str:
    """So many lines of a file, with their numbers."""
    first, wanted = max(first_line, 1), min(max(lines, 1), LINES)
    told, room = list[str](), MOST
    data = folders.open(path)
    with io.TextIOWrapper(data, encoding="utf-8", errors="replace") as opened:
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


def write(folders: Folders, path: str, content: str, seen: Seen | None = None) -> str:
    """Put `content` into a file, in place of what is there: all of it, or nothing. It must still be the file that was `seen`."""
    existed = folders.write(path, encoded(path, content), seen)
    return f"{'Wrote' if existed else 'Made'} {path}, {len(content.splitlines())} lines."


def list_folder(folders: Folders, path: str = ".") -> str:
    """Names in a folder; folders end with a slash."""
    names = folders.names(path)
    more = [f"[{len(names) - LISTED} more]"] if len(names) > LISTED else []
    return "\n".join(names[:LISTED] + more) or "The folder is empty."
