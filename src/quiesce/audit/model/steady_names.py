"""Names that are the same in every run, so that one cause becomes one finding.

The operating system and `repr` put momentary facts into names: a number, an address, how many bytes are waiting, a
temporary file. A steady name has none of them: an object is named by its type and a file by its path, numbers and
identifiers are written as N, and a name that `tempfile` invented as *. The detail of a sighting keeps the full text.
"""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Identifiers first: the numbers in one are not numbers. anyio prints addresses without 0x.
_NUMBERS = re.compile(
    r"0x[0-9a-f]+"
    r"|(?<![0-9A-Za-z])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z])[0-9a-f]{8,}(?![0-9A-Za-z])"
    r"|\d+"
)
# Temporary names that were not recorded: invented by another process, or too long ago.
_TEMPORARY = re.compile(r"(?<![0-9A-Za-z])tmp[a-z0-9_]{8}(?![0-9A-Za-z_])")
# The start of an object's repr, as opposed to a comparison in a message.
_IS_OBJECT = re.compile(r"<[A-Za-z_]")
_FILE_NAME = re.compile(r"""<_io\.\w+ name=(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\d+))""")

# The names that `tempfile` invented, the newest last.
_invented_names: deque[str] = deque(maxlen=1_000)


def steady(text: str) -> str:
    """Replace the parts of a text that differ from run to run."""
    for name in _invented_names:
        if name in text:
            text = text.replace(name, "*")
    return _NUMBERS.sub("N", _TEMPORARY.sub("tmp*", text))


def steady_object(text: str) -> str:
    """Like `steady`, and reduce each `repr` in the text: `<StreamWriter transport=<...>>` becomes `<StreamWriter>`."""
    parts: list[str] = []
    depth = start = 0
    for i, character in enumerate(text):
        if character == "<" and (depth or _IS_OBJECT.match(text, i)):
            if depth == 0:
                parts.append(text[start:i])
                start = i
            depth += 1
        elif character == ">" and depth:
            depth -= 1
            if depth == 0:
                parts.append(_type_of(text[start : i + 1]))
                start = i + 1
    # A repr that was truncated has no closing bracket, and stays as it is.
    return steady("".join(parts) + text[start:])


def _type_of(shown: str) -> str:
    """Reduce a `repr` to the object's type, and that of a file to its path: which of a file's layers warns differs."""
    file = _FILE_NAME.match(shown)
    return (
        f"<{file[1] or file[2] or file[3]}>" if file is not None else f"<{shown[1:-1].split(maxsplit=1)[0]}>"
    )


class _RecordingNames:
    """Wraps the name sequence of `tempfile` and records each name that it hands out."""

    def __init__(self, names: Iterator[str]) -> None:
        self._names = names

    def __iter__(self) -> _RecordingNames:
        return self

    def __next__(self) -> str:
        name = next(self._names)
        _invented_names.append(name)
        return name


@contextmanager
def record_temporary_names() -> Iterator[None]:
    """Record the names of the temporary files and folders that are created inside the block."""
    # `_name_sequence` is private to `tempfile`, and the same from 3.11 to 3.15.
    module: Any = tempfile
    before = module._get_candidate_names()
    module._name_sequence = _RecordingNames(before)
    try:
        yield
    finally:
        module._name_sequence = before
