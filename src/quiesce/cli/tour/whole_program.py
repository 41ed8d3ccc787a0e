"""The beginning of the tour: `quiesce stoptest` on a program of ours, or on the reader's own.

It is run as a command of its own: it becomes the parent of every orphan below it, which no part of the tour
should be.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
    command = [sys.executable, "-m", "quiesce", "stoptest", *options, "--", *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def is_possible() -> bool:
    """Whether this system has what `quiesce stoptest` needs."""
    return sys.platform.startswith("linux")
