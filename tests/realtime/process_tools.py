"""Tools that run in a process of their own, and have a child there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import anyio

from quiesce.agents import function_tool

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"


@function_tool(isolation="process")
def settle(told: str, deaf: bool = False) -> NoReturn:
    """Never returns. The file `told` has the ids of the process and of its child; `deaf`: both ignore SIGTERM."""
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    command = [sys.executable, "-c", DEAF] if deaf else ["sleep", "120"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    if deaf:
        child.stdout.readline()
    unfinished = Path(told + ".part")
    unfinished.write_text(f"{os.getpid()} {child.pid}")
    unfinished.rename(told)
    while True:
        time.sleep(60)


async def tree_of(told: Path) -> list[int]:
    """The process of `settle`, and its child, as soon as they are there."""
    with anyio.fail_after(15):
        while not os.path.exists(told):  # noqa: ASYNC240
            await anyio.sleep(0.01)
    with open(told) as file:  # noqa: ASYNC230
        return [int(pid) for pid in file.read().split()]
