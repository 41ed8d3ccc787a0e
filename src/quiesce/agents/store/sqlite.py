"""Conversations in a SQLite file, durable when acknowledged.

The file itself is in `sqlite_file`, the thread that uses it in `job_thread`.

Invariants
- A commit is on the disk when it returns, and `append` returns only then.
- A cancel does not interrupt an append: the caller gets its cancel when the append has succeeded or failed.
- A log knows which event its next one follows, and checks that under the write lock of the file. Of two
  writers of one conversation, in one process or in two, one gets `StoreConflict`, and nothing is mixed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from .contract import Holder, OnEvents, StoreClosed, check_id
from .events import Event, Posted, check_events, check_posted
from .job_thread import Job, Writer
from .sqlite_file import Row, SQLiteFile
from .sqlite_watch import Watcher


class SQLiteStore:
    """Keeps conversations in a SQLite file: acknowledged events survive crashes and power cuts.

    ```python
    async with SQLiteStore("chat.db") as store:
        conversation = Conversation(agent, store=store, conversation_id="support-7")
    ```

    The first read or append creates the file, readable only by its owner. `busy_timeout` is how many seconds
    a write waits for another process that writes to the same file. A store that is dropped without `close()`
    loses nothing that was acknowledged.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float = 10.0) -> None:
        self.path = os.path.abspath(os.fspath(path))
        if os.fspath(path) == ":memory:":
            raise ValueError("SQLiteStore needs a file; for conversations in memory use MemoryStore()")
        if busy_timeout < 0:
            raise ValueError(f"busy_timeout must be 0 or more seconds, not {busy_timeout:g}")
        self._file = SQLiteFile(self.path, busy_timeout)
        self._watcher = Watcher(self.path)
        self._writer = Writer(self._file, partial(_close, self._file, self._watcher))
        # For a store that is dropped without a close: from Python 3.13 on an open connection is a
        # ResourceWarning then, and its WAL file stays behind.
        self._finalizer = weakref.finalize(self, self._writer.drop)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self.path!r}>"

    def open(self, conversation_id: str) -> SQLiteLog:
        """Return the log of a conversation, new or existing. Does not access the file."""
        self._writer.check_open()
        return SQLiteLog(self, check_id(conversation_id))

    async def lease(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> SQLiteLease:
        """Grant the right to run a conversation, or raise `StoreHeld`; with `epoch`, or raise `StoreFenced`."""
        lease = SQLiteLease(self, check_id(conversation_id), owner)
        try:
            await self._writer.do(_Grant(lease, epoch))
        except BaseException:  # a cancel, and it may have been granted
            lease.release_sync()
            raise
        return lease

    def lease_sync(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> SQLiteLease:
        """`lease` for plain threads."""
        lease = SQLiteLease(self, check_id(conversation_id), owner)
        try:
            self._writer.do_sync(_Grant(lease, epoch))
        except BaseException:  # Ctrl-C, and it may have been granted
            lease.release_sync()
            raise
        return lease

    async def holder(self, conversation_id: str) -> Holder | None:
        """Return who runs a conversation now; None if it is not being run, or its runner's process has ended."""
        return await self._writer.do(Job(partial(self._file.holder, conversation_id)))

    def holder_sync(self, conversation_id: str) -> Holder | None:
        """`holder` for plain threads."""
        return self._writer.do_sync(Job(partial(self._file.holder, conversation_id)))

    async def ids(self) -> list[str]:
        """Return the ids of the conversations that have at least one event, sorted."""
        return await self._writer.do(Job(self._file.ids))

    def ids_sync(self) -> list[str]:
        """`ids` for plain threads."""
        return self._writer.do_sync(Job(self._file.ids))

    async def delete(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none."""
        return await self._writer.do(Job(partial(self._file.delete, conversation_id), writes=True))

    def delete_sync(self, conversation_id: str) -> bool:
        """`delete` for plain threads."""
        return self._writer.do_sync(Job(partial(self._file.delete, conversation_id), writes=True))

    async def close(self) -> None:
        """Finish pending writes, and close the file. May be called again, and by several callers at once."""
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


def _close(file: SQLiteFile, watcher: Watcher, waits: bool) -> None:
    # The last connection to a file that is closed tidies it up. That is to be the one of the file.
    watcher.close()
    file.close()
    file.locks.close()


class SQLiteLog:
    """One conversation of a `SQLiteStore`."""

    __slots__ = ("_closed", "_epoch", "_position", "_store", "conversation_id")

    def __init__(self, store: SQLiteStore, conversation_id: str) -> None:
        self._store = store
        self._epoch: int | None = None  # of the lease that it belongs to
        self.conversation_id = conversation_id
        # The last event that it has read or written, None before that. Used in the writer's thread only.
        self._position: int | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<SQLiteLog of {self.conversation_id!r} in {self._store.path!r}>"

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """Add events, all or none; they are on the disk when this returns.

        Returns the number of the last one.
        """
        return await self._store._writer.do(self._append_job(events, after))

    def append_sync(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """`append` for plain threads: it blocks."""
        return self._store._writer.do_sync(self._append_job(events, after))

    async def post(self, events: Sequence[Posted]) -> int:
        """Add what anybody may say at the end, all or none; it is on the disk when this returns.

        Returns the number of the last event.
        """
        return await self._store._writer.do(self._post_job(events))

    def post_sync(self, events: Sequence[Posted]) -> int:
        """`post` for plain threads: it blocks."""
        return self._store._writer.do_sync(self._post_job(events))

    async def load(self) -> list[Event]:
        """Return every snapshot, and the events after the last one."""
        return await self._store._writer.do(Job(self._load))

    def load_sync(self) -> list[Event]:
        """`load` for plain threads: it blocks."""
        return self._store._writer.do_sync(Job(self._load))

    def watch(self, on_events: OnEvents, *, after: int) -> Callable[[], None]:
        """Call `on_events` with the events after number `after`, then with later ones as they come.

        Those of another process come within about 50 ms.
        """
        return self._store._watcher.watch(self.conversation_id, on_events, after)

    async def read(self, after: int = 0) -> list[Event]:
        """Return all events, or those after number `after`."""
        return await self._store._writer.do(Job(partial(self._read, after)))

    def read_sync(self, after: int = 0) -> list[Event]:
        """`read` for plain threads: it blocks."""
        return self._store._writer.do_sync(Job(partial(self._read, after)))

    def close(self) -> None:
        """Refuse further writes through this log; the store stays open."""
        self._closed = True

    def _append_job(self, events: Sequence[Event], after: int | None) -> _Append:
        self._check_open()
        check_events(events)
        return _Append(self, [Row.of(event) for event in events], after)

    def _post_job(self, events: Sequence[Posted]) -> Job[int]:
        self._check_open()
        check_posted(events)
        rows = [Row.of(event) for event in events]
        return _Post(self, rows)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(
                f"conversation {self.conversation_id!r} cannot be written to: its log was closed"
            )

    def _read(self, after: int) -> list[Event]:
        events, self._position = self._store._file.read(self.conversation_id, after)
        return events

    def _load(self) -> list[Event]:
        events, self._position = self._store._file.load(self.conversation_id)
        return events


class SQLiteLease:
    """The right to run a conversation of a `SQLiteStore`.

    It ends with its release, with its process, and when it is dropped.
    """

    def __init__(self, store: SQLiteStore, conversation_id: str, owner: str) -> None:
        self.owner = owner
        self.log = SQLiteLog(store, conversation_id)
        self.epoch = 0
        self.last_seq = 0
        self._file = store._file
        self._finalizer: weakref.finalize[..., SQLiteLease] | None = None

    def __repr__(self) -> str:
        return f"<SQLiteLease {self.epoch} of {self.log.conversation_id!r}>"

    def release_sync(self) -> None:
        """Give it up. May be called again. Never waits."""
        if self._finalizer is not None:
            self._finalizer()

    async def release(self) -> None:
        """Give it up. May be called again. Never waits."""
        self.release_sync()

    def _granted(self, epoch: int, last_seq: int) -> None:
        self.epoch, self.last_seq = epoch, last_seq
        self.log._epoch, self.log._position = epoch, last_seq
        self._finalizer = weakref.finalize(self, self._file.release, self.log.conversation_id, epoch)


class _Grant(Job[None]):
    """One lease that is granted. It is released again if the transaction is rolled back."""

    __slots__ = ("_epoch", "_lease")

    def __init__(self, lease: SQLiteLease, epoch: int | None) -> None:
        super().__init__(self._grant, writes=True)
        # Weak, as a job is part of a cycle, and a lease that is dropped must not wait for the garbage collector.
        self._lease = weakref.ref(lease)
        self._epoch = epoch

    def _grant(self) -> None:
        lease = self._lease()
        assert lease is not None  # its caller waits for this
        lease._granted(*lease._file.lease(lease.log.conversation_id, lease.owner, self._epoch))

    def undo(self) -> None:
        """Release it: the transaction was rolled back."""
        if (lease := self._lease()) is not None:
            lease.release_sync()


class _Post(Job[int]):
    """One post. It does not move the position of its log."""

    __slots__ = ("_log", "_rows")

    def __init__(self, log: SQLiteLog, rows: list[Row]) -> None:
        super().__init__(self._post, writes=True)
        self._log = log
        self._rows = rows

    def _post(self) -> int:
        return self._log._store._file.post(self._log.conversation_id, self._rows)

    def committed(self) -> None:
        """Let those who watch the log look."""
        self._log._store._watcher.look()


class _Append(Job[int]):
    """One append. It moves the position of its log, and moves it back if it is rolled back."""

    __slots__ = ("_after", "_before", "_log", "_rows")

    def __init__(self, log: SQLiteLog, rows: list[Row], after: int | None) -> None:
        super().__init__(self._append, writes=True)
        self._log = log
        self._rows = rows
        self._after = after

    def _append(self) -> int:
        log = self._log
        # Here and not when the job was made: others of the same log may have been done since.
        self._before = log._position
        expected = log._position if self._after is None else self._after
        log._position = log._store._file.append(log.conversation_id, self._rows, expected, log._epoch)
        return log._position

    def undo(self) -> None:
        """Move the position back: the transaction was rolled back."""
        self._log._position = self._before

    def committed(self) -> None:
        """Let those who watch the log look."""
        self._log._store._watcher.look()
