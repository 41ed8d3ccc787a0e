"""One conversation in a store that others can open too: who runs it, and the right to run it here.

Invariants
- What is read here is never mixed from two moments that contradict each other. A run without an end is called
  lost only if no one held the lease after the log was read, and nothing was added to it since.
- At most one lease is held. One that was given by the caller of `Conversation.open` is never released here.
- The log that reads and posts is not the one that appends: reading moves the position of a log.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from quiesce import to_thread
from quiesce.agents.store import (
    Holder,
    Lease,
    Log,
    MemoryStore,
    Recovered,
    Store,
    StoreFenced,
    recover,
)
from quiesce.kernel.inner import run_in_thread

# That many events are replayed in the event loop: it takes less than a millisecond.
_DONE_AT_ONCE = 200

T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class Look:
    """What was found: the state of the log, and who runs the conversation, if anyone does."""

    found: Recovered
    holder: Holder | None

    @property
    def is_run_elsewhere(self) -> bool:
        """Whether a run goes on there."""
        return self.holder is not None and self.found.unfinished_run is not None

    @property
    def is_lost(self) -> bool:
        """Whether a run did not come to its end, and its program has ended."""
        return self.holder is None and self.found.unfinished_run is not None


class SharedStore:
    """The place of one conversation in a store."""

    __slots__ = ("conversation_id", "is_leased_outside", "lease", "log", "store")

    def __init__(self, store: Store, conversation_id: str, lease: Lease | None = None) -> None:
        self.store = store
        self.conversation_id = conversation_id
        #: Reads and posts.
        self.log: Log = store.open(conversation_id)
        #: Whether the lease is given and taken by something else.
        self.is_leased_outside = lease is not None
        #: The right to run it, while that is here.
        self.lease: Lease | None = lease

    @property
    def in_memory(self) -> bool:
        """Whether nothing here ever waits."""
        return type(self.store) is MemoryStore  # a subclass may wait

    # Looking

    async def look(self) -> Look:
        """Find out how far the conversation has come."""
        while True:
            holder = await self._holder()
            events = await self.log.load()
            found = await off_the_loop(recover, events, len(events))
            if holder is not None or found.unfinished_run is None:
                return Look(found, holder)
            # It may have ended, and its lease been released, between the two.
            holder = await self._holder()
            if holder is not None or not await self.log.read(found.last_seq):
                return Look(found, holder)

    def look_sync(self) -> Look:
        """`look` for plain threads: it blocks."""
        while True:
            holder = self._holder_sync()
            found = recover(self.log.load_sync())
            if holder is not None or found.unfinished_run is None:
                return Look(found, holder)
            holder = self._holder_sync()
            if holder is not None or not self.log.read_sync(found.last_seq):
                return Look(found, holder)

    async def _holder(self) -> Holder | None:
        # While the lease is here, a run in the log that has not ended was lost: by an earlier holder.
        return None if self.lease is not None else await self.store.holder(self.conversation_id)

    def _holder_sync(self) -> Holder | None:
        return None if self.lease is not None else self.store.holder_sync(self.conversation_id)

    # The lease

    async def take_lease(self) -> Lease:
        """Take the right to run it, unless it is here already. Raises `StoreHeld`."""
        if self.lease is None:
            self.lease = await self.store.lease(self.conversation_id, owner=this_process())
        return self.lease

    def take_lease_sync(self) -> Lease:
        """`take_lease` for plain threads: it blocks."""
        if self.lease is None:
            self.lease = self.store.lease_sync(self.conversation_id, owner=this_process())
        return self.lease

    async def release(self) -> None:
        """Give the right up, if it was taken here."""
        if not self.is_leased_outside and self.lease is not None:
            lease, self.lease = self.lease, None
            lease.log.close()
            await lease.release()

    def release_sync(self) -> None:
        """`release` for plain threads."""
        if not self.is_leased_outside and self.lease is not None:
            lease, self.lease = self.lease, None
            lease.log.close()
            lease.release_sync()

    def abandon(self) -> None:
        """Give the right up without waiting: the event loop that used it was closed."""
        if not self.is_leased_outside and self.lease is not None:
            lease, self.lease = self.lease, None
            lease.log.close()
            run_in_thread("quiesce-release", partial(_release, lease))

    def appending_log(self) -> Log:
        """Return the log that may append."""
        if self.lease is None:
            raise StoreFenced(
                f"conversation {self.conversation_id!r} is not being run here: nothing was added"
            )
        return self.lease.log


def _release(lease: Lease) -> Callable[[], object]:
    with suppress(Exception):  # then it ends with the process
        lease.release_sync()
    return lambda: None


async def off_the_loop(fn: Callable[[T], U], value: T, size: int) -> U:
    """Return `fn(value)`; if `value` is of such a `size` that the event loop would stand still, in a thread."""
    if size <= _DONE_AT_ONCE:
        return fn(value)
    return await to_thread(fn, value, name="replay of a log")


def this_process() -> str:
    """Return what a lease that is taken here says of its holder."""
    return f"process {os.getpid()} on {platform.node() or 'this machine'}"
