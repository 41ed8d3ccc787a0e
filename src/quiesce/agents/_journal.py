"""Where a run writes down what happens, as it happens.

A `Session` keeps items only. It gets whole turns, calls with their results, so that a crash between the two leaves nothing in it that
a provider would refuse. A log (`LogJournal`, for conversations) gets everything at once: it can tell later what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quiesce.kernel._shielded import shielded
from quiesce.models._items import Item, ToolCall, pending_calls

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
    """A `Session`, told of turns as a whole."""

    __slots__ = ("_session", "_waiting")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[Item] = []

    async def load(self) -> list[Item]:
        return list(await self._session.get_items())

    async def add(self, items: list[Item]) -> None:
        self._waiting += items
        if self._waiting and not pending_calls(self._waiting):
            await shielded(self._write)

    async def _write(self) -> None:
        # A write that was cut may have been made or not, and to make it again would double it: so none is cut. One that
        # fails is kept for the attempt that settles the run.
        whole = list(self._waiting)
        await self._session.add_items(whole)
        del self._waiting[: len(whole)]

    async def tool_starting(self, call: ToolCall) -> None:
        pass

    async def approval_requested(self, call: ToolCall) -> None:
        pass
