"""What keeps the events of conversations, and who may write to them: the contract of a store.

`quiesce.testing.check_store` tests all of it, for a store of your own too. The reasons are in
docs/decisions/one-holder.md.

Invariants
- A log is append-only: events are added, never changed. Taking an item back is an event too.
- `append` and `post` are all or nothing. What they have acknowledged (they returned) stays as long as the store
  does: a `MemoryStore` as long as the process lives, a `SQLiteStore` through crashes and power cuts.
- Events of a log are numbered 1, 2, 3, ... without gaps. A log knows the number up to which it has read or
  written. If another writer has added events since, `append` raises `StoreConflict` and writes nothing;
  `read` catches up.
- One writer runs a conversation: the holder of its lease. Each lease has a higher epoch than the one before it.
  From the moment a lease is granted, an append under an older one raises `StoreFenced` and writes nothing, also
  one that was sent before and arrives late.
- A message, an approval and a request to stop (`Posted`) need no lease. They are posted: they go to the end of the
  log, and the holder finds them there. A message id is in a log only once.
- An append whose answer was lost raises `StoreInDoubt`. The caller reads the log to see what became of it. If the
  attempt still arrives after that, and the caller has written meanwhile, it writes nothing: its position is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from quiesce.agents.agent import AgentsException

from .events import Event, Posted


class StoreError(AgentsException):
    """A store cannot read or write; the message says which one, and what to do.

    Unless it is a `StoreInDoubt`, nothing was written.
    """


class StoreConflict(StoreError):
    """Another writer has added to this conversation since it was read here."""


class StoreFenced(StoreConflict):
    """The conversation was taken over: another lease was granted since. Nothing was written."""


class StoreInDoubt(StoreError):
    """The connection broke while the store was writing: the events are in the log, all of them, or none of them is.

    Read the log to find out. Writing them again without looking could write them twice.
    """


class StoreHeld(StoreError):
    """The conversation is being run, and its lease is held; `holder` says by whom."""

    def __init__(self, message: str, holder: Holder) -> None:
        super().__init__(message)
        self.holder = holder


class StoreClosed(StoreError):
    """The store, or this log of it, was closed."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who runs a conversation at the moment.

    - `owner`: what the holder calls itself, for people to read, such as `"process 4711 on web-2"`.
    - `epoch`: the number of its lease.
    """

    owner: str
    epoch: int


OnEvents: TypeAlias = Callable[[Sequence[Event]], object]


@runtime_checkable
class Log(Protocol):
    """The events of one conversation."""

    @property
    def conversation_id(self) -> str:
        """Which conversation."""
        ...

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """Add events, all or none; durable when it returns. Returns the number of the last event.

        `after` is the number of the event that these must follow; by default the last one that this log has
        read or written. Raises `StoreConflict` if other events follow that one already, `StoreFenced` if this is
        the log of a lease and another one was granted since, and `StoreInDoubt` if the answer was lost. A caller
        who is cancelled meanwhile gets the cancel when it is known whether they were added.
        """
        ...

    async def post(self, events: Sequence[Posted]) -> int:
        """Add what needs no lease, at the end of the log.

        A message whose id is in the log already is left out. Returns the number of the last event that was added;
        0 if there was nothing to add. Otherwise like `append`. It does not change up to where this log has read.
        """
        ...

    async def read(self, after: int = 0) -> list[Event]:
        """Return all events, or those after number `after`."""
        ...

    async def load(self) -> list[Event]:
        """Return what is needed to open the conversation: every `Snapshot`, and the events after the last one."""
        ...

    def append_sync(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """`append` for plain threads: it blocks."""
        ...

    def post_sync(self, events: Sequence[Posted]) -> int:
        """`post` for plain threads: it blocks."""
        ...

    def read_sync(self, after: int = 0) -> list[Event]:
        """`read` for plain threads: it blocks."""
        ...

    def load_sync(self) -> list[Event]:
        """`load` for plain threads: it blocks."""
        ...

    def watch(self, on_events: OnEvents, *, after: int) -> Callable[[], None]:
        """Call `on_events` with the events after number `after`, then with later ones as they come.

        In their order, without gaps, in a thread of the store, or in that of the writer. `on_events` must not block
        and must not raise. Events that this log appends itself are included. Returns a function that ends
        the watch; a call that is under way may still end after it.
        """
        ...

    def close(self) -> None:
        """Refuse further writes through this log; the store stays open. Never waits."""
        ...


@runtime_checkable
class Lease(Protocol):
    """The right to run a conversation, until it is released, or until its process ends."""

    @property
    def epoch(self) -> int:
        """The number of this lease; later ones of the same conversation have higher numbers."""
        ...

    @property
    def last_seq(self) -> int:
        """The number of the last event in the log when the lease was granted."""
        ...

    @property
    def log(self) -> Log:
        """The log to write to: it refuses to append once another lease was granted."""
        ...

    async def release(self) -> None:
        """Give it up. May be called again; does nothing if another lease was granted since.

        It does not raise because the store cannot be reached: the lease is then released when it can be.
        """
        ...

    def release_sync(self) -> None:
        """`release` for plain threads: it blocks."""
        ...


@runtime_checkable
class Store(Protocol):
    """Keeps the logs of any number of conversations."""

    def open(self, conversation_id: str) -> Log:
        """Return the log of a conversation, new or existing.

        Costs nothing: the first read or append accesses the store.
        """
        ...

    async def lease(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> Lease:
        """Grant the right to run a conversation, or raise `StoreHeld`.

        A holder whose process has ended holds nothing. With `epoch`, who holds the lease is decided
        elsewhere, by an engine that counts the attempts: the lease is granted if `epoch` is higher than that of
        every earlier lease, whether that is held or not, and otherwise `StoreFenced` is raised. A caller who is
        cancelled meanwhile holds nothing, and neither does one who gets a `StoreInDoubt`.
        """
        ...

    async def holder(self, conversation_id: str) -> Holder | None:
        """Return who runs a conversation now; None if it is not being run, or its runner's process has ended."""
        ...

    async def ids(self) -> list[str]:
        """Return the ids of the conversations that have at least one event, sorted."""
        ...

    async def delete(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none.

        The numbers of its leases go on: no lease of before is valid for a later conversation with this id.
        """
        ...

    async def close(self) -> None:
        """Finish pending writes, and release everything.

        May be called again, and by several callers at once.
        """
        ...

    def lease_sync(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> Lease:
        """`lease` for plain threads: it blocks."""
        ...

    def holder_sync(self, conversation_id: str) -> Holder | None:
        """`holder` for plain threads: it blocks."""
        ...

    def ids_sync(self) -> list[str]:
        """`ids` for plain threads."""
        ...

    def delete_sync(self, conversation_id: str) -> bool:
        """`delete` for plain threads."""
        ...

    def close_sync(self) -> None:
        """`close` for plain threads."""
        ...


def check_id(conversation_id: object) -> str:
    """Return the id of a conversation; ValueError unless it is a str that is not empty."""
    if not isinstance(conversation_id, str) or not conversation_id:
        raise ValueError(f"a conversation's id is a str that is not empty, not {conversation_id!r}")
    return conversation_id


def conflict(conversation_id: str, where: str, expected: int, found: int) -> StoreConflict:
    """Return the error for a log that expected another number of events in its store."""
    what = "deleted" if found < expected else "written to"
    return StoreConflict(
        f"conversation {conversation_id!r} in {where} was {what} by another writer: it has {found} events, "
        f"and this log knows of {expected}. Nothing was added. "
        "Two writers cannot share a conversation: read it again, or use another id"
    )


def fenced(conversation_id: str, where: str, epoch: int, latest: int) -> StoreFenced:
    """Return the error for a lease that is not the latest one."""
    return StoreFenced(
        f"conversation {conversation_id!r} in {where} was taken over: this is lease {epoch}, and lease {latest} was "
        "granted since. Nothing was added; the run that goes on is the one of the latest lease"
    )


def held(conversation_id: str, where: str, holder: Holder) -> StoreHeld:
    """Return the error for a lease that another runner holds."""
    return StoreHeld(
        f"conversation {conversation_id!r} in {where} is being run by {holder.owner or 'another runner'}: "
        "wait for the end of that run, or interrupt it",
        holder,
    )
