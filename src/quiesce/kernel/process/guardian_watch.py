"""A thread that sees the guard end or stop, so that another one takes its place at once.

A guard that was killed, or stopped by SIGSTOP, guards nothing; the next process that is opened would notice, but it may never come. A
pidfd tells of an end and not of a stop. So the thread waits for the process as its parent does, without reaping it, in a system call
that blocks: hence a thread of its own.

A guard that does not last is replaced less and less eagerly. Whether to give up is for `guardian` to say.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_LASTED = 1.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0

_CHANGES = os.WEXITED | os.WSTOPPED | os.WNOWAIT if hasattr(os, "waitid") else 0


def has_stopped(pid: int) -> bool:
    """Whether this child of ours was stopped, and not continued since."""
    try:
        return bool(_CHANGES) and os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def watch(pid: Callable[[], int | None], mend: Callable[[], object]) -> threading.Thread | None:
    """Call `mend` in a thread of its own whenever the process `pid()` ends or stops; until there is none. None if that cannot be."""
    if not _CHANGES:
        return None
    thread = threading.Thread(target=_watch, args=(pid, mend), name="quiesce-watchdog-guard", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # interpreter shutting down, or no more threads: go on unwatched
        return None
    return thread


def _watch(pid: Callable[[], int | None], mend: Callable[[], object]) -> None:
    pause = 0.0
    while (watched := pid()) is not None:
        began = time.monotonic()
        try:
            os.waitid(os.P_PID, watched, _CHANGES)
        except ChildProcessError:
            pass  # somebody else has reaped it
        if time.monotonic() - began > _LASTED:
            pause = 0.0
        time.sleep(pause)
        mend()
        pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
