"""Where a run writes down what happens, as it happens.

A `Session` keeps items only. It gets whole turns, calls with their results, so that a crash between the two leaves nothing in it that
a provider would refuse. A log (`LogJournal`, for conversations) gets everything at once: it can tell later what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from quiesce.agents.history_repair import MISSING, repair_items
from quiesce.agents.store import LogSession, StoreConflict, conflict
from quiesce.models import Item, Reasoning, ToolCall
from quiesce.models.inner import pending_calls

if TYPE_CHECKING:
    from quiesce.agents.store import Session


class Journal(Protocol):
    """What the engine tells."""

    async def load(self) -> list[Item]:
        """What was said before this run."""
        ...

    async def add(self, items: list[Item], late: Sequence[tuple[Item, int]] = ()) -> None:
        """Keep these, and what an earlier call could not keep; they are safe when it returns.

        `late` comes after them: each stands before the last so many of the items that are there by then.
        """
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
    asked before the next attempt, at the latest when the run settles: nothing is lost, and nothing written twice. A session that somebody
    else has written to is left to them: it raises `StoreConflict` once, and gets nothing more from this run.

    Others may have left a session half done. It is repaired as it is read, in the same way each time; what it keeps is not altered.

    What waited for its guardrails is put where it was said. A session that is not one of ours can only add at the end: there it stands
    behind the results of the tools, and without the reasoning, which no provider takes there.
    """

    __slots__ = (
        "_in_doubt",
        "_is_writing",
        "_known",
        "_places",
        "_session",
        "_taken_over",
        "_waiting",
        "_written",
    )

    def __init__(self, session: Session) -> None:
        self._session = session
        # Whether an item can be put before others; not if somebody's own `add_items` is to see what is added.
        self._places = getattr(type(session), "add_items", None) is LogSession.add_items
        self._taken_over = False
        self._known = 0  # how many items the session has for sure
        self._written: list[Item] = []  # those of them that this run has added, in their order
        self._waiting: list[tuple[Item, int]] = []  # each stands before the last so many
        self._in_doubt = 0  # the first so many of these may have been written
        self._is_writing = False

    def tells_the_same(self, other: object) -> bool:
        """Whether this is a journal of the same session."""
        return isinstance(other, SessionJournal) and other._session is self._session

    async def load(self) -> list[Item]:
        earlier = await self._session.get_items()
        self._known = len(earlier)
        return repair_items(earlier, MISSING)

    async def add(self, items: list[Item], late: Sequence[tuple[Item, int]] = ()) -> None:
        self._waiting += [(item, 0) for item in items]
        for item, back in late:
            if self._places or not back:
                self._waiting.append((item, back))
            elif not isinstance(item, Reasoning):
                place = len(self._waiting) - back
                self._waiting.insert(place if place >= self._in_doubt else len(self._waiting), (item, 0))
        if self._taken_over or not self._waiting or pending_calls([item for item, _ in self._waiting]):
            return
        if self._is_writing:  # cancelled, and deaf to that: what it writes in the end would be there twice
            raise RuntimeError(
                f"session {self._session.session_id!r} has not ended an earlier add_items, which ignores its cancellation: "
                f"{len(self._waiting)} items were not saved"
            )
        try:
            if self._in_doubt:
                await self._resolve_doubt()
            if whole := list(self._waiting):
                await self._write(whole)
        except StoreConflict:
            self._taken_over = True
            raise

    async def _write(self, whole: list[tuple[Item, int]]) -> None:
        self._in_doubt = len(whole)
        self._is_writing = True
        try:
            if any(back for _, back in whole):
                assert isinstance(self._session, LogSession)
                await self._session._put(whole)
            else:
                await self._session.add_items([item for item, _ in whole])
        finally:
            self._is_writing = False
        self._are_written(len(whole))

    async def _resolve_doubt(self) -> None:
        tried = self._in_doubt
        expected = list(self._written)
        _put_in(expected, self._waiting[:tried])
        expected = expected[-tried:]  # the last so many, wherever the new ones stand
        items = await self._session.get_items()
        since = items[self._known :]
        starts = range(len(since) - tried + 1)
        if any(since[start : start + tried] == expected for start in starts):
            self._are_written(tried)
        elif self._places and len(items) != self._known:  # to read it has made it ours again, and it is not
            raise conflict(self._session.session_id, "its session", self._known, len(items))
        self._in_doubt = 0

    def _are_written(self, count: int) -> None:
        _put_in(self._written, self._waiting[:count])
        self._known += count
        self._in_doubt = 0
        del self._waiting[:count]

    async def tool_starting(self, call: ToolCall) -> None:
        pass

    async def approval_requested(self, call: ToolCall) -> None:
        pass


def _put_in(items: list[Item], placed: Sequence[tuple[Item, int]]) -> None:
    for item, back in placed:
        items.insert(len(items) - back, item)
