"""The file tools of the chat: read, list and write files below one folder.

`Folders`, in `quiesce.inner`, decides which files these are, and opens them. This is not a sandbox, because
the shell and Python may touch anything; the user is asked before each of those instead. Everything here is
synchronous code for a thread. Reading stops when its token is cancelled.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TextIO

from quiesce import current_token
from quiesce.inner import Folders, Seen, encoded

# What one call returns at most, so that one file cannot fill the model's context.
LINES = 2000
LONGEST = 2000  # characters per line
MOST = 60_000  # characters in all
LISTED = 1000  # names of a folder
_GOES_ON = " [... the line goes on]"


def read(folders: Folders, path: str, first_line: int = 1, lines: int = LINES) -> str:
    """Read at most `lines` lines of a file, numbered, from `first_line` on."""
    first, wanted = max(first_line, 1), min(max(lines, 1), LINES)
    numbered_lines, room = list[str](), MOST
    data = folders.open(path)
    with io.TextIOWrapper(data, encoding="utf-8", errors="replace") as opened:
        for number, line in enumerate(_lines_of(opened), 1):
            if number < first:
                continue
            numbered = f"{number:6}  {line}\n"
            if len(numbered_lines) == wanted or (numbered_lines and len(numbered) > room):
                return "".join(numbered_lines) + f"[more from line {number} on]"
            numbered_lines.append(numbered)
            room -= len(numbered)
    if not numbered_lines:
        return "The file is empty." if first == 1 else f"The file has fewer than {first} lines."
    return "".join(numbered_lines)


def _lines_of(opened: TextIO) -> Iterator[str]:
    """The lines without their ends, each shortened to `LONGEST` characters."""
    token = current_token()
    # `readline` with a limit, because a line may be as long as the file: iterating would load all of it.
    while piece := opened.readline(LONGEST + 1):
        token.raise_if_cancelled()
        line = piece.removesuffix("\n")
        goes_on = len(line) > LONGEST
        while goes_on and piece and not piece.endswith("\n"):
            token.raise_if_cancelled()
            piece = opened.readline(65536)
        yield line[:LONGEST] + _GOES_ON if goes_on else line


def write(folders: Folders, path: str, content: str, seen: Seen | None = None) -> str:
    """Replace the content of a file, entirely or not at all. With `seen`, the file must not have changed since."""
    existed = folders.write(path, encoded(path, content), seen)
    return f"{'Wrote' if existed else 'Created'} {path}, {len(content.splitlines())} lines."


def list_folder(folders: Folders, path: str = ".") -> str:
    """The names in a folder, one per line; those of folders end with a slash."""
    names = folders.names(path)
    more = [f"[{len(names) - LISTED} more]"] if len(names) > LISTED else []
    return "\n".join(names[:LISTED] + more) or "The folder is empty."
