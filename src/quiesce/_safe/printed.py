"""What the library prints and logs, made safe in the last step before it leaves the program.

Reports, trees, errors and log records contain names, reasons and messages from untrusted sources. They are
made safe when they are formatted, and not where they enter the program: so no later rendering can undo it,
and text that is never shown costs nothing.
"""

from __future__ import annotations

import logging
from typing import Final

from .secrets import without_secrets
from .text import exact, without_line_ends


def printed(text: object) -> str:
    """The text, safe for a terminal or a file: nothing in it moves the cursor, hides text, or is a secret."""
    return exact(without_secrets(str(text)))


def printed_line(text: object) -> str:
    """The text as one safe line. Line ends are shown as ⏎, so that untrusted text cannot fake a line."""
    return without_line_ends(printed(text))


class Printed:
    """Base class of objects whose `str` is already safe, line ends included: a report, for example."""

    __slots__ = ()


class _Line:
    """Wraps a value so that it is one safe line when it is formatted."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printed_line(self._value)

    def __repr__(self) -> str:
        return printed_line(repr(self._value))


def _argument(value: object) -> object:
    return value if isinstance(value, (int, float, Printed)) else _Line(value)


class _Safe(logging.Filter):
    """Makes a record safe when it is logged, before any handler formats it."""

    # A filter of the logger and not a formatter: handlers belong to the application, and each has its own
    # formatter. Records below the logger's level never get here, and so cost nothing.

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_argument, record.args))
        record.msg, record.args = printed(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            # Formatters use `exc_text` if it is set, and format the exception themselves only if it is not.
            # It is indented, because the exception's message may contain line ends, and the next line could
            # pass for another record.
            text = printed(logging.Formatter().formatException(record.exc_info))
            record.exc_text = "\n".join(f"  {line}" for line in text.split("\n"))
        return True


def _logger() -> logging.Logger:
    """The logger of the whole library, with the filter added once."""
    found = logging.getLogger("quiesce")
    if not any(isinstance(each, _Safe) for each in found.filters):
        found.addFilter(_Safe())
    return found


logger: Final = _logger()
