"""Where a run writes down what happens, as it happens.

A `Session` keeps items only. It gets whole turns, calls with their results, so that a crash between the two leaves nothing in it that
a provider would refuse. A log (`LogJournal`, for conversations) gets everything at once: it can tell later what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quiesce.models._items import Item, ToolCall, pending_calls

from ._repair_items import repair_items
from ._repair_pairs import MISSING

if TYPE_CHECKING:
    from ._session import Session


class Journal(Protocol):
    """What the engine tells."""

    async def load(self) -> list[Item]:
        """What was said before this run."""
        ...

    async def add(self, items: list[Item]) -> None:
        """Keep these, and what an earlier call could not keep; they are safe when it returns."""
        ...

    async def tool_starting(self, call: ToolCall) -> None:
        """A tool with side effects is about to start."""
        ...

    async def approval_requested(self, call: ToolCall) -> None:
        """A call waits for somebody's decision."""
        ...


class SessionJournal:
    """A `Session`, told of turns as a whole.

    A write that was cut by a cancel, or has failed, may have been made all the same. What it was to write is kept, and the session is
    asked before the next attempt, at the latest when the run settles: nothing is lost, and nothing written twice.

    Others may have left a session half done. It is repaired as it is read, in the same way each time; what it keeps is not altered.
    """

    __slots__ = ("_in_doubt", "_is_writing", "_known", "_session", "_waiting")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known = 0  # how many items the session has for sure
        self._waiting: list[Item] = []
        self._in_doubt = 0  # the first so many of these may have been written
        self._is_writing = False

    def tells_the_same(self, other: object) -> bool:
        """Whether this is a journal of the same session."""
        return isinstance(other, SessionJournal) and other._session is self._session

    async def load(self) -> list[Item]:
        earlier = await self._session.get_items()
        self._known = len(earlier)
        return repair_items(earlier, MISSING)

    async def add(self, items: list[Item]) -> None:
        self._waiting += items
        if not self._waiting or pending_calls(self._waiting):
            return
        if self._is_writing:  # cancelled, and deaf to that: what it writes in the end would be there twice
            raise RuntimeError(
                f"session {self._session.session_id!r} has not ended an earlier add_items, which ignores its cancellation: "
                f"{len(self._waiting)} items were not saved"
            )
        if self._in_doubt:
            await self._resolve_doubt()
        if whole := list(self._waiting):
            self._in_doubt = len(whole)
            self._is_writing = True
            try:
                await self._session.add_items(whole)
            finally:
                self._is_writing = False
            self._written(len(whole))

    async def _resolve_doubt(self) -> None:
        tried = self._waiting[: self._in_doubt]
        since = (await self._session.get_items())[self._known :]
        starts = range(len(since) - len(tried) + 1)
        if any(since[start : start + len(tried)] == tried for start in starts):
            self._written(len(tried))
        self._in_doubt = 0

    def _written(self, count: int) -> None:
        self._known += count
        self._in_doubt = 0
        del self._waiting[:count]

    async def tool_starting(self, call: ToolCall) -> None:
        pass

    async def approval_requested(self, call: ToolCall) -> None:
        pass
