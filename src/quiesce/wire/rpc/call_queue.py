"""Callers that wait until fewer of our requests are unanswered.

Two peers that ask each other more than either takes on would both stop reading, and then neither could read the answers that it waits for.
So a peer asks no more at a time than the other side has room for; the rest wait here, in order. Handlers do not: their own answer may depend
on what they ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.kernel.inner import WaitQueue

if TYPE_CHECKING:
    from .connection import Connection


class CallQueue:
    """Those who wait for their turn to ask."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._callers = WaitQueue()

    def __bool__(self) -> bool:
        return bool(self._callers)

    async def wait_for_turn(self, method: str) -> None:
        """Until one more may be asked; an error if none may any more."""
        connection = self._connection
        was_woken = False
        while len(connection.calls) >= connection.limits.unanswered:
            # Somebody may have come between its wake-up and its turn: it then waits before all others.
            await self._callers.wait(first=was_woken)
            was_woken = True
            if connection.closing or connection.ended is not None:
                self.next()
                raise connection.refusal(method)

    def next(self) -> None:
        """A call has ended: let the next caller have its turn."""
        self._callers.wake_one()
