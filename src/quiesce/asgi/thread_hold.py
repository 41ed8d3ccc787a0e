"""Delays the cancel of a handler that waits for a thread until the thread has ended.

Sync endpoints run in anyio's worker threads. anyio shields the wait for a thread, and on trio that is enough.
On asyncio a shield keeps only the first cancel of a stop out: with the second the handler would end, its
place among the forty that may run would become free, and the thread would keep running. Clients that connect
and disconnect would fill the process with unknown threads.

So on asyncio the cancel of a handler waits while a thread runs for it. The token has been cancelled and tells
the thread; a thread that does not check it keeps its handler, which the report names when the grace has
expired.

anyio tells which tasks wait for a thread (the borrowers of its limiter), but not when that ends. Hence the
check every few milliseconds, and another whenever the handler calls `receive` or `send`: a handler that goes
from thread to thread, as a sync generator does, might never be seen between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import anyio.to_thread

from quiesce import Handle
from quiesce.kernel.inner import Backend, DelayedCancel, current_backend

# By event loop, because anyio finds the limiter through the current task, and a stop may come from a timer,
# without one.
_limiters: WeakKeyDictionary[Backend, anyio.CapacityLimiter] = WeakKeyDictionary()


def hold_while_in_thread(handle: Handle) -> Callable[[], object]:
    """Delay the cancel of `handle` while a thread runs for it; return a function that checks whether it is over."""
    backend = current_backend()
    if backend.name != "asyncio":
        return lambda: None
    limiter = _limiters.get(backend)
    if limiter is None:
        limiter = _limiters[backend] = anyio.to_thread.current_default_thread_limiter()
    return DelayedCancel(handle, lambda task: task in limiter.statistics().borrowers).check
