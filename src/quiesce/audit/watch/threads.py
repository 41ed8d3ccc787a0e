"""Which threads are at work, and which merely wait in their pool for the next call.

A thread of a pool outlives the run that it was made in, on purpose, and may be given work by the next. So a thread is judged
by what it does, not by when it was made. Where it stands says that, except for one moment: a thread that has just been
given work looks idle until it has had its turn. The kernel's pool tells that too, by the thread's name.
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

# Where a thread of a pool waits for work, as its owner wants it to: the file, the function, and the method that it has
# called. What that method is wrapped in does not matter, and neither does what it calls.
_POOLS = (
    (os.path.join("concurrent", "futures", "thread.py"), "_worker", "get"),
    (os.path.join("anyio", "_backends", "_asyncio.py"), "WorkerThread.run", "get"),
    (os.path.join("trio", "_core", "_thread_cache.py"), "WorkerThread._work", "acquire"),
)
# These tell by the thread's name, from the moment when it is given work; until it has told of its end it is not waiting again.
_OUR_POOLS = (
    (os.path.join("quiesce", "kernel", "threads", "idle_threads.py"), "_IdleThread._live", "acquire"),
    (os.path.join("quiesce", "kernel", "scope", "blocked_loop.py"), "_look_on", ""),
)
_SURE = ("quiesce-idle", "quiesce-watchdog")  # called so only while they have nothing to do for anybody


def busy_threads(besides: Container[threading.Thread] = ()) -> list[tuple[threading.Thread, Chain]]:
    """The threads that are at work, besides these and the caller, and where each stands, innermost first."""
    active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    if len(active) == 1:
        return []
    here = threading.get_ident()
    others = {i: thread for i, thread in list(active.items()) if i != here and thread not in besides}
    frames = sys._current_frames()
    return [
        (thread, stack_of(frame))
        for ident, thread in sorted(others.items())
        if not _is_idle(thread, frame := frames.get(ident))
    ]


def is_surely_idle(thread: threading.Thread) -> bool:
    """Whether nobody has given it work, not even a moment ago."""
    return thread.name in _SURE


def waits_for_another(stack: Chain) -> bool:
    """Whether a thread that stands here, innermost first, waits for an event, a queue, a result or the end of a thread."""
    if not stack:
        return False
    code, offset = stack[0]
    return code.co_filename == threading.__file__ and called_at(code, offset) in ("acquire", "join")


def _is_idle(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Whether a thread waits in its pool."""
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
    """The name of the method that the code has called at this offset; "" if it has called none."""
    name, is_call = "", False
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:
            break
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            name = instruction.argval
        is_call = instruction.opname.startswith("CALL")
    return name if is_call else ""
