"""Conversations in a PostgreSQL database, for any number of processes and hosts; durable when acknowledged.

The tables and what writes to them are in `postgres_schema`, the thread's use of them in `postgres_database`,
the server in `postgres_server`, the lock that says who lives in `postgres_holder`, the thread that watches in
`postgres_watch`.

Invariants
- `append` and `post` return when the transaction is committed on the server. How durable that is, is the
  server's doing (`fsync`, `synchronous_commit`, standbys); a session of ours never runs with
  `synchronous_commit = off`.
- A cancel does not interrupt an append: the caller gets its cancel when the append has succeeded, failed, or
  is in doubt.
- Every wait for the server is bounded by `timeout`. Where that leaves open what became of a write,
  `StoreInDoubt` says so.
- psycopg is imported when the first store is made, and not before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from quiesce._extras import require

from .contract import Holder, OnEvents, StoreClosed, StoreError, check_id
from .events import Event, Posted, check_events, check_posted
from .job_thread import Job, Writer

if TYPE_CHECKING:
    from .postgres_database import Answer, Database, Row
    from .postgres_holder import HolderLock
    from .postgres_watch import PostgresWatcher

T = TypeVar("T")


class PostgresStore:
    """Keeps conversations in a PostgreSQL database, for any number of processes on any number of hosts.

    ```python
    async with PostgresStore("postgresql://app@db.example.org/app") as store:
        conversation = Conversation(agent, store=store, conversation_id="support-7")
    ```

    `url` is a URL or connection string of libpq; what it leaves out comes from the environment (`PGPASSWORD`,
    ...), as with `psql`. The first use makes the tables, in the schema `schema`. `timeout` is how many seconds
    the server may be silent, or unreachable, before a call fails; a call takes about twice as long at most. A
    store that is dropped without `close()` loses nothing that was acknowledged.

    It needs up to three sessions of the server: one to read and write, one while it holds leases, one while it
    watches. So a connection pooler in front of it must be in session mode.
    """

    def __init__(self, url: str, *, schema: str = "public", timeout: float = 10.0) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, not {timeout:g}")
        require("psycopg", "postgres", "PostgresStore")
        from .postgres_database import Database, check_text
        from .postgres_holder import HolderLock
        from .postgres_server import Server
        from .postgres_watch import PostgresWatcher

        if not schema or len(check_text(schema, "the name of a schema").encode()) > 63 or "%" in schema:
            raise ValueError(f"the name of a schema has 1 to 63 bytes and no %: {schema[:80]!r}")
        server = Server(url, timeout)
        self.name = server.name
        self.schema = schema
        self._holder_lock: HolderLock = HolderLock(server)
        self._watcher: PostgresWatcher = PostgresWatcher(server, schema)
        self._database: Database = Database(server, schema)
        self._database.holder_number = self._holder_lock.number
        self._writer = Writer(
            self._database, partial(_close, self._database, self._watcher, self._holder_lock)
        )
        self._writer.at_once = 500
        # For a store that is dropped without a close: its sessions would stay open until the program ends.
        self._finalizer = weakref.finalize(self, self._writer.drop)

    def __repr__(self) -> str:
        return f"<PostgresStore {self.name}, schema {self.schema!r}>"

    def open(self, conversation_id: str) -> PostgresLog:
        """Return the log of a conversation, new or existing. Does not access the server."""
        self._writer.check_open()
        return PostgresLog(self, _check_id(conversation_id))

    async def lease(
        self, conversation_id: str, *, owner: str = "", epoch: int | None = None
    ) -> PostgresLease:
        """Grant the right to run a conversation, or raise `StoreHeld`; with `epoch`, or raise `StoreFenced`."""
        lease = PostgresLease(self, _check_id(conversation_id), _check_owner(owner))
        try:
            await self._writer.do(_Grant(lease, epoch))
        except BaseException:
            lease._release_later()
            raise
        return lease

    def lease_sync(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> PostgresLease:
        """`lease` for plain threads."""
        lease = PostgresLease(self, _check_id(conversation_id), _check_owner(owner))
        try:
            self._writer.do_sync(_Grant(lease, epoch))
        except BaseException:
            lease._release_later()
            raise
        return lease

    async def holder(self, conversation_id: str) -> Holder | None:
        """Return who runs a conversation now; None if it is not being run, or its runner's process has ended."""
        return await self._writer.do(Job(partial(self._database.holder, _check_id(conversation_id))))

    def holder_sync(self, conversation_id: str) -> Holder | None:
        """`holder` for plain threads."""
        return self._writer.do_sync(Job(partial(self._database.holder, _check_id(conversation_id))))

    async def ids(self) -> list[str]:
        """Return the ids of the conversations that have at least one event, sorted."""
        return await self._writer.do(Job(self._database.ids))

    def ids_sync(self) -> list[str]:
        """`ids` for plain threads."""
        return self._writer.do_sync(Job(self._database.ids))

    async def delete(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none.

        If it was ever leased, its id and the number of its last lease stay, so that no old lease is valid again.
        """
        return await self._writer.do(_Delete(self, _check_id(conversation_id)))

    def delete_sync(self, conversation_id: str) -> bool:
        """`delete` for plain threads."""
        return self._writer.do_sync(_Delete(self, _check_id(conversation_id)))

    async def close(self) -> None:
        """Finish pending writes, release every lease, and close the connections.

        May be called again, and by several callers at once.
        """
        await self._writer.close()
        self._finalizer.detach()

    def close_sync(self) -> None:
        """`close` for plain threads."""
        self._writer.close_sync()
        self._finalizer.detach()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close_sync()


def _close(database: Database, watcher: PostgresWatcher, holder_lock: HolderLock, waits: bool) -> None:
    watcher.close()
    holder_lock.close()
    database.close()
    if waits:
        watcher.wait_closed()
        holder_lock.wait_closed()


def _check_id(conversation_id: object) -> str:
    from .postgres_database import check_text

    return check_text(check_id(conversation_id), "the id of a conversation")


def _check_owner(owner: str) -> str:
    from .postgres_database import check_text

    return check_text(owner, "the owner of a lease")


class PostgresLog:
    """One conversation of a `PostgresStore`."""

    __slots__ = ("_closed", "_epoch", "_position", "_store", "conversation_id")

    def __init__(self, store: PostgresStore, conversation_id: str) -> None:
        self._store = store
        self._epoch: int | None = None  # of the lease that it belongs to
        self.conversation_id = conversation_id
        # The last event that it has read or written, None before that. Used in the writer's thread only.
        self._position: int | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<PostgresLog of {self.conversation_id!r} in {self._store.name}>"

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """Add events, all or none; they are committed when this returns.

        Returns the number of the last one.
        """
        return await self._store._writer.do(self._append_job(events, after))

    def append_sync(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """`append` for plain threads: it blocks."""
        return self._store._writer.do_sync(self._append_job(events, after))

    async def post(self, events: Sequence[Posted]) -> int:
        """Add what anybody may say at the end, all or none; it is committed when this returns.

        Returns the number of the last one; 0 if nothing was added, as all messages were there already.
        """
        return await self._store._writer.do(self._post_job(events))

    def post_sync(self, events: Sequence[Posted]) -> int:
        """`post` for plain threads: it blocks."""
        return self._store._writer.do_sync(self._post_job(events))

    async def read(self, after: int = 0) -> list[Event]:
        """Return all events, or those after number `after`."""
        return await self._store._writer.do(Job(partial(self._read, after)))

    def read_sync(self, after: int = 0) -> list[Event]:
        """`read` for plain threads: it blocks."""
        return self._store._writer.do_sync(Job(partial(self._read, after)))

    async def load(self) -> list[Event]:
        """Return every snapshot, and the events after the last one."""
        return await self._store._writer.do(Job(self._load))

    def load_sync(self) -> list[Event]:
        """`load` for plain threads: it blocks."""
        return self._store._writer.do_sync(Job(self._load))

    def watch(self, on_events: OnEvents, *, after: int) -> Callable[[], None]:
        """Call `on_events` with the events after number `after`, then with later ones as they come.

        Those of another process come within some milliseconds; within two seconds, if the hint is lost.
        """
        return self._store._watcher.watch(self.conversation_id, on_events, after)

    def close(self) -> None:
        """Refuse further writes through this log; the store stays open."""
        self._closed = True

    def _append_job(self, events: Sequence[Event], after: int | None) -> _Append:
        self._check_open()
        check_events(events)
        return _Append(self, _rows_of(events), after)

    def _post_job(self, events: Sequence[Posted]) -> _Post:
        self._check_open()
        check_posted(events)
        return _Post(self, _rows_of(events))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(
                f"conversation {self.conversation_id!r} cannot be written to: its log was closed"
            )

    def _read(self, after: int) -> list[Event]:
        events, self._position = self._store._database.read(self.conversation_id, after)
        return events

    def _load(self) -> list[Event]:
        events, self._position = self._store._database.load(self.conversation_id)
        return events


def _rows_of(events: Sequence[Event]) -> list[Row]:
    from .postgres_database import Row

    return [Row.of(event) for event in events]


class PostgresLease:
    """The right to run a conversation of a `PostgresStore`.

    It ends with its release, when it is dropped, when its store is closed, and with its process. A process that is
    stopped (SIGSTOP) still holds it.
    """

    def __init__(self, store: PostgresStore, conversation_id: str, owner: str) -> None:
        self.owner = owner
        self.log = PostgresLog(store, conversation_id)
        self.epoch = 0
        self.last_seq = 0
        self._finalizer: weakref.finalize[..., PostgresLease] | None = None

    def __repr__(self) -> str:
        return f"<PostgresLease {self.epoch} of {self.log.conversation_id!r}>"

    async def release(self) -> None:
        """Give it up. May be called again. If the server cannot be reached, that is done when it can be."""
        if not self._ends():
            return
        writer = self.log._store._writer
        try:
            await writer.do(Job(_nothing, writes=True))
        except StoreError:
            pass
        except BaseException:
            # A caller who is cancelled already starts nothing on trio. But this is clean-up.
            writer.add_unwaited(Job(_nothing, writes=True))
            raise

    def release_sync(self) -> None:
        """`release` for plain threads: it blocks."""
        if self._ends():
            with suppress(StoreError):
                self.log._store._writer.do_sync(Job(_nothing, writes=True))

    def _release_later(self) -> None:
        if self._ends():
            self.log._store._writer.add_unwaited(Job(_nothing, writes=True))

    def _ends(self) -> bool:
        """Whether it was held until now; then it is released with the next transaction of its store."""
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is None or finalizer.detach() is None:
            return False
        self.log._store._holder_lock.drop_lease()
        self.log._store._database.owe_release(self.log.conversation_id, self.epoch)
        return True

    def _granted(self, epoch: int, last_seq: int) -> None:
        store = self.log._store
        self.epoch, self.last_seq = epoch, last_seq
        self.log._epoch, self.log._position = epoch, last_seq
        store._database.live[self.log.conversation_id] = epoch
        self._finalizer = weakref.finalize(
            self,
            _release_dropped,
            store._writer,
            store._database,
            store._holder_lock,
            self.log.conversation_id,
            epoch,
        )
        # At the exit of the program, the lock ends with it.
        self._finalizer.atexit = False


def _release_dropped(
    writer: Writer, database: Database, holder_lock: HolderLock, conversation_id: str, epoch: int
) -> None:
    holder_lock.drop_lease()
    database.owe_release(conversation_id, epoch)
    writer.add_unwaited(Job(_nothing, writes=True), blocking=False)


def _nothing() -> None:
    """A job of a transaction that does only what is owed."""


class _Change(Job[T]):
    """A write that is gathered with others, and answered by the commit of them all."""

    __slots__ = ("_database", "after", "conversation_id", "epoch", "kind", "owner", "rows")

    def __init__(self, database: Database, kind: str, conversation_id: str, rows: Sequence[Row] = ()) -> None:
        super().__init__(self._gather, writes=True)
        self._database = database
        self.kind = kind
        self.conversation_id = conversation_id
        self.rows = rows
        self.after: int | None = None
        self.epoch: int | None = None
        self.owner = ""

    @property
    def log(self) -> object:
        """The log that it appends to, if it is an append."""
        return None

    @property
    def is_exact(self) -> bool:
        """Whether it follows the event `after`, whatever the log has appended before."""
        return True

    def _gather(self) -> T:
        self._database.add(self)
        value: T = self._value  # the answer sets another one
        return value

    def answered(self, answer: Answer) -> None:
        """Take the result: the number of the last event."""
        self._value = answer.last_seq

    def refused(self, error: StoreError) -> None:
        """Nothing was written, because of this."""
        self.error = error

    def left_in_doubt(self) -> None:
        """It is not known whether it was written. The position of a log stays: who reads it moves that."""


class _Append(_Change[int]):
    """One append. It moves the position of its log when it is committed."""

    __slots__ = ("_given", "_log", "_number")

    def __init__(self, log: PostgresLog, rows: Sequence[Row], after: int | None) -> None:
        super().__init__(log._store._database, "append", log.conversation_id, rows)
        self._log = log
        self._given = after

    @property
    def log(self) -> object:
        """The log that it appends to."""
        return self._log

    @property
    def is_exact(self) -> bool:
        """Whether the caller has said which event it follows."""
        return self._given is not None

    def _gather(self) -> int:
        # Here and not when the job was made: others of the same log may have been done since.
        self.after = self._log._position if self._given is None else self._given
        self.epoch = self._log._epoch
        return super()._gather()

    def answered(self, answer: Answer) -> None:
        """Take the number of the last event."""
        super().answered(answer)
        self._log._position = answer.last_seq

    def committed(self) -> None:
        """Let those who watch the log look."""
        self._log._store._watcher.look(self.conversation_id)


class _Post(_Change[int]):
    """One post. It does not move the position of its log."""

    __slots__ = ("_store",)

    def __init__(self, log: PostgresLog, rows: Sequence[Row]) -> None:
        super().__init__(log._store._database, "post", log.conversation_id, rows)
        self._store = log._store

    def committed(self) -> None:
        """Let those who watch the log look."""
        self._store._watcher.look(self.conversation_id)


class _Delete(_Change[bool]):
    """One deletion."""

    __slots__ = ()

    def __init__(self, store: PostgresStore, conversation_id: str) -> None:
        super().__init__(store._database, "delete", conversation_id)

    def answered(self, answer: Answer) -> None:
        """Take whether there was anything."""
        self._value = answer.last_seq > 0


class _Grant(_Change[None]):
    """One lease that is granted."""

    __slots__ = ("_asked", "_lease")

    def __init__(self, lease: PostgresLease, epoch: int | None) -> None:
        super().__init__(lease.log._store._database, "lease", lease.log.conversation_id)
        self._lease = lease
        self._asked = epoch

    def _gather(self) -> None:
        # Before the row names it: a lease whose holder does not live could be taken at once.
        self._lease.log._store._holder_lock.add_lease()
        self.epoch = self._asked
        self.owner = self._lease.owner
        super()._gather()

    def answered(self, answer: Answer) -> None:
        """Take the epoch."""
        self._lease._granted(answer.epoch, answer.last_seq)

    def refused(self, error: StoreError) -> None:
        """It was not granted."""
        super().refused(error)
        self.undo()

    def undo(self) -> None:
        """It was not granted, or it is not known whether it was."""
        self._lease.log._store._holder_lock.drop_lease()

    def left_in_doubt(self) -> None:
        """Should it have been granted, it is given up: its caller does not have it."""
        self._database.owe_release(self.conversation_id, self._asked)
