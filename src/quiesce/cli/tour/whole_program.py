"""The beginning of the tour: `quiesce stoptest` on a program of ours, or on the reader's own.

It is run as a command of its own: it becomes the parent of every orphan below it, which no part of the tour
should be. It is stopped when the other end of its input is closed, and we have that end: so it does not outlive us.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from quiesce.cli.stoptest import IS_GUARDED

_LEAKY_PROGRAM = str(Path(__file__).with_name("leaky_program.py"))
# Three of the eight ways, and little patience: the reader shall see all of the tour.
_QUICKLY = (
    *("--only", "sigterm", "--only", "client", "--only", "sigkill"),
    *("--after", "0.7", "--exit-within", "1.5", "--patience", "0.7", "--grace", "0.4"),
)


def stop_whole_program(argv: Sequence[str], color: str) -> int:
    """Stop a program, or ours if `argv` is empty, and print what is left; returns the status of the command."""
    words = argv or [sys.executable, "-I", _LEAKY_PROGRAM]
    options = ["--color", color, *(() if argv else _QUICKLY)]
    quiesce = [sys.executable, "-m", "quiesce"]
    command = [*quiesce, "exec", "--stop-on-eof", "--", *quiesce, "stoptest", *options, "--", *words]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, IS_GUARDED: "1"})
    assert running.stdin is not None
    try:
        return running.wait()
    finally:
        running.stdin.close()  # if we are killed, Linux does that
        running.wait()


def is_possible() -> bool:
    """Whether this system has what `quiesce stoptest` needs."""
    return sys.platform.startswith("linux")
