"""What the library prints and logs: text of others, in the last step before it leaves the program.

Reports, trees, errors and log records are put together from names, reasons and messages that others chose. They are made safe when they are formatted,
not where they come from: after every other rendering, and only if somebody looks.
"""

from __future__ import annotations

import logging
from typing import Final

from .secrets import without_secrets
from .text import exact, without_line_ends


def printed(text: object) -> str:
    """Lines for a terminal or a file: nothing in them moves the cursor, hides text, or is a secret."""
    return exact(without_secrets(str(text)))


def printed_line(text: object) -> str:
    """The same as one line: a line end is shown as ⏎, so that nobody can add a line of their own."""
    return without_line_ends(printed(text))


class Printed:
    """What is safe already when it is made a string, line ends included: a report of several lines, say."""

    __slots__ = ()


class _Line:
    """Something that becomes one line when it is formatted."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printed_line(self._value)

    def __repr__(self) -> str:
        return printed_line(repr(self._value))


def _argument(value: object) -> object:
    return value if isinstance(value, (int, float, Printed)) else _Line(value)


class _Safe(logging.Filter):
    """Makes a record safe when it is logged, before any handler formats it. Records that nobody wants never get here."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_argument, record.args))
        record.msg, record.args = printed(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            # A formatter uses this text if it is there, and formats the exception itself only if it is not.
            # Indented, as the exception's message may hold line ends, and what follows looks like another record otherwise.
            text = printed(logging.Formatter().formatException(record.exc_info))
            record.exc_text = "\n".join(f"  {line}" for line in text.split("\n"))
        return True


def _logger() -> logging.Logger:
    """The logger of the whole library."""
    found = logging.getLogger("quiesce")
    if not any(isinstance(each, _Safe) for each in found.filters):
        found.addFilter(_Safe())
    return found


logger: Final = _logger()
