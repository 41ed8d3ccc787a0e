"""The SQLite file of a store: its tables, its settings, and what its errors mean.

Used by one thread at a time.

- WAL with `synchronous=FULL`: a commit is on the disk when it returns. `NORMAL` would not sync the WAL at a
  commit, and a power cut could take back what was acknowledged. Where WAL is not available (on some network
  file systems), `EXTRA` gives the same guarantee.
- `BEGIN IMMEDIATE` takes the write lock of the file before anything is looked up.
- After an error the connection is rolled back, or else closed, and the next use opens it again.
- Files that are created here, and those that SQLite puts next to them, are readable by their owner only.
  Existing ones keep their permissions.
- The file may contain your own tables: only those whose names begin with `quiesce_` are touched.
- Who runs a conversation is a row in `quiesce_leases` and a lock: the row says which lease is the latest one, and
  the lock, on a file next to this one, whether its holder's process lives (`process_locks`).
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple, cast

from .contract import Holder, StoreError, conflict, fenced, held
from .events import Event, MessageQueued, Snapshot, decode_event, encode_event
from .process_locks import ProcessLocks

SCHEMA_VERSION = 2
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
# By the version that they lead to. A new file goes through all of them.
_MIGRATIONS = {
    2: (
        "ALTER TABLE quiesce_events ADD COLUMN snapshot INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX quiesce_snapshots ON quiesce_events (conversation_id, seq) WHERE snapshot",
        """CREATE TABLE quiesce_messages (
            conversation_id TEXT NOT NULL,
            message_id TEXT NOT NULL,
            PRIMARY KEY (conversation_id, message_id)
        ) WITHOUT ROWID""",
        """INSERT OR IGNORE INTO quiesce_messages
            SELECT conversation_id, json_extract(payload, '$.message_id') FROM quiesce_events
            WHERE json_valid(payload) AND json_extract(payload, '$.event') = 'message_queued'""",
        """CREATE TABLE quiesce_leases (
            conversation_id TEXT NOT NULL PRIMARY KEY,
            epoch INTEGER NOT NULL,
            owner TEXT NOT NULL
        ) WITHOUT ROWID""",
    ),
}

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


class Row(NamedTuple):
    """An event on its way into the file."""

    payload: str
    is_snapshot: bool
    message_id: str | None  # of a message that is queued

    @classmethod
    def of(cls, event: Event) -> Row:
        """Return the row of an event."""
        message_id = event.message_id if isinstance(event, MessageQueued) else None
        return cls(encode_event(event), isinstance(event, Snapshot), message_id)


class SQLiteFile:
    """The file at `path`, opened on first use."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        #: Which leases live: see `process_locks`.
        # The file itself may be reached by several names.
        self.locks = ProcessLocks(f"{os.path.realpath(path)}-running", path)

    def append(
        self, conversation_id: str, rows: Sequence[Row], expected: int | None, epoch: int | None
    ) -> int:
        """Add rows in the current transaction; returns the number of the last event.

        Raises, before anything is written, StoreConflict if they would not follow event `expected`, StoreFenced
        if `epoch` is not that of the latest lease, and StoreHeld if there is one, and `epoch` is None.
        """
        connection = self._open()
        latest, owner = self._latest_lease(conversation_id)
        if epoch is not None and epoch != latest:
            raise fenced(conversation_id, repr(self.path), epoch, latest)
        if epoch is None and self._is_alive(conversation_id, latest):
            raise held(conversation_id, repr(self.path), Holder(owner, latest))
        found = _last_seq(connection, conversation_id)
        if expected is not None and expected != found:
            raise conflict(conversation_id, repr(self.path), expected, found)
        return self._add(connection, conversation_id, rows, found)

    def post(self, conversation_id: str, rows: Sequence[Row]) -> int:
        """Add rows in the current transaction, without messages that are there already.

        Returns the number of the last one; 0 if nothing was added.
        """
        connection = self._open()
        ids = {row.message_id for row in rows} - {None}
        known = {
            message_id
            for message_id in ids
            if connection.execute(
                "SELECT 1 FROM quiesce_messages WHERE conversation_id = ? AND message_id = ?",
                (conversation_id, message_id),
            ).fetchone()
        }
        new: list[Row] = []
        for row in rows:
            if row.message_id is None or row.message_id not in known:
                new.append(row)
                known.add(row.message_id)
        if not new:
            return 0
        return self._add(connection, conversation_id, new, _last_seq(connection, conversation_id))

    def _add(
        self, connection: sqlite3.Connection, conversation_id: str, rows: Sequence[Row], last: int
    ) -> int:
        now = time.time()
        connection.executemany(
            "INSERT INTO quiesce_events (conversation_id, seq, time, payload, snapshot) VALUES (?, ?, ?, ?, ?)",
            [
                (conversation_id, seq, now, row.payload, row.is_snapshot)
                for seq, row in enumerate(rows, last + 1)
            ],
        )
        messages = [(conversation_id, row.message_id) for row in rows if row.message_id is not None]
        if messages:
            connection.executemany("INSERT OR IGNORE INTO quiesce_messages VALUES (?, ?)", messages)
        return last + len(rows)

    def read(self, conversation_id: str, after: int) -> tuple[list[Event], int]:
        """Return the events after number `after`, and the number of the last one in the file."""
        connection = self._open()
        connection.execute("BEGIN")  # so that both queries see the same moment, although others may write
        last = _last_seq(connection, conversation_id)
        events = read_events(connection, self.path, conversation_id, after)
        connection.execute("COMMIT")
        return events, last

    def load(self, conversation_id: str) -> tuple[list[Event], int]:
        """Return every snapshot and the events after the last one, and the number of the last event in the file."""
        connection = self._open()
        connection.execute("BEGIN")
        last = _last_seq(connection, conversation_id)
        rows = connection.execute(
            "SELECT seq, time, payload FROM quiesce_events WHERE conversation_id = ? AND snapshot ORDER BY seq",
            (conversation_id,),
        ).fetchall()
        snapshots = [_decoded(self.path, conversation_id, *row) for row in rows]
        tail = read_events(connection, self.path, conversation_id, rows[-1][0] if rows else 0)
        connection.execute("COMMIT")
        return [*snapshots, *tail], last

    # Leases

    def lease(self, conversation_id: str, owner: str, epoch: int | None) -> tuple[int, int]:
        """Grant a lease in the current transaction; returns its epoch, and the number of the last event.

        Raises, before anything is written, StoreHeld, or with `epoch` StoreFenced.
        """
        connection = self._open()
        latest, holder = self._latest_lease(conversation_id)
        if epoch is None:
            if self._is_alive(conversation_id, latest):
                raise held(conversation_id, repr(self.path), Holder(holder, latest))
            epoch = latest + 1
        elif epoch <= latest:
            raise fenced(conversation_id, repr(self.path), epoch, latest)
        if not self.locks.take(_place(conversation_id, epoch)):
            # Taken for a lease whose transaction was not committed: that one is just being undone.
            raise held(conversation_id, repr(self.path), Holder("", epoch))
        try:
            connection.execute(
                "INSERT OR REPLACE INTO quiesce_leases VALUES (?, ?, ?)", (conversation_id, epoch, owner)
            )
        except BaseException:
            self.release(conversation_id, epoch)
            raise
        return epoch, _last_seq(connection, conversation_id)

    def release(self, conversation_id: str, epoch: int) -> None:
        """Let a lease end. Writes nothing, and may be called from any thread."""
        self.locks.release(_place(conversation_id, epoch))

    def holder(self, conversation_id: str) -> Holder | None:
        """Return who holds the lease now."""
        self._open()
        latest, owner = self._latest_lease(conversation_id)
        return Holder(owner, latest) if self._is_alive(conversation_id, latest) else None

    def _latest_lease(self, conversation_id: str) -> tuple[int, str]:
        row = (
            self._open()
            .execute("SELECT epoch, owner FROM quiesce_leases WHERE conversation_id = ?", (conversation_id,))
            .fetchone()
        )
        return (0, "") if row is None else (row[0], row[1])

    def _is_alive(self, conversation_id: str, epoch: int) -> bool:
        return epoch > 0 and self.locks.is_taken(_place(conversation_id, epoch))

    def ids(self) -> list[str]:
        """Return the ids of all conversations, sorted."""
        rows = self._open().execute("SELECT DISTINCT conversation_id FROM quiesce_events ORDER BY 1")
        return [row[0] for row in rows]

    def delete(self, conversation_id: str) -> bool:
        """Remove a conversation in the current transaction; False if there was none."""
        connection = self._open()
        connection.execute("DELETE FROM quiesce_messages WHERE conversation_id = ?", (conversation_id,))
        # The row of its last lease stays: an old lease must not be valid again.
        done = connection.execute("DELETE FROM quiesce_events WHERE conversation_id = ?", (conversation_id,))
        return done.rowcount > 0

    # For the thread that does the jobs: see `job_thread.Place`

    def closed_text(self) -> str:
        """What to tell a caller who comes after the close."""
        return f"the store {self.path!r} was closed: make a new SQLiteStore of that path"

    def forked_text(self) -> str:
        """What to tell a caller in a forked child."""
        return (
            f"the store {self.path!r} was made before a fork, and SQLite does not survive one: "
            "make a new SQLiteStore in the child"
        )

    def prepare(self, waiting_since: float) -> None:
        """Nothing: SQLite bounds its waits itself."""

    def concerns_all(self, error: BaseException) -> bool:
        """Never: a commit that fails has written nothing, and the other jobs can succeed."""
        return False

    def has_hints(self, busy: bool) -> bool:
        """Never: other processes look at the file."""
        return False

    def send_hints(self) -> None:
        """Nothing."""

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
        if version != SCHEMA_VERSION:
            connection.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                connection.execute(table)
            # Looked at again: another process may have done it meanwhile.
            version = _schema_version(connection)
            if version is None:
                version = 1
                connection.execute("INSERT INTO quiesce_schema VALUES (1)")
            for step in range(version + 1, SCHEMA_VERSION + 1):
                for statement in _MIGRATIONS[step]:
                    connection.execute(statement)
            connection.execute("UPDATE quiesce_schema SET version = ?", (SCHEMA_VERSION,))
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


def read_events(connection: sqlite3.Connection, path: str, conversation_id: str, after: int) -> list[Event]:
    """Return the events of a conversation after number `after`."""
    rows = connection.execute(
        "SELECT seq, time, payload FROM quiesce_events WHERE conversation_id = ? AND seq > ? ORDER BY seq",
        (conversation_id, after),
    ).fetchall()
    events = []
    for place, (seq, moment, payload) in enumerate(rows, after + 1):
        if seq != place:
            raise StoreError(
                f"conversation {conversation_id!r} in {path!r} has no event {place}, but later ones: it was removed"
            )
        events.append(_decoded(path, conversation_id, seq, moment, payload))
    return events


def _decoded(path: str, conversation_id: str, seq: int, moment: float, payload: str) -> Event:
    try:
        return decode_event(payload, seq, moment)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"event {seq} of conversation {conversation_id!r} in {path!r} cannot be read ({error}): "
            "it is damaged, or was written by a newer version of quiesce"
        ) from error


def _place(conversation_id: str, epoch: int) -> int:
    """Return which byte of the file of locks stands for this lease."""
    name = f"{epoch} {conversation_id}".encode("utf-8", "surrogatepass")
    return 1 + int.from_bytes(blake2b(name, digest_size=7).digest())


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
