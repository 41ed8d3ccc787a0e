"""Whose is the terminal: the command's own streams, and what a scenario sees of them.

A sweep runs a scenario hundreds of times. What it prints would bury the report and break `--json`, so that it goes
nowhere, and its standard input is empty; a replay shows it. The command keeps descriptors of its own: a scenario may close
its standard output, and the report still comes out.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO, TypeAlias

# Where a scenario's output goes: to the terminal, all of it to standard error, or nowhere.
Output: TypeAlias = Literal["shown", "to stderr", "hidden"]


class Streams:
    """`out` and `err` are the command's; `lent()` is when other people's code runs. Use as a context manager."""

    def __init__(self) -> None:
        self._own: list[TextIO] = []
        self.out = self._keep(sys.stdout)
        self.err = self._keep(sys.stderr)

    def __enter__(self) -> Streams:  # noqa: PYI034
        return self

    def __exit__(self, *exc: object) -> None:
        for stream in self._own:
            try:
                stream.close()
            except OSError:  # whoever read it is gone
                pass

    def _keep(self, stream: TextIO | None) -> TextIO:
        try:
            if stream is None:  # closed before we came
                fd = os.open(os.devnull, os.O_WRONLY)
            else:
                stream.flush()
                fd = os.dup(stream.fileno())
        except (OSError, ValueError):  # not a file: somebody captures it
            assert stream is not None
            return stream
        encoding = getattr(stream, "encoding", None) or "utf-8"
        kept = open(fd, "w", encoding=encoding, errors="backslashreplace")  # noqa: SIM115
        self._own.append(kept)
        return kept

    @contextmanager
    def lent(self, output: Output) -> Iterator[None]:
        """Let other people's code run, with its output going where `output` says."""
        kept = sys.stdin, sys.stdout, sys.stderr
        for stream in kept[1:]:
            _flush(stream)
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
                sys.stdout = kept[2]
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                _flush(stream)
            sys.stdin, sys.stdout, sys.stderr = kept
            for fd, copy in saved:
                if copy is not None:
                    os.dup2(copy, fd)
                    os.close(copy)


class _Unclosable(io.TextIOWrapper):
    """Standard output for a run: one that closes it must not close it for the next."""

    def __init__(self, fd: int) -> None:
        raw = io.FileIO(fd, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True)

    def close(self) -> None:
        _flush(self)


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (AttributeError, OSError, ValueError):  # none, gone, or closed
        pass


def _dup(fd: int) -> int | None:
    try:
        return os.dup(fd)
    except OSError:
        return None
