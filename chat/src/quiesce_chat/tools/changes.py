"""What a write would change in a file, shown for approval: every byte that differs is visible.

This is synchronous code for a thread. If a line-by-line comparison would take too long, all old lines are shown as
removed and all new ones as added.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from quiesce.inner import Folders, Seen, encoded, without_line_ends

#: Up to this many changed lines in each version are compared line by line. `difflib` takes quadratic time.
COMPARED = 2000
#: Unchanged lines that are shown before and after each change.
_CONTEXT = 2
_NO_NEWLINE = "\\ no newline at end of file"


def change(folders: Folders, path: str, content: str) -> tuple[str, Seen]:
    """The change as text, and the file that it was compared with.

    The text is a line with the file's name and what happens to it, then the difference. It is not yet safe for a
    terminal: see `exact`. Raises `BadPath` for a file that cannot be written or read.
    """
    seen, before = folders.look(path)
    return _difference_of(_name(folders, path, seen.path), before, encoded(path, content), content), seen


def _difference_of(name: str, before: bytes | None, after: bytes, content: str) -> str:
    if before is None:
        if not after:
            return f"{name}: created, empty"
        lines = _lines(content)
        return "\n".join([f"{name}: created, {_counted(lines)}", *_marked("+", lines)])
    if before == after:
        return f"{name}: rewritten without changes"
    # Invalid bytes become lone surrogates, which differ from the U+FFFD that a model puts in their place. With
    # errors="replace", the two would look the same.
    old, new = _lines(before.decode("utf-8", "surrogateescape")), _lines(content)
    how = "emptied" if not after else "changed"
    return "\n".join([f"{name}: {how}{_line_ends(before, after)}", *_difference(old, new)])


def _name(folders: Folders, path: str, canonical: str) -> str:
    """The file that is written, in one line, and the path as it was given if that differs."""
    name = without_line_ends(folders.relative(canonical))
    return name if path in (name, canonical) else f"{name} (given as {without_line_ends(path)})"


def _lines(text: str) -> list[str]:
    """The lines with their ends. Only LF ends a line: any other separator stays visible in the line."""
    # Not `splitlines`, which also splits at form feeds, U+2028 and others, and so would hide such a change.
    *ended, last = text.split("\n")
    return [*(f"{line}\n" for line in ended), *([last] if last else [])]


def _counted(lines: Sequence[str]) -> str:
    return "1 line" if len(lines) == 1 else f"{len(lines)} lines"


def _line_ends(before: bytes, after: bytes) -> str:
    was, will_be = _ends_of(before), _ends_of(after)
    return f"; line endings change from {was} to {will_be}" if was and will_be and was != will_be else ""


def _ends_of(data: bytes) -> str:
    crlf, lf = data.count(b"\r\n"), data.count(b"\n")
    if not lf:
        return ""
    return "LF" if not crlf else "CRLF" if crlf == lf else "both LF and CRLF"


def _difference(old: list[str], new: list[str]) -> Iterator[str]:
    first, last = _same_ends(old, new)
    removed, added = old[first : len(old) - last], new[first : len(new) - last]
    if len(removed) + len(added) > 2 * COMPARED:
        yield f"@@ -{first + 1},{len(removed)} +{first + 1},{len(added)} @@"
        yield from _marked("-", removed)
        yield from _marked("+", added)
        return
    # Only the part between the common beginning and end is compared: a small change to a large file stays cheap.
    start = max(first - _CONTEXT, 0)
    old, new = old[start : len(old) - last + _CONTEXT], new[start : len(new) - last + _CONTEXT]
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(_CONTEXT):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield f"@@ -{start + i1 + 1},{i2 - i1} +{start + j1 + 1},{j2 - j1} @@"
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from _marked(" ", old[i1:i2])
            else:
                yield from _marked("-", old[i1:i2])
                yield from _marked("+", new[j1:j2])


def _same_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many lines are the same at the beginning, and how many at the end."""
    shorter = min(len(old), len(new))
    first = 0
    while first < shorter and old[first] == new[first]:
        first += 1
    last = 0
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    return first, last


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        text = line.removesuffix("\n")
        yield mark + (text if mark == " " else _visible_blanks(text))
        if not line.endswith("\n"):
            yield _NO_NEWLINE


def _visible_blanks(line: str) -> str:
    """The line with symbols for tabs and for spaces at its end, which would be invisible otherwise."""
    kept = line.rstrip(" ")
    return kept.replace("\t", "\u2409") + "\u2420" * (len(line) - len(kept))
