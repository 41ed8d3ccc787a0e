"""Where a run writes down what happens, as it happens.

A `Session` keeps items only. It gets whole turns, calls together with their results, so that a crash between
the two leaves nothing in it that a provider would refuse. A log (`LogJournal`, for conversations) gets
everything at once: it can tell later what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from quiesce.agents.history_repair import MISSING, repair_items
from quiesce.agents.store import LogSession, StoreConflict, conflict, insert_items
from quiesce.models import Item, Reasoning, ToolCall
from quiesce.models.inner import as_items, pending_calls

if TYPE_CHECKING:
    from quiesce.agents.store import Session


class Journal(Protocol):
    """What the engine tells its journal."""

    async def load(self) -> list[Item]:
        """What was said before this run."""
        ...

    async def add(self, items: list[Item], late: Sequence[tuple[Item, int]] = ()) -> None:
        """Keep these, and what an earlier call could not keep. They are safe when this returns.

        `late` comes after them: each of these items stands in front of the last so many items that are kept
        by then.
        """
        ...

    async def tool_starting(self, call: ToolCall) -> None:
        """A tool with side effects is about to start."""
        ...

    async def approval_requested(self, call: ToolCall) -> None:
        """A call waits for an approval."""
        ...


class SessionJournal:
    """A `Session` that is given whole turns.

    A write that was interrupted by a cancel, or has failed, may have taken place nevertheless. What it should
    have written is kept, and the session is read before the next attempt, at the latest when the run settles:
    nothing is lost, and nothing is written twice. If another program has written to the session, the run
    leaves the session to that program: it raises `StoreConflict` once, and writes nothing more.

    Another program may have left a session incomplete. It is repaired as it is read, in the same way each
    time; what the session keeps is not changed.

    What waited for its guardrails is put where it was said. A session of a user's own class can only add at
    the end. There it stands behind the results of the tools, and reasoning is left out, as no provider
    accepts it in that place.
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
        # Whether an item can be put in front of others. Not if a subclass overrides `add_items`, which then
        # expects to see everything that is added.
        self._places = getattr(type(session), "add_items", None) is LogSession.add_items
        self._taken_over = False
        # How many items the session has for sure, and those of them that this run has added, in their order.
        self._known = 0
        self._written: list[Item] = []
        # Items to write, each in front of the last so many. The first `_in_doubt` may have been written.
        self._waiting: list[tuple[Item, int]] = []
        self._in_doubt = 0
        self._is_writing = False

    def tells_the_same(self, other: object) -> bool:
        """Whether this is a journal of the same session."""
        return isinstance(other, SessionJournal) and other._session is self._session

    async def load(self) -> list[Item]:
        earlier = as_items(await self._session.get_items())
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
        # A call without its result would make the session invalid if the program ended now: it waits for the
        # result.
        if self._taken_over or not self._waiting or pending_calls([item for item, _ in self._waiting]):
            return
        if self._is_writing:
            # A write was cancelled and goes on nevertheless. If this one wrote the same items, they would be
            # in the session twice.
            raise RuntimeError(
                f"session {self._session.session_id!r} has not ended an earlier add_items, which ignores its "
                f"cancellation: {len(self._waiting)} items were not saved"
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
                await insert_items(self._session, whole)
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
        items = as_items(await self._session.get_items())
        since = items[self._known :]
        starts = range(len(since) - tried + 1)
        if any(since[start : start + tried] == expected for start in starts):
            self._are_written(tried)
        elif self._places and len(items) != self._known:
            # Somebody else has written to it. Reading has moved our position behind that, so the store itself
            # would not notice the conflict any more.
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
