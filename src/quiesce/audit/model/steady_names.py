"""Names of things that are the same in every run, so that one cause is one finding.

The operating system and `repr` name things by what they are at the moment: a number, an address, how many bytes are waiting,
a temporary file. Here a thing is named by what it is. Objects are their type, and files their path; numbers and
identifiers are written as N, and what `tempfile` made up as *. The detail of a sighting still has all of it.
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
_TEMPORARY = re.compile(
    r"(?<![0-9A-Za-z])tmp[a-z0-9_]{8}(?![0-9A-Za-z_])"
)  # made by another process, or long ago
_IS_OBJECT = re.compile(r"<[A-Za-z_]")  # and not a comparison in a message
_FILE_NAME = re.compile(r"""<_io\.\w+ name=(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\d+))""")

_made_up: deque[str] = deque(maxlen=1_000)  # by `tempfile`, the newest last


def steady(text: str) -> str:
    """The same text, without what differs from run to run."""
    for name in _made_up:
        if name in text:
            text = text.replace(name, "*")
    return _NUMBERS.sub("N", _TEMPORARY.sub("tmp*", text))


def steady_object(text: str) -> str:
    """Likewise, of a text that shows an object by its `repr`: `<StreamWriter transport=<...>>` is `<StreamWriter>`."""
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
    # One that is cut off stays as it is.
    return steady("".join(parts) + text[start:])


def _type_of(shown: str) -> str:
    """An object's type, from what it shows of itself. A file is its path: which of its layers warns differs."""
    file = _FILE_NAME.match(shown)
    return (
        f"<{file[1] or file[2] or file[3]}>" if file is not None else f"<{shown[1:-1].split(maxsplit=1)[0]}>"
    )


class _Noted:
    """The names that `tempfile` makes up, each noted when it is given out."""

    def __init__(self, names: Iterator[str]) -> None:
        self._names = names

    def __iter__(self) -> _Noted:
        return self

    def __next__(self) -> str:
        name = next(self._names)
        _made_up.append(name)
        return name


@contextmanager
def noted_temporary_names() -> Iterator[None]:
    """Know the names of temporary files and folders that are made while it is open."""
    module: Any = tempfile  # its one sequence of names is private, and the same from 3.11 to 3.15
    before = module._get_candidate_names()
    module._name_sequence = _Noted(before)
    try:
        yield
    finally:
        module._name_sequence = before
