"""Tells threads that are at work from threads that wait in their pool for the next call.

A pool thread outlives the run that created it, on purpose, and may work for the next run. So a thread is judged by what
it does, not by when it was created. Its position in the code shows that, except for one moment: a thread that has just
been handed work looks idle until it gets a processor. The pool of quiesce's kernel marks even that, by the thread's
name.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Container
from functools import lru_cache
from types import CodeType, FrameType

from quiesce.audit.model import Chain, stack_of

# Where a pool thread waits for work: the file, the function, and the method that the function has called. What that
# method calls in turn does not matter.
_POOLS = (
    (os.path.join("concurrent", "futures", "thread.py"), "_worker", "get"),
    (os.path.join("anyio", "_backends", "_asyncio.py"), "WorkerThread.run", "get"),
    (os.path.join("trio", "_core", "_thread_cache.py"), "WorkerThread._work", "acquire"),
)
# quiesce's own threads are renamed before they are handed work. Their position has to be checked as well: such a thread
# takes its idle name back before it delivers the result.
_OUR_POOLS = (
    (os.path.join("quiesce", "kernel", "threads", "idle_threads.py"), "_IdleThread._live", "acquire"),
    (os.path.join("quiesce", "kernel", "scope", "blocked_loop.py"), "_look_on", ""),
    (os.path.join("quiesce", "kernel", "process", "guardian_watch.py"), "_watch", ""),
)
_IDLE_NAMES = ("quiesce-idle", "quiesce-watchdog", "quiesce-watchdog-guard")


def busy_threads(excluding: Container[threading.Thread] = ()) -> list[tuple[threading.Thread, Chain]]:
    """The threads at work, except `excluding` and the caller, each with its frames, innermost first."""
    # `threading.enumerate()` would take a lock and build a list; most runs have one thread only.
    active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    if len(active) == 1:
        return []
    here = threading.get_ident()
    others = {i: thread for i, thread in list(active.items()) if i != here and thread not in excluding}
    frames = sys._current_frames()
    return [
        (thread, stack_of(frame))
        for ident, thread in sorted(others.items())
        if not _is_idle(thread, frame := frames.get(ident))
    ]


def is_surely_idle(thread: threading.Thread) -> bool:
    """Whether a thread is idle for certain: it has not been handed work, not even a moment ago."""
    return thread.name in _IDLE_NAMES


def waits_for_another(stack: Chain) -> bool:
    """Whether a thread with these frames, innermost first, waits for an event, a queue, a result or another thread."""
    if not stack:
        return False
    code, offset = stack[0]
    return code.co_filename == threading.__file__ and called_at(code, offset) in ("acquire", "join")


def _is_idle(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Whether a thread waits for work in its pool."""
    while frame is not None:
        code = frame.f_code
        for file, function, waits_in in _POOLS:
            if code.co_qualname == function and code.co_filename.endswith(file):
                return called_at(code, frame.f_lasti) == waits_in
        for file, function, waits_in in _OUR_POOLS:
            if code.co_qualname == function and code.co_filename.endswith(file):
                return is_surely_idle(thread) and waits_in in ("", called_at(code, frame.f_lasti))
        frame = frame.f_back
    return False


@lru_cache(maxsize=256)
def called_at(code: CodeType, offset: int) -> str:
    """The name of the method that the code is calling at this offset; "" if it is not in a call."""
    # A frame does not say which method it is in the middle of calling when that method is written in C (a lock's
    # `acquire`), so the name is read from the instructions before the call.
    name, is_call = "", False
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:
            break
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            name = instruction.argval
        is_call = instruction.opname.startswith("CALL")
    return name if is_call else ""
