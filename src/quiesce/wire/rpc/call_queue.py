"""Callers that wait until fewer of our requests are unanswered.

Two peers that ask each other more than either takes on would both stop reading, and then neither could read the answers that it waits for.
So a peer asks no more at a time than the other side has room for; the rest wait here, in order. Handlers do not: their own answer may depend
on what they ask.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.kernel.inner import Waiter

    from .connection import Connection


class CallQueue:
    """Those who wait for their turn to ask."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiters: OrderedDict[Waiter, object] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    async def wait_for_turn(self, method: str) -> None:
        """Until one more may be asked; an error if none may any more."""
        connection, waiters = self._connection, self._waiters
        was_woken = False
        while len(connection.calls) >= connection.limits.unanswered:
            waiter = connection.backend.make_waiter()
            waiters[waiter] = None
            if was_woken:
                waiters.move_to_end(waiter, last=False)  # somebody came between: it is still this one's turn
            try:
                await waiter
                was_woken = True
                if connection.closing or connection.ended is not None:
                    raise connection.refusal(method)
            except BaseException:
                if waiters.pop(waiter, self) is self:
                    self.next()  # it was this one's turn
                raise

    def next(self) -> None:
        """A call has ended: whose turn is it?"""
        if self._waiters:
            self._waiters.popitem(last=False)[0].wake()
