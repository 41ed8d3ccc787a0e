"""A handler that waits for a thread is cancelled when the thread has ended.

Sync endpoints run in anyio's worker threads. anyio shields the wait for a thread, and trio keeps to that; but the cancel
of an asyncio task goes through the shield: the task would be gone, its place among the forty that may run would be free,
and the thread would run on. Clients that come and go would fill the process with threads that nobody knows of.

So on asyncio the cancel of a handler is held back while a thread runs for it. The token has been cancelled, and tells the
thread; a thread that does not look at it keeps its handler, which the report names when the grace is over.

anyio says who waits for a thread (the borrowers of its limiter), but not when that is over. Hence the second look, every
few milliseconds; and one whenever the handler comes by itself, because one that goes from thread to thread, as a
sync generator does, might never be seen between two.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import anyio.to_thread

from quiesce import Handle
from quiesce.kernel.inner import AsyncioHandle, Backend, Rung

LOOK_AGAIN = 0.01  # seconds


class ThreadHold:
    """Holds back the cancel of one handler while a thread runs for it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._is_holding = False
        if isinstance(handle, AsyncioHandle):  # trio holds it back by itself
            handle._on_stop = self._hold
            self._limiter = _limiter_of(handle._core.backend)

    def _hold(self, rung: Rung) -> bool:
        if not self._is_in_a_thread():
            return False
        if not self._is_holding:
            self._is_holding = True
            self._look_later()
        return True

    def look(self) -> None:
        """If the handler is seen outside of a thread, what was held back arrives at its next await."""
        if self._is_holding and not self._is_in_a_thread():
            self._is_holding = False
            if not self._handle.done:
                self._handle._deliver_cancel()

    def _look_later(self) -> None:
        backend = self._handle._core.backend
        backend.call_at(backend.now() + LOOK_AGAIN, self._look_again)

    def _look_again(self) -> None:
        self.look()
        if self._is_holding:
            self._look_later()

    def _is_in_a_thread(self) -> bool:
        handle = self._handle
        assert isinstance(handle, AsyncioHandle)
        return handle._task in self._limiter.statistics().borrowers


# anyio looks one up by the task at hand, and a stop may come from a timer, where there is none.
_limiters: WeakKeyDictionary[Backend, anyio.CapacityLimiter] = WeakKeyDictionary()


def _limiter_of(backend: Backend) -> anyio.CapacityLimiter:
    limiter = _limiters.get(backend)
    if limiter is None:
        limiter = _limiters[backend] = anyio.to_thread.current_default_thread_limiter()
    return limiter
