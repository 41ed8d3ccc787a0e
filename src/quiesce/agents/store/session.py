"""Sessions: the items of several runs, kept in the same stores as conversations.

A session only appends: `pop_item` and `clear_session` are events too, so a crash in the middle of one loses
nothing. And `LogSession(store.open(conversation_id))` shows the transcript of a conversation.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from quiesce.agents.agent import has, refuse
from quiesce.models import Item
from quiesce.models.inner import InputItem, as_items

from .contract import Log, Store, StoreConflict
from .events import ItemAdded, ItemPopped, ItemsCleared
from .memory import MemoryStore
from .replay import items_of


@runtime_checkable
class Session(Protocol):
    """What `session=` of a run takes: anything that keeps items. You may derive from it.

    A run adds items of `quiesce.models`. A session that keeps JSON writes them with `msgspec.to_builtins(items)`, and
    may return the dicts as they are.
    """

    #: The id of the session.
    session_id: str

    async def get_items(self, limit: int | None = None) -> Sequence[InputItem]:
        """Return the items, oldest first; with `limit`, only the last `limit` of them. They may be dicts."""
        ...

    # A session of a user's own may take dicts as well, and a list of one type is not a list of another.
    async def add_items(self, items: list[Any]) -> None:
        """Add items at the end, all or none."""
        ...

    async def pop_item(self) -> InputItem | None:
        """Remove the last item, and return it; None if there is none."""
        ...

    async def clear_session(self) -> None:
        """Remove all items."""
        ...


class LogSession:
    """A session in a log of a store.

    ```python
    store = SQLiteStore("chat.db")
    result = await Runner.run(agent, "Hello", session=LogSession(store.open("user-7")))
    ```
    """

    __slots__ = ("_log", "session_id")

    def __init__(self, log: Log) -> None:
        if not has(log, "append", "read", "conversation_id"):
            instead = "write LogSession(store.open('user-7')), for example" if has(log, "open") else ""
            refuse("the log of a LogSession", "a Log", log, instead)
        self._log = log
        #: The id of the conversation in the store.
        self.session_id = log.conversation_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}>"

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the items, oldest first; with `limit`, only the last `limit` of them."""
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be 0 or more, not {limit}")
        items = items_of(await self._log.read())
        return items if limit is None else items[max(len(items) - limit, 0) :]

    # Not `Iterable[InputItem]`: a subclass of a user's own may take items only.
    async def add_items(self, items: Iterable[Any]) -> None:
        """Add items, or dicts that describe some, at the end, all or none; they are durable when this returns."""
        await insert_items(self, ((item, 0) for item in as_items(items)))

    async def pop_item(self) -> Item | None:
        """Remove the last item, and return it; None if there is none."""
        while True:
            # Reading and removing are two steps, so the removal names the state that it is about.
            events = await self._log.read()
            items = items_of(events)
            if not items:
                return None
            try:
                await self._log.append([ItemPopped()], after=len(events))
            except StoreConflict:  # another writer has added an item meanwhile: now that is the last one
                continue
            return items[-1]

    async def clear_session(self) -> None:
        """Remove all items."""
        while True:
            events = await self._log.read()
            if not items_of(events):
                return
            try:
                await self._log.append([ItemsCleared()], after=len(events))
            except StoreConflict:  # remove what was added meanwhile too
                continue
            return


async def insert_items(session: LogSession, items: Iterable[tuple[Item, int]]) -> None:
    """Add items, all or none. Each stands before the last so many of the items that are there by then."""
    await session._log.append([ItemAdded(item=item, back=back) for item, back in items])


class _OwnStoreSession(LogSession):
    """A session with a store of its own."""

    __slots__ = ("_store",)

    def __init__(self, store: Store, session_id: str) -> None:
        self._store = store
        super().__init__(store.open(session_id))

    async def close(self) -> None:
        """Close the store. Items in a file stay there; those in memory are gone."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._store.close()


class MemorySession(_OwnStoreSession):
    """A session in memory."""

    __slots__ = ()

    def __init__(self, session_id: str | None = None) -> None:
        super().__init__(MemoryStore(), session_id if session_id is not None else str(uuid.uuid4()))


class SQLiteSession(_OwnStoreSession):
    """A session in a SQLite file; in memory if no file is named.

    ```python
    session = SQLiteSession("user-7", "chat.db")
    result = await Runner.run(agent, "Hello", session=session)
    ```
    """

    __slots__ = ()

    def __init__(self, session_id: str, db_path: str | os.PathLike[str] = ":memory:") -> None:
        super().__init__(_store_at(db_path), session_id)


def _store_at(path: str | os.PathLike[str]) -> Store:
    if path == ":memory:":
        return MemoryStore()
    from .sqlite import SQLiteStore  # sqlite3 is imported only by programs that use files

    return SQLiteStore(path)
