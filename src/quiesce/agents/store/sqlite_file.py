"""The SQLite file of a store: its tables, its settings, and what its errors mean.

Used by one thread at a time.

- WAL with `synchronous=FULL`: a commit is on the disk when it returns. `NORMAL` would not sync the WAL at a
  commit, and a power cut could take back what was acknowledged. Where WAL is not available (on some network
  file systems), `EXTRA` gives the same guarantee.
- `BEGIN IMMEDIATE` takes the write lock of the file before anything is looked up.
- After an error the connection is rolled back, or else closed, and the next use opens it again.
- Files that are created here, and those that SQLite puts next to them, are readable by their owner only.
  Existing ones keep their permissions.
- The file may contain your own tables: only `quiesce_events` and `quiesce_schema` are touched.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import suppress
from typing import cast

from .events import Event, StoreError, conflict, decode_event

SCHEMA_VERSION = 1
_TABLES = (
    "CREATE TABLE IF NOT EXISTS quiesce_schema (version INTEGER NOT NULL)",
    """CREATE TABLE IF NOT EXISTS quiesce_events (
        conversation_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        time REAL NOT NULL,
        payload TEXT NOT NULL,
        PRIMARY KEY (conversation_id, seq)
    )""",
)

# By SQLite's primary result code. What was not acknowledged was not written; each text says what to do.
_MEANING = {
    sqlite3.SQLITE_BUSY: (
        "another process has held its write lock for {busy:g} s; "
        "try again, or give SQLiteStore a longer busy_timeout"
    ),
    sqlite3.SQLITE_LOCKED: "another connection of this process holds its write lock; try again",
    sqlite3.SQLITE_READONLY: (
        "it cannot be written to: check the permissions of the file and of its directory"
    ),
    sqlite3.SQLITE_PERM: "it may not be opened: check the permissions of the file and of its directory",
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened: its directory must exist, and both must be readable and writable"
    ),
    sqlite3.SQLITE_FULL: "the disk is full; what was acknowledged is safe: make room, and try again",
    sqlite3.SQLITE_IOERR: (
        "the disk reports an error; what was acknowledged is as safe as the disk is: "
        "check it (is it full?), and try again"
    ),
    sqlite3.SQLITE_CORRUPT: (
        "it is damaged: keep a copy of it and of the files next to it, then try `sqlite3 FILE .recover`"
    ),
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database, and was left as it is: give another path",
    sqlite3.SQLITE_TOOBIG: "an event is larger than SQLite allows in a row (1 GB)",
}


class SQLiteFile:
    """The file at `path`, opened on first use."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def append(self, conversation_id: str, payloads: list[str], expected: int | None) -> int:
        """Add rows in the current transaction; returns the number of the last event.

        Raises StoreConflict, before anything is written, if they would not follow event `expected`.
        """
        connection = self._open()
        found = _last_seq(connection, conversation_id)
        if expected is not None and expected != found:
            raise conflict(conversation_id, repr(self.path), expected, found)
        now = time.time()
        rows = [(conversation_id, seq, now, payload) for seq, payload in enumerate(payloads, found + 1)]
        connection.executemany("INSERT INTO quiesce_events VALUES (?, ?, ?, ?)", rows)
        return found + len(rows)

    def read(self, conversation_id: str, after: int) -> tuple[list[Event], int]:
        """Return the events after number `after`, and the number of the last one in the file."""
        connection = self._open()
        connection.execute("BEGIN")  # so that both queries see the same moment, although others may write
        last = _last_seq(connection, conversation_id)
        rows = connection.execute(
            "SELECT seq, time, payload FROM quiesce_events "
            "WHERE conversation_id = ? AND seq > ? ORDER BY seq",
            (conversation_id, after),
        ).fetchall()
        connection.execute("COMMIT")
        where = f"conversation {conversation_id!r} in {self.path!r}"
        events = []
        for place, (seq, moment, payload) in enumerate(rows, after + 1):
            if seq != place:
                raise StoreError(f"{where} has no event {place}, but later ones: it was removed")
            try:
                events.append(decode_event(payload, seq, moment))
            except (ValueError, TypeError) as error:
                raise StoreError(
                    f"event {seq} of {where} cannot be read ({error}): "
                    "it is damaged, or was written by a newer version of quiesce"
                ) from error
        return events, last

    def ids(self) -> list[str]:
        """Return the ids of all conversations, sorted."""
        rows = self._open().execute("SELECT DISTINCT conversation_id FROM quiesce_events ORDER BY 1")
        return [row[0] for row in rows]

    def delete(self, conversation_id: str) -> bool:
        """Remove a conversation in the current transaction; False if there was none."""
        done = self._open().execute(
            "DELETE FROM quiesce_events WHERE conversation_id = ?", (conversation_id,)
        )
        return done.rowcount > 0

    # Transactions

    def begin(self) -> None:
        """Take the write lock of the file."""
        connection = self._open()
        # SQLite would keep writing to a file that has no name any more, and acknowledge what nobody can read.
        if self._identity != _identity(self.path):
            self.close()
            raise StoreError(
                f"{self.path!r} was removed or replaced while it was in use: nothing was written. "
                "The next use opens what is there now"
            )
        connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Write everything since `begin` to the disk."""
        self._open().execute("COMMIT")

    def roll_back(self, error: BaseException) -> None:
        """Undo everything since `begin`, because of `error`, so that the next use starts afresh."""
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()
        # Only a lock of another process says nothing about the health of this connection.
        if isinstance(error, sqlite3.Error) and _code(error) != sqlite3.SQLITE_BUSY:
            self.close()

    def close(self) -> None:
        """Close it, if it is open. The next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def explain(self, error: BaseException) -> BaseException:
        """Return what to raise for `error`: SQLite's own errors say neither which file nor what to do."""
        if not isinstance(error, sqlite3.Error):
            return error
        meaning = _MEANING.get(_code(error))
        text = meaning.format(busy=self._busy_timeout) if meaning else "SQLite reports an error"
        explained = StoreError(f"store {self.path!r}: {text} ({error})")
        explained.__cause__ = error
        return explained

    # Opening

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        _make_private(self.path)
        connection = sqlite3.connect(
            self.path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._identity = _identity(self.path)
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # First, and read-only: the file of a newer version, or one that is not ours at all, stays as it is.
        version = _schema_version(connection)
        if version is not None and version > SCHEMA_VERSION:
            raise StoreError(
                f"store {self.path!r} was made by a newer version of quiesce "
                f"(schema {version}, and this one knows {SCHEMA_VERSION}): "
                "it was left as it is. Upgrade quiesce, or give another path"
            )
        mode = self._set_wal(connection)
        connection.execute(f"PRAGMA synchronous = {'FULL' if mode == 'wal' else 'EXTRA'}")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: to the disk, not only to its cache
        if version is None:
            connection.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                connection.execute(table)
            if connection.execute("SELECT count(*) FROM quiesce_schema").fetchone()[0] == 0:
                connection.execute("INSERT INTO quiesce_schema VALUES (?)", (SCHEMA_VERSION,))
            connection.execute("COMMIT")

    def _set_wal(self, connection: sqlite3.Connection) -> str:
        # SQLite ignores its busy timeout here, so wait for another process that creates the file at this
        # moment.
        give_up_at = time.monotonic() + self._busy_timeout
        while True:
            try:
                return cast(str, connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                    raise
                time.sleep(0.01)


def _make_private(path: str) -> None:
    """Create the file, empty, unless it exists.

    SQLite would let everybody read it. The files that SQLite puts next to it get its permissions.
    """
    try:
        # Not by opening it: closing it again would release the locks that another connection of this process
        # may hold by then, as POSIX demands.
        os.mknod(path, stat.S_IFREG | 0o600)
    except FileExistsError:
        pass
    except (OSError, AttributeError):  # not every system supports that, nor every file system
        with suppress(OSError):  # SQLite will say what is really wrong
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _schema_version(connection: sqlite3.Connection) -> int | None:
    tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'quiesce_schema'").fetchone()
    if tables is None:
        return None
    row = connection.execute("SELECT version FROM quiesce_schema").fetchone()
    return None if row is None else int(row[0])


def _last_seq(connection: sqlite3.Connection, conversation_id: str) -> int:
    found = connection.execute(
        "SELECT MAX(seq) FROM quiesce_events WHERE conversation_id = ?", (conversation_id,)
    ).fetchone()[0]
    return found or 0


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; 0 if the error is Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
