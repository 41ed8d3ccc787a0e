"""Delays the cancel of a handler that waits for a thread until the thread has ended.

Sync endpoints run in anyio's worker threads. anyio shields the wait for a thread, and on trio that is enough; but the
cancel of an asyncio task goes through the shield: the task would end, its place among the forty that may run would
become free, and the thread would keep running. Clients that connect and disconnect would fill the process with
unknown threads.

So on asyncio the cancel of a handler is held back while a thread runs for it. The token has been cancelled and tells
the thread; a thread that does not check it keeps its handler, which the report names when the grace has expired.

anyio tells which tasks wait for a thread (the borrowers of its limiter), but not when that ends. Hence the check
every few milliseconds, and another whenever the handler calls `receive` or `send`: a handler that goes from thread to
thread, as a sync generator does, might never be seen between two of them.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import anyio.to_thread

from quiesce import Handle
from quiesce.kernel.inner import AsyncioHandle, Backend, Rung

CHECK_EVERY = 0.01  # seconds


class ThreadHold:
    """Holds back the cancel of one handler while a thread runs for it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._is_holding = False
        # On trio, anyio's shield holds the cancel back by itself.
        if isinstance(handle, AsyncioHandle):
            handle._on_stop = self._hold
            self._limiter = _limiter_of(handle._core.backend)

    def _hold(self, rung: Rung) -> bool:
        if not self._is_in_a_thread():
            return False
        if not self._is_holding:
            self._is_holding = True
            self._check_later()
        return True

    def check(self) -> None:
        """Deliver the cancel that was held back, if the handler is not in a thread now."""
        if self._is_holding and not self._is_in_a_thread():
            self._is_holding = False
            if not self._handle.done:
                self._handle._deliver_cancel()

    def _check_later(self) -> None:
        backend = self._handle._core.backend
        backend.call_at(backend.now() + CHECK_EVERY, self._check_again)

    def _check_again(self) -> None:
        self.check()
        if self._is_holding:
            self._check_later()

    def _is_in_a_thread(self) -> bool:
        handle = self._handle
        assert isinstance(handle, AsyncioHandle)
        return handle._task in self._limiter.statistics().borrowers


# By event loop, because anyio finds the limiter through the current task, and a stop may come from a timer, without
# one.
_limiters: WeakKeyDictionary[Backend, anyio.CapacityLimiter] = WeakKeyDictionary()


def _limiter_of(backend: Backend) -> anyio.CapacityLimiter:
    limiter = _limiters.get(backend)
    if limiter is None:
        limiter = _limiters[backend] = anyio.to_thread.current_default_thread_limiter()
    return limiter
