"""Which threads are at work, and which merely wait in their pool for the next call.

A thread of a pool outlives the run that it was made in, on purpose, and may be given work by the next. So a thread is judged
by what it does, not by when it was made. Where it stands says that, except for one moment: a thread that has just been
given work looks idle until it has had its turn. The kernel's pool tells that too, by the thread's name.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Container

from ._places import Chain, stack_of

# Where a thread of a pool waits for work, as its owner wants it to: the file, and the function.
_POOLS = (
    (os.path.join("concurrent", "futures", "thread.py"), "_worker"),
    (os.path.join("anyio", "_backends", "_asyncio.py"), "WorkerThread.run"),
    (os.path.join("trio", "_core", "_thread_cache.py"), "WorkerThread._work"),
    (os.path.join("quiesce", "kernel", "_idle_threads.py"), "_IdleThread._live"),
    (os.path.join("quiesce", "kernel", "_watchdog.py"), "_look_on"),
)
_WAITING = (os.sep + "threading.py", os.sep + "queue.py")
_SURE = ("quiesce-idle", "quiesce-watchdog")  # called so only while they have nothing to do for anybody


def busy_threads(besides: Container[threading.Thread] = ()) -> list[tuple[threading.Thread, Chain]]:
    """The threads that are at work, besides these and the caller, and where each stands, innermost first."""
    active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    if len(active) == 1:
        return []
    here = threading.get_ident()
    others = {i: thread for i, thread in list(active.items()) if i != here and thread not in besides}
    frames = sys._current_frames()
    stacks = [(thread, stack_of(frames.get(ident))) for ident, thread in sorted(others.items())]
    return [(thread, stack) for thread, stack in stacks if not _is_idle(thread, stack)]


def is_surely_idle(thread: threading.Thread) -> bool:
    """Whether nobody has given it work, not even a moment ago."""
    return thread.name in _SURE


def _is_idle(thread: threading.Thread, stack: Chain) -> bool:
    """Whether a thread waits in its pool. A builtin that it runs for somebody has no frame of its own."""
    waits = False
    for code, _ in stack:
        if code.co_filename.endswith(_WAITING):
            waits = True
            continue
        for file, function in _POOLS:
            if code.co_filename.endswith(file) and code.co_qualname == function:
                if file.startswith("quiesce"):
                    return is_surely_idle(thread)
                return waits or function != "WorkerThread.run"  # that one also makes the calls
        return False
    return False
