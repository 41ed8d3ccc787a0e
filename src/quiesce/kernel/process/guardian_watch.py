"""A thread that notices when the guard process exits or is stopped, so that it is replaced at once.

A guard that was killed, or stopped by SIGSTOP, guards nothing. Opening the next process would notice, but
there may never be one. A pidfd reports an exit but not a stop. So the thread waits for the guard as a parent
does, without reaping it. That system call blocks: hence a thread of its own.

A guard that does not last is replaced after growing pauses. `guardian` decides when to give up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from quiesce.kernel.base import KernelThread

_HEALTHY_LIFE = 1.0  # seconds: a guard that lasted longer is replaced without a pause
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0

_CHANGES = os.WEXITED | os.WSTOPPED | os.WNOWAIT if hasattr(os, "waitid") else 0


def has_stopped(pid: int) -> bool:
    """Whether our child `pid` is stopped: SIGSTOP, and no SIGCONT since."""
    try:
        return bool(_CHANGES) and os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def watch(guard_pid: Callable[[], int | None], replace: Callable[[], object]) -> threading.Thread | None:
    """Call `replace` in a new thread whenever the process `guard_pid()` exits or stops, until that is None.

    Returns the thread; None where the system or the interpreter does not allow one.
    """
    if not _CHANGES:
        return None
    thread = KernelThread("quiesce-watchdog-guard", _watch, guard_pid, replace)
    try:
        thread.start()
    except RuntimeError:  # interpreter shutting down, or no more threads: go on unwatched
        return None
    return thread


def _watch(guard_pid: Callable[[], int | None], replace: Callable[[], object]) -> None:
    pause = 0.0
    while (pid := guard_pid()) is not None:
        began = time.monotonic()
        try:
            os.waitid(os.P_PID, pid, _CHANGES)
        except ChildProcessError:
            pass  # a program that waits for any child has reaped it: it has exited all the same
        if time.monotonic() - began > _HEALTHY_LIFE:
            pause = 0.0
        time.sleep(pause)
        replace()
        pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
