"""One PostgreSQL server as a store reaches it: connections whose every wait is bounded.

psycopg's synchronous API, in threads of the store: so the store works on asyncio, on trio and in plain
threads, goes on while an event loop is blocked, and takes each URL and option that libpq takes.

Invariants
- `Connection.wait` is the one place where psycopg waits for an answer. After `timeout` seconds in which
  nothing came and nothing could be sent, the connection is closed and `ServerHung` is raised. It counts
  silence and not the whole time, so that a long log may take long to read.
- Connecting is bounded by libpq's `connect_timeout`, which is 2 seconds at least, and counts for each host of
  the URL.
- The password is in no message: a server is named by its host, port and database.
- A connection is prepared before it is used: settings that a role or a database may have, and that the store
  could not keep its promises under, are overridden for this session.
"""

from __future__ import annotations

import math
import selectors
import socket
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.waiting import Ready

from .contract import StoreError

# Not epoll, which takes a file descriptor for each wait. Windows has no poll.
Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.DefaultSelector)

# The server's own bounds end before ours: what the server has refused is known, what we gave up on is in doubt.
_SERVER_SHARE = 0.75

# By name. What this server does not know (they came with versions 12 to 14) is left out.
_SETTINGS = {
    "default_transaction_isolation": "read committed",  # `quiesce_write` looks at a row again after it has waited for it
    "search_path": "pg_catalog",  # all names are written with their schema; nobody else's function is called by chance
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_connection_check_interval": "1000",  # a backend that waits for a lock notices that we went away
}
# So that a host that vanished loses its locks after about 20 seconds.
LOCK_SETTINGS = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


class ServerHung(Exception):
    """The server was silent for too long; the connection was closed."""


class Woken(Exception):
    """The wait was ended from another thread; the connection was closed."""


class Waker:
    """Ends a wait in another thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Readable when it was woken."""
        return self._reader.fileno()

    def wake(self) -> None:
        """End the wait, or the next one. Callable from any thread, also after `close`."""
        with suppress(OSError):
            self._writer.send(b"!")

    def clear(self) -> None:
        """Forget that it was woken."""
        with suppress(OSError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A session whose waits are bounded."""

    timeout = 10.0
    #: Which backend it is: process id and start, as pids are used again.
    backend: tuple[int, Any] = (0, None)
    #: Ends its waits, with `Woken`, if `is_unwanted` is set.
    waker: Waker | None = None
    is_unwanted = False

    def hear_last_words(self) -> None:
        """Notice that the server says that it ends the session, although nothing was asked."""
        self.last_words: list[str] = []
        self.add_notice_handler(
            partial(_note_last_words, self.last_words)
        )  # not a method: it would keep this object

    def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        """Drive one exchange with the server; `ServerHung` if the server is silent for too long."""
        try:
            wanted = next(gen)
            while True:
                gen_ready = self._wait_for(wanted, self.timeout if timeout is None else timeout)
                if gen_ready is None:
                    self.close()
                    raise ServerHung(f"the server was silent for {self.timeout:g} s")
                wanted = gen.send(gen_ready)
        except StopIteration as ended:
            return ended.value

    def _wait_for(self, wanted: Any, seconds: float) -> Any:
        with Selector() as selector:
            selector.register(self.pgconn.socket, int(wanted))
            if self.waker is not None:
                selector.register(self.waker, selectors.EVENT_READ, self.waker)
            while True:
                found = selector.select(seconds)
                for key, events in found:
                    if key.data is None:
                        return Ready(events)
                if not found:
                    return None
                if self.is_unwanted:
                    self.close()
                    raise Woken
                assert self.waker is not None
                selector.unregister(self.waker)

    def is_readable(self) -> bool:
        """Whether something has come from the server."""
        with Selector() as selector:
            selector.register(self.pgconn.socket, selectors.EVENT_READ)
            return bool(selector.select(0))

    def is_readable_before(self, waker: Waker, seconds: float) -> bool:
        """Wait until something has come from the server; False if it was woken before that, or the time has passed."""
        with Selector() as selector:
            selector.register(self.pgconn.socket, selectors.EVENT_READ)
            selector.register(waker, selectors.EVENT_READ, waker)
            found = selector.select(seconds)
        return bool(found) and all(key.data is None for key, _ in found)

    def has_ended(self) -> bool:
        """Whether the server has closed it, as far as is known here without asking.

        What is sent to a connection that was closed already is not in doubt.
        """
        if self.closed:
            return True
        try:
            for _ in range(5):  # first the server's last words, then, perhaps later, the end itself
                if not self.is_readable():
                    break
                self.pgconn.consume_input()
                self.pgconn.is_busy()  # to hand out what has come
        except (psycopg.Error, OSError, ValueError):
            return True
        return bool(self.last_words)

    def is_settled(self) -> bool:
        """Whether the server has answered everything that was sent."""
        return not self.closed and self.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE


def _note_last_words(words: list[str], notice: psycopg.errors.Diagnostic) -> None:
    if notice.severity_nonlocalized in ("FATAL", "PANIC"):
        words.append(notice.message_primary or "")


class Server:
    """The server, and the database on it, that a URL names."""

    def __init__(self, url: str, timeout: float) -> None:
        self.timeout = timeout
        try:
            found = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            # Neither the URL nor libpq's words about it: both can contain the password.
            raise ValueError(
                "PostgresStore needs a PostgreSQL URL such as 'postgresql://user@host:5432/database', "
                "or a libpq connection string such as 'host=db dbname=app'; this is neither"
            ) from None
        self._url = url
        host = found.get("host") or found.get("hostaddr") or "this machine"
        port = f":{found['port']}" if found.get("port") else ""
        where = found.get("dbname") or (f"service {found['service']}" if found.get("service") else "")
        #: What it is called in messages.
        self.name = f"PostgreSQL at {host}{port}" + (f", database {where}" if where else "")
        asked = found.get("connect_timeout")
        self._own_bound = int(asked) if asked and str(asked).isdigit() and int(asked) > 0 else None

    @property
    def server_timeout(self) -> float:
        """The seconds after which the server gives up by itself."""
        return self.timeout * _SERVER_SHARE

    def connect(
        self, purpose: str, *, within: float | None = None, extra: dict[str, str] | None = None
    ) -> Connection:
        """Open a session, prepared for use; bounded."""
        bound = max(2, math.ceil(self.timeout if within is None else min(self.timeout, within)))
        conninfo = make_conninfo(
            self._url,
            connect_timeout=bound if self._own_bound is None else min(bound, self._own_bound),
            client_encoding="UTF8",
            application_name=f"quiesce {purpose}",
        )
        connection = Connection.connect(conninfo, autocommit=True)
        connection.timeout = self.timeout
        connection.hear_last_words()
        try:
            self._prepare(connection, extra or {})
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection, extra: dict[str, str]) -> None:
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise StoreError(
                f"{self.name} has the encoding {connection.info.parameter_status('server_encoding')}, and a conversation "
                "may contain any text: give a database with ENCODING 'UTF8'"
            )
        wanted = {**_SETTINGS, "lock_timeout": str(milliseconds(self.server_timeout)), **extra}
        row = connection.execute(
            """WITH settings AS MATERIALIZED (
                SELECT set_config(name, value, false)
                FROM pg_catalog.pg_settings JOIN unnest(%s::text[], %s::text[]) AS wanted (called, value) ON name = called
                WHERE setting IS DISTINCT FROM value
            ), durable AS MATERIALIZED (
                SELECT set_config('synchronous_commit', 'on', false)
                WHERE current_setting('synchronous_commit') = 'off'
            )
            SELECT (SELECT count(*) FROM settings), (SELECT count(*) FROM durable), pg_is_in_recovery(),
                pid, backend_start
            FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid()""",
            (list(wanted), list(wanted.values())),
        ).fetchone()
        assert row is not None
        if row[2]:
            raise StoreError(
                f"{self.name} is a read-only standby: give the primary server; "
                "with several hosts in the URL, add target_session_attrs=read-write"
            )
        connection.backend = row[3], row[4]


def end_backend(connection: Connection, backend: tuple[int, Any], timeout: float) -> bool:
    """End another session of ours, through this one; return whether it has ended.

    What it was doing is then either committed or never will be.
    """
    pid, started = backend
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = %s AND backend_start = %s",
        (pid, started),
    )
    for _ in range(max(1, int(timeout / 0.02))):
        gone = connection.execute(
            "SELECT pg_sleep(0.02) FROM pg_catalog.pg_stat_activity WHERE pid = %s AND backend_start = %s",
            (pid, started),
        ).fetchone()
        if gone is None:
            return True
    return False


def milliseconds(seconds: float) -> int:
    """At least 1: to PostgreSQL, 0 is no bound."""
    return max(1, round(seconds * 1000))
