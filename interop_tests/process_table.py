"""Which processes a test has left, as the process table says: every one of them inherits a variable that marks it.

The programs under test are not asked. A zombie is not running, and has no environment any more to be found by.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

MARK = "QUIESCE_INTEROP_MARK"
TURN = "QUIESCE_INTEROP_TURN"
PATIENCE = 30.0  # seconds; how long a thing may take that is seen to happen much sooner


def marked(**variables: str) -> dict[int, str]:
    """The processes whose environment has all these variables so: pid and command line."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = set((folder / "environ").read_bytes().split(b"\0"))
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile, or is another user's
        if wanted <= environment:
            found[int(folder.name)] = command.strip()
    return found


def wait_until_gone(*, within: float = PATIENCE, **variables: str) -> None:
    deadline = time.monotonic() + within
    while left := marked(**variables):
        if time.monotonic() > deadline:
            raise AssertionError(f"{within:g} s later, of {variables} these still run: {left}")
        time.sleep(0.02)


def wait_until_there(*, within: float = PATIENCE, **variables: str) -> None:
    deadline = time.monotonic() + within
    while not marked(**variables):
        if time.monotonic() > deadline:
            raise AssertionError(f"{within:g} s later, no process with {variables} runs")
        time.sleep(0.02)
