"""The command's own streams, and the ones that a scenario gets.

A sweep runs a scenario hundreds of times. Its output would bury the report and break `--json`, so it is discarded, and
its standard input is empty; a replay shows the output. The command keeps its own descriptors, so that the report comes
out even if a scenario closes standard output.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO, TypeAlias

# Where the output of a scenario goes: to the terminal, all of it to standard error, or nowhere.
Output: TypeAlias = Literal["shown", "to stderr", "hidden"]


class Streams:
    """The command writes to `out` and `err`, and runs users' code inside `lent()`. Use it as a context manager."""

    def __init__(self) -> None:
        self._own: list[TextIO] = []
        self.out = self._duplicate(sys.stdout)
        self.err = self._duplicate(sys.stderr)

    def __enter__(self) -> Streams:  # noqa: PYI034
        return self

    def __exit__(self, *exc: object) -> None:
        for stream in self._own:
            try:
                stream.close()
            except OSError:
                # The reader has closed its end of the pipe.
                pass

    def _duplicate(self, stream: TextIO | None) -> TextIO:
        """A stream with its own descriptor for the same file."""
        try:
            # Python sets a standard stream to None if its descriptor was closed before the start.
            if stream is None:
                fd = os.open(os.devnull, os.O_WRONLY)
            else:
                stream.flush()
                fd = os.dup(stream.fileno())
        except (OSError, ValueError):
            # Not a file: a test captures it.
            assert stream is not None
            return stream
        encoding = getattr(stream, "encoding", None) or "utf-8"
        copy = open(fd, "w", encoding=encoding, errors="backslashreplace")  # noqa: SIM115
        self._own.append(copy)
        return copy

    @contextmanager
    def lent(self, output: Output) -> Iterator[None]:
        """Redirect the standard streams to where `output` says, so that users' code can run inside the block."""
        streams = sys.stdin, sys.stdout, sys.stderr
        for stream in streams[1:]:
            _flush(stream)
        # The descriptors are redirected as well as Python's objects: child processes and C code write to descriptors.
        saved = [(fd, _dup(fd)) for fd in (0, 1, 2)]
        try:
            if output == "hidden":
                nowhere = os.open(os.devnull, os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(nowhere, fd)
                os.close(nowhere)
                sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
                sys.stdout, sys.stderr = _Unclosable(1), _Unclosable(2)
            elif output == "to stderr":
                os.dup2(2, 1)
                sys.stdout = streams[2]
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                _flush(stream)
            sys.stdin, sys.stdout, sys.stderr = streams
            for fd, copy in saved:
                if copy is not None:
                    os.dup2(copy, fd)
                    os.close(copy)


class _Unclosable(io.TextIOWrapper):
    """Standard output for all runs of a scenario: a run that closes it must not close it for the next."""

    def __init__(self, fd: int) -> None:
        raw = io.FileIO(fd, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True)

    def close(self) -> None:
        _flush(self)


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (AttributeError, OSError, ValueError):
        # It is None, its reader has closed the pipe, or it is closed.
        pass


def _dup(fd: int) -> int | None:
    try:
        return os.dup(fd)
    except OSError:
        return None
