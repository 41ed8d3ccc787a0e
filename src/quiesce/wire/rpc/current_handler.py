"""Which handler the running code belongs to.

A handler that makes a call to the peer, and waits for the answer, must get it no matter what came before:
what stands ahead of that answer may itself be waiting for this very handler. So a call knows whether it was
made inside a handler, and inside which.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from .sender import Sender


# A msgspec struct, because making one costs less than making another object, and there is one per request.
class CurrentWork(Struct, eq=False):
    """A request, or a lane of notifications, that a connection is handling."""

    sender: Sender  # which says whose it is
    done: bool = False
    calls: int = 0  # of ours, whose answers it waits for

    def call_begins(self) -> None:
        """The handler begins to wait for an answer of the peer."""
        self.calls += 1
        if self.calls == 1:
            self.step_aside()

    def call_ended(self) -> None:
        """The handler does not wait for that answer any more."""
        self.calls -= 1
        if not self.calls:
            self.step_back()

    def step_aside(self) -> None:
        """Let others go first while the handler waits: its answer may depend on them."""

    def step_back(self) -> None:
        """Go on: the handler waits for no answer any more."""


current_work: ContextVar[CurrentWork | None] = ContextVar("quiesce_wire_work", default=None)


def work_for(sender: Sender) -> CurrentWork | None:
    """Return what the running code handles for the connection of this sender; None if that has ended."""
    work = current_work.get()
    return work if work is not None and work.sender is sender and not work.done else None
