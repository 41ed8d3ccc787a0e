"""What writing a file would change, for somebody to approve: whatever differs in its bytes can be seen in it.

Plain synchronous code for a thread. A comparison that would take long is not made: what differs is then shown as all that goes and all that comes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from quiesce._safe.files import Folders, Seen, encoded
from quiesce._safe.text import without_line_ends

COMPARED = 2000  # lines, before and after; more of them are not compared line by line
_AROUND = 2  # lines that stay the same, before and after each change
_NO_END = "\\ no line end here"


def change(folders: Folders, path: str, content: str) -> tuple[str, Seen]:
    """A line that says which file and how, and then the difference; and the file that it is about. `BadPath` for a file that cannot be written or read.

    The text is not yet fit for a terminal: see `exact`.
    """
    seen, before = folders.look(path)
    return _difference_of(_name(folders, path, seen.path), before, encoded(path, content), content), seen


def _difference_of(name: str, before: bytes | None, after: bytes, content: str) -> str:
    if before is None:
        if not after:
            return f"{name}: made, empty"
        lines = _lines(content)
        return "\n".join([f"{name}: made, {_counted(lines)}", *_marked("+", lines)])
    if before == after:
        return f"{name}: written again, nothing changes"
    # Bytes that are not UTF-8 stay what they are, and differ from whatever stands for them.
    old, new = _lines(before.decode("utf-8", "surrogateescape")), _lines(content)
    how = "emptied" if not after else "changed"
    return "\n".join([f"{name}: {how}{_line_ends(before, after)}", *_difference(old, new)])


def _name(folders: Folders, path: str, canonical: str) -> str:
    """The file that is written, in one line; and the path as it was given, if that is another text."""
    name = without_line_ends(folders.relative(canonical))
    return name if path in (name, canonical) else f"{name} (given as {without_line_ends(path)})"


def _lines(text: str) -> list[str]:
    """With their ends: only LF is one, all else can be seen in the line."""
    *ended, last = text.split("\n")
    return [*(f"{line}\n" for line in ended), *([last] if last else [])]


def _counted(lines: Sequence[str]) -> str:
    return "1 line" if len(lines) == 1 else f"{len(lines)} lines"


def _line_ends(before: bytes, after: bytes) -> str:
    was, will_be = _ends_of(before), _ends_of(after)
    return f"; line ends change from {was} to {will_be}" if was and will_be and was != will_be else ""


def _ends_of(data: bytes) -> str:
    crlf, lf = data.count(b"\r\n"), data.count(b"\n")
    if not lf:
        return ""
    return "LF" if not crlf else "CRLF" if crlf == lf else "both LF and CRLF"


def _difference(old: list[str], new: list[str]) -> Iterator[str]:
    first, last = _same_ends(old, new)
    gone, come = old[first : len(old) - last], new[first : len(new) - last]
    if len(gone) + len(come) > 2 * COMPARED:
        yield f"@@ -{first + 1},{len(gone)} +{first + 1},{len(come)} @@"
        yield from _marked("-", gone)
        yield from _marked("+", come)
        return
    start = max(first - _AROUND, 0)
    old, new = old[start : len(old) - last + _AROUND], new[start : len(new) - last + _AROUND]
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(_AROUND):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield f"@@ -{start + i1 + 1},{i2 - i1} +{start + j1 + 1},{j2 - j1} @@"
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from _marked(" ", old[i1:i2])
            else:
                yield from _marked("-", old[i1:i2])
                yield from _marked("+", new[j1:j2])


def _same_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many lines are the same at the beginning, and at the end."""
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
        yield mark + (text if mark == " " else _blanks_shown(text))
        if not line.endswith("\n"):
            yield _NO_END


def _blanks_shown(line: str) -> str:
    """With pictures for tabs, and for blanks at its end, which nobody would see."""
    kept = line.rstrip(" ")
    return kept.replace("\t", "\u2409") + "\u2420" * (len(line) - len(kept))
