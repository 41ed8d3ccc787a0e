"""The one thread that looks at a SQLite file for those who watch its logs.

Invariants
- There is a thread only while something is watched.
- It has a connection of its own, and only reads. `PRAGMA data_version` says within microseconds whether another
  connection has committed anything; no table is read before that. It asks every 50 ms, and at once after a
  commit of its own store. SQLite has nothing that would tell it about commits of other processes.
- An error here is not reported: whoever reads or writes the file next gets it. The watch tries again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import quote

from quiesce.kernel.inner import run_in_thread

from .contract import OnEvents, StoreError
from .events import Event
from .sqlite_file import read_events
from .watch import Watch

POLL_SECONDS = 0.05
_CLOSE_SECONDS = 1.0


class Watcher:
    """Watches logs of the file at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.RLock()  # the garbage collector may end a watch in a thread that holds it
        self._watches: list[Watch] = []
        self._wake = threading.Event()
        # Set while no thread is at work.
        self._idle = threading.Event()
        self._idle.set()
        self._thread: int | None = None
        self._closed = False
        # Of the thread.
        self._connection: sqlite3.Connection | None = None
        self._seen_version: int | None = None

    def watch(self, conversation_id: str, on_events: OnEvents, after: int) -> Callable[[], None]:
        """Hand over the events after number `after`; returns a function that ends this."""
        watch = Watch(partial(self._read, conversation_id), on_events, after)
        with self._lock:
            if self._closed:
                return watch.end
            self._watches.append(watch)
            is_first = self._idle.is_set()
            self._idle.clear()
        self._wake.set()
        if is_first:
            run_in_thread("quiesce-store-watch", self._work)
        return partial(self._end, watch)

    def _end(self, watch: Watch) -> None:
        watch.end()
        with self._lock:
            self._watches = [one for one in self._watches if one is not watch]
        self._wake.set()

    def look(self) -> None:
        """There is something new, perhaps in a watched log."""
        if self._watches:
            self._wake.set()

    def close(self) -> None:
        """End all watches, and wait until the file is not used for them any more."""
        with self._lock:
            self._closed = True
            for watch in self._watches:
                watch.end()
            self._watches = []
        self._wake.set()
        if self._thread != threading.get_ident():
            self._idle.wait(_CLOSE_SECONDS)

    # In the thread

    def _work(self) -> Callable[[], object]:
        self._thread = threading.get_ident()
        while True:
            was_woken = self._wake.wait(POLL_SECONDS)
            self._wake.clear()
            with self._lock:
                watches = list(self._watches)
                if not watches:
                    self._disconnect()
                    self._thread = None
                    self._idle.set()
                    return _nothing
            try:
                if self._has_changed() or was_woken:
                    for watch in watches:
                        with suppress(StoreError):  # a damaged event stops its own conversation alone
                            watch.look()
            except sqlite3.Error:
                self._disconnect()

    def _has_changed(self) -> bool:
        if self._connection is None:
            self._connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
            )
            self._seen_version = None
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        changed, self._seen_version = version != self._seen_version, version
        return changed

    def _read(self, conversation_id: str, after: int) -> list[Event]:
        assert self._connection is not None
        return read_events(self._connection, self._path, conversation_id, after)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _nothing() -> None:
    """Deliver nothing."""
