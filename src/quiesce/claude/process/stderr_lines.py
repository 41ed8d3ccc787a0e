"""Pieces of a CLI's stderr in, lines out: what has no end yet waits for it, or for the end of the process."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Final

from quiesce._safe.printed import logger

LONGEST: Final = 65536  # characters: a line that is longer is told in pieces


class StderrLines:
    """Tells `tell` of each line that is not blank, without its end."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def __call__(self, data: bytes) -> None:
        """More has come."""
        self._came(self._decoder.decode(data))

    def finish(self) -> None:
        """Nothing more comes: what is left is a line."""
        try:
            self._came(self._decoder.decode(b"", final=True) + "\n")
        except Exception:
            logger.exception("the last line of the CLI's stderr: options.stderr failed")

    def _came(self, text: str) -> None:
        *lines, rest = (self._rest + text).split("\n")
        while len(rest) > LONGEST:
            lines.append(rest[:LONGEST])
            rest = rest[LONGEST:]
        self._rest = rest  # first: whoever is told may fail
        for line in lines:
            if line.strip():
                self._tell(line.rstrip())
