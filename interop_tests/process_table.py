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


def marked(mark: str, turn: str | None = None) -> dict[int, str]:
    """The processes of a conversation, or of one turn in it: pid and command line."""
    wanted = {f"{MARK}={mark}".encode()}
    if turn is not None:
        wanted.add(f"{TURN}={turn}".encode())
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


def wait_until_gone(mark: str, turn: str | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := marked(mark, turn):
        if time.monotonic() > deadline:
            raise AssertionError(f"{PATIENCE:g} s later these still run: {left}")
        time.sleep(0.02)


def wait_until_there(mark: str, turn: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not marked(mark, turn):
        if time.monotonic() > deadline:
            raise AssertionError(f"{PATIENCE:g} s later no process of {turn} runs")
        time.sleep(0.02)
