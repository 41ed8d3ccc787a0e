"""Splits a CLI's stderr, which arrives in pieces, into lines."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Final

from quiesce._safe.printed import logger

LONGEST: Final = 65536  # characters; a longer line is passed on in pieces


class StderrLines:
    """Calls `on_line` with each line that is not blank, without its line break.

    A line that is not complete waits for its end, or for `finish`.
    """

    def __init__(self, on_line: Callable[[str], object]) -> None:
        self._on_line = on_line
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._incomplete = ""

    def __call__(self, data: bytes) -> None:
        """Take another piece."""
        self._add(self._decoder.decode(data))

    def finish(self) -> None:
        """Pass on the last line, which may have no line break."""
        try:
            self._add(self._decoder.decode(b"", final=True) + "\n")
        except Exception:
            logger.exception("the last line of the CLI's stderr: options.stderr failed")

    def _add(self, text: str) -> None:
        *lines, incomplete = (self._incomplete + text).split("\n")
        while len(incomplete) > LONGEST:
            lines.append(incomplete[:LONGEST])
            incomplete = incomplete[LONGEST:]
        # Before the calls: if one of them raises, the next piece must not repeat these lines.
        self._incomplete = incomplete
        for line in lines:
            if line.strip():
                self._on_line(line.rstrip())
