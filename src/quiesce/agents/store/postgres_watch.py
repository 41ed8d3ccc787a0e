"""The one thread that looks at the database for those who watch its logs.

Invariants
- There are a thread and a session only while something is watched.
- Writers send a hint after their commit (`pg_notify`). Every hint may be lost, and anyone who can connect may
  send one: it only makes this thread look at a log that is watched here. One statement every two seconds
  finds what no hint has told of. What this store has written itself, it is told directly.
- An error here is not reported: a caller who reads or writes gets it. The watch tries again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import psycopg

from quiesce.kernel.inner import run_in_thread

from .contract import OnEvents
from .events import Event
from .postgres_database import channel_of, digest_of, digests_in, read_events
from .postgres_schema import prepare_schema, statement_for
from .postgres_server import Connection, Server, Waker
from .watch import Watch

POLL_SECONDS = 2.0
_LONGEST_PAUSE = 2.0  # between two attempts to connect
_MOVED = """SELECT conversation_id, last_seq FROM {s}.quiesce_conversations
    WHERE conversation_id = ANY(%s)"""


class _Watched(Watch):
    """A watch of one conversation."""

    __slots__ = ("conversation_id", "digest")

    def __init__(
        self, conversation_id: str, read: Callable[[int], list[Event]], on_events: OnEvents, after: int
    ) -> None:
        super().__init__(read, on_events, after)
        self.conversation_id = conversation_id
        self.digest = digest_of(conversation_id)


class PostgresWatcher:
    """Watches logs in one schema of a server."""

    def __init__(self, server: Server, schema: str) -> None:
        self._server = server
        self._schema = schema
        self._lock = threading.Lock()
        self._watches: list[_Watched] = []
        # Conversations to look at; all of them if it is not known which.
        self._hinted: set[str] = set()
        self._all = True
        # Set while no thread is at work.
        self._idle = threading.Event()
        self._idle.set()
        self._thread: int | None = None
        self._waker: Waker | None = None
        self._closed = False
        # Of the thread, except for a close.
        self._connection: Connection | None = None

    def watch(self, conversation_id: str, on_events: OnEvents, after: int) -> Callable[[], None]:
        """Hand over the events after number `after`; returns a function that ends this."""
        watch = _Watched(conversation_id, partial(self._read, conversation_id), on_events, after)
        with self._lock:
            if self._closed:
                return watch.end
            self._watches.append(watch)
            self._hinted.add(watch.digest)
            is_first = self._idle.is_set()
            if is_first:
                self._waker = Waker()
                self._idle.clear()
            assert self._waker is not None
            self._waker.wake()
        if is_first:
            run_in_thread("quiesce-store-watch", self._work)
        return partial(self._end, watch)

    def _end(self, watch: _Watched) -> None:
        watch.end()
        with self._lock:
            self._watches = [one for one in self._watches if one is not watch]
            if self._waker is not None:
                self._waker.wake()

    def look(self, conversation_id: str) -> None:
        """This store has written to that conversation."""
        if not self._watches:
            return
        with self._lock:
            if self._waker is not None:
                self._hinted.add(digest_of(conversation_id))
                self._waker.wake()

    def close(self) -> None:
        """End all watches. Does not wait."""
        with self._lock:
            self._closed = True
            for watch in self._watches:
                watch.end()
            self._watches = []
            if self._connection is not None:
                self._connection.is_unwanted = True
            if self._waker is not None:
                self._waker.wake()

    def wait_closed(self) -> None:
        """Wait until the session is closed and the thread has ended, for as long as the server may take."""
        if self._thread != threading.get_ident():
            self._idle.wait(self._server.timeout + 2)

    # In the thread

    def _work(self) -> Callable[[], object]:
        self._thread = threading.get_ident()
        waker = self._waker
        assert waker is not None
        pause, poll_at = 0.05, 0.0
        while True:
            with self._lock:
                if not self._watches:
                    self._disconnect()
                    self._waker = self._thread = None
                    waker.close()
                    self._idle.set()
                    return _nothing
                watches = list(self._watches)
                waker.clear()
                hinted, self._hinted = self._hinted, set()
                everything, self._all = self._all, False
            try:
                connection = self._connected(waker)
                for watch in watches:
                    if everything or watch.digest in hinted:
                        watch.look()
                if time.monotonic() >= poll_at:
                    self._poll(connection, watches)
                    poll_at = time.monotonic() + POLL_SECONDS
                pause = 0.05
                self._wait(connection, waker, poll_at)
            except Exception:  # a thread that ended here would take every watch with it
                self._disconnect()
                # What was to be looked at still is; a hint that came while nothing listened is lost.
                self._all = True
                self._pause(waker, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _connected(self, waker: Waker) -> Connection:
        if self._connection is None:
            connection = self._server.connect("watch")
            connection.waker = waker
            with self._lock:
                self._connection = connection
                connection.is_unwanted = self._closed
            prepare_schema(connection, self._schema, self._server.name)
            connection.add_notify_handler(self._hear)
            connection.execute(statement_for(self._schema, f"LISTEN {channel_of(self._schema)}"))
            # It listens from now on: what came before may have been missed.
            with self._lock:
                self._all = True
                waker.wake()
        return self._connection

    def _poll(self, connection: Connection, watches: list[_Watched]) -> None:
        ids = list({watch.conversation_id for watch in watches})
        found = connection.execute(statement_for(self._schema, _MOVED), (ids,)).fetchall()
        last: dict[str, int] = dict(found)
        for watch in watches:
            if last.get(watch.conversation_id, 0) > watch.position:
                watch.look()

    def _wait(self, connection: Connection, waker: Waker, until: float) -> None:
        while not self._hinted and not self._all:
            left = until - time.monotonic()
            if left <= 0:
                return
            if connection.is_readable_before(waker, left):
                # psycopg hands notifications out when it reads; this does nothing but read.
                connection.pgconn.consume_input()
                while (notify := connection.pgconn.notifies()) is not None:
                    self._take_hint(
                        notify.extra.decode("utf-8", "replace"), notify.relname.decode("utf-8", "replace")
                    )
            else:
                return

    def _hear(self, notify: psycopg.Notify) -> None:
        """A hint that came together with an answer."""
        self._take_hint(notify.payload, notify.channel)

    def _take_hint(self, payload: str, channel: str) -> None:
        if channel != channel_of(self._schema):
            return
        digests = digests_in(payload)
        with self._lock:
            if digests is None:
                self._all = True
            else:
                ours = {watch.digest for watch in self._watches}
                self._hinted |= ours.intersection(digests)

    def _read(self, conversation_id: str, after: int) -> list[Event]:
        assert self._connection is not None
        return read_events(self._connection, self._schema, self._server.name, conversation_id, after)[0]

    def _pause(self, waker: Waker, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._watches and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _nothing() -> None:
    """Deliver nothing."""
