"""Conversations in a SQLite file, durable when acknowledged.

The file itself is in `sqlite_file`, the thread that uses it in `sqlite_thread`.

Invariants
- A commit is on the disk when it returns, and `append` returns only then.
- A cancel does not interrupt an append: the caller gets its cancel when the append has succeeded or failed.
- A log knows which event its next one follows, and checks that under the write lock of the file. Of two
  writers of one conversation, in one process or in two, one gets `StoreConflict`, and nothing is mixed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from .events import Event, StoreClosed, check_events, check_id, encode_event
from .sqlite_file import SQLiteFile
from .sqlite_thread import Job, Writer


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
        self._writer = Writer(self._file)
        # For a store that is dropped without a close: from Python 3.13 on an open connection is a
        # ResourceWarning then, and its WAL file stays behind.
        self._finalizer = weakref.finalize(self, self._writer.drop)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self.path!r}>"

    def open(self, conversation_id: str) -> SQLiteLog:
        """Return the log of a conversation, new or existing. Does not access the file."""
        self._writer.check_open()
        return SQLiteLog(self, check_id(conversation_id))

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


class SQLiteLog:
    """One conversation of a `SQLiteStore`."""

    __slots__ = ("_closed", "_position", "_store", "conversation_id")

    def __init__(self, store: SQLiteStore, conversation_id: str) -> None:
        self._store = store
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
        if self._closed:
            raise StoreClosed(
                f"conversation {self.conversation_id!r} cannot be written to: its log was closed"
            )
        check_events(events)
        return _Append(self, [encode_event(event) for event in events], after)

    def _read(self, after: int) -> list[Event]:
        events, self._position = self._store._file.read(self.conversation_id, after)
        return events


class _Append(Job[int]):
    """One append. It moves the position of its log, and moves it back if it is rolled back."""

    __slots__ = ("_after", "_before", "_log", "_payloads")

    def __init__(self, log: SQLiteLog, payloads: list[str], after: int | None) -> None:
        super().__init__(self._append, writes=True)
        self._log = log
        self._payloads = payloads
        self._after = after

    def _append(self) -> int:
        log = self._log
        # Here and not when the job was made: others of the same log may have been done since.
        self._before = log._position
        expected = log._position if self._after is None else self._after
        log._position = log._store._file.append(log.conversation_id, self._payloads, expected)
        return log._position

    def undo(self) -> None:
        """Move the position back: the transaction was rolled back."""
        self._log._position = self._before
