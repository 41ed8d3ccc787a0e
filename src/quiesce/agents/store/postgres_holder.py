"""How other processes know that the holder of a lease lives: an advisory lock that its store holds.

Invariants
- The lock is held by a session of its own, and ends with it: when the process exits, however that happens,
  the server releases the lock at once; when its host vanishes, after about 20 seconds without an answer to a
  keepalive.
- One lock per store, under a random number that the rows of its leases name: the locks of a server are few.
- It is taken before the first lease is granted, and its session then stays open until the store is closed. A
  thread looks after it while there are leases.
- If the session breaks, a thread opens another one at once, ends the old one if the server still has it, and
  takes the same lock again. Until then others take the holder for dead, and may be granted its leases; the
  epoch of these protects the log from two writers.
- A process that stands still (SIGSTOP, a debugger) counts as alive: its session does. To take over from it is
  a decision that somebody makes elsewhere: a lease with an `epoch`.
"""

from __future__ import annotations

import secrets
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from quiesce.kernel.inner import run_in_thread

from .contract import StoreError
from .postgres_server import LOCK_SETTINGS, Connection, Selector, Server, Waker, end_backend

_LOOK_SECONDS = 30.0  # between two looks at the session, should nothing be heard of it
_LONGEST_PAUSE = 1.0  # between two attempts to take the lock again


class HolderLock:
    """The lock of one store."""

    def __init__(self, server: Server) -> None:
        self._server = server
        #: Under which number: never 0, and never the number of another store, as far as chance goes.
        self.number = secrets.randbelow(2**63 - 1) + 1
        self._changed = threading.Condition()
        # One entry for each lease: a finalizer adds and removes without a lock.
        self._leases: deque[None] = deque()
        self._is_held = False
        self._is_kept = False  # there is a thread, or is about to be one
        self._lost_at = 0.0
        self._failure: BaseException | None = None
        self._closed = False
        self._connection: Connection | None = None
        self._waker: Waker | None = None
        self._backend: tuple[int, object] | None = None

    def add_lease(self) -> None:
        """Hold the lock, for one more lease. Waits until it is held; raises if it cannot be had in time."""
        with self._changed:
            self._check_open()
            self._leases.append(None)
            is_first = not self._is_kept
            self._is_kept = True
        try:
            if is_first:
                self._start()
            else:
                self._wait_until_held()
        except BaseException:
            self.drop_lease()
            raise

    def drop_lease(self) -> None:
        """One lease has ended."""
        self._leases.pop()
        if not self._leases and self._waker is not None:
            self._waker.wake()

    def close(self) -> None:
        """Release the lock, and with it every lease. Does not wait."""
        with self._changed:
            self._closed = True
            if self._connection is not None:
                self._connection.is_unwanted = True
            if self._waker is not None:
                self._waker.wake()
            self._changed.notify_all()
            if not self._is_kept:
                self._let_go(self._waker)

    def wait_closed(self) -> None:
        """Wait until the session is closed and the thread has ended, for as long as the server may take."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_kept, self._server.timeout + 2)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store of {self._server.name} was closed")

    def _wait_until_held(self) -> None:
        with self._changed:
            # Those who come one after the other wait for it once, and not each in turn.
            left = max(0.0, self._server.timeout - (time.monotonic() - self._lost_at))
            self._changed.wait_for(lambda: self._is_held or self._closed, left)
            self._check_open()
            if not self._is_held:
                raise StoreError(
                    f"{self._server.name}: the lock that shows that this store lives was lost, and cannot be taken "
                    f"again yet ({'no answer' if self._failure is None else self._failure}): try again"
                )

    def _start(self) -> None:
        try:
            if self._waker is None:
                self._waker = Waker()
            if self._connection is None or self._connection.has_ended():
                self._let_go(None)
                self._take(self._waker)
            run_in_thread("quiesce-store-lease", self._keep)
        except BaseException:
            with self._changed:
                self._let_go(self._waker)
                self._is_kept = False
                self._changed.notify_all()
            raise

    # In the thread

    def _keep(self) -> Callable[[], None]:
        waker = self._waker
        assert waker is not None
        while True:
            self._wait(waker)
            with self._changed:
                waker.clear()
                if not self._closed and not self._leases:
                    self._is_kept = False
                    self._changed.notify_all()
                    return _nothing
            if self._closed:
                self._unlock()
                with self._changed:
                    self._let_go(waker)
                    self._is_kept = False
                    self._changed.notify_all()
                return _nothing
            if self._connection is None or self._connection.has_ended():
                self._take_again(waker)

    def _unlock(self) -> None:
        """Release the lock, so that the leases have ended when `close` returns: a server ends a session a bit later."""
        connection = self._connection
        if connection is not None and not connection.has_ended():
            with suppress(Exception):
                connection.execute("SELECT pg_advisory_unlock_all()")

    def _wait(self, waker: Waker) -> None:
        connection = self._connection
        with Selector() as selector:
            selector.register(waker, selectors.EVENT_READ)
            if connection is not None and not connection.closed:
                selector.register(connection.pgconn.socket, selectors.EVENT_READ)
            selector.select(_LOOK_SECONDS)

    def _take_again(self, waker: Waker) -> None:
        pause = 0.02
        self._lost_at = time.monotonic()
        while self._leases and not self._closed:
            self._let_go(None)
            try:
                self._take(waker)
                return
            except Exception as error:
                with self._changed:
                    self._failure = error
                    self._changed.wait_for(lambda: self._closed, pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _take(self, waker: Waker) -> None:
        connection = self._server.connect("lease", extra=LOCK_SETTINGS)
        connection.waker = waker
        with self._changed:
            self._connection = connection
            connection.is_unwanted = self._closed
        # If the server has not noticed that the old session broke, that still holds the lock.
        if self._backend is not None and not end_backend(connection, self._backend, self._server.timeout):
            raise StoreError(
                f"{self._server.name}: the lock of this store is still held by a session that broke"
            )
        # Those who ask whether it is free hold it for a moment.
        for _ in range(50):
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", (self.number,)).fetchone()
            if row is not None and row[0]:
                break
            time.sleep(0.01)
        else:
            raise StoreError(f"{self._server.name}: the lock of this store is held by another session")
        with self._changed:
            self._backend = connection.backend
            self._is_held = True
            self._failure = None
            self._changed.notify_all()

    def _let_go(self, waker: Waker | None) -> None:
        connection, self._connection = self._connection, None
        self._is_held = False
        if connection is not None:
            connection.close()
        if waker is not None:
            self._waker = None
            waker.close()


def _nothing() -> None:
    """Deliver nothing."""
