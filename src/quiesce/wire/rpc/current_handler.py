"""Which piece of the peer's work the code at hand belongs to.

A handler that asks the peer something, and waits, must get its answer however much else has come before: what stands ahead of that answer
may be waiting for this very handler. So a call knows whether it was made inside a handler, and inside which.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from .connection import Connection


class CurrentWork(Struct, eq=False):
    """A request, or a lane of notifications, that a connection is at work on. (Structs are made in less time than other objects.)"""

    connection: Connection
    done: bool = False
    asking: int = 0  # calls of ours that it waits for

    def begins_to_ask(self) -> None:
        """It waits for an answer of the peer."""
        self.asking += 1
        if self.asking == 1:
            self.steps_aside()

    def has_asked(self) -> None:
        """That call has ended."""
        self.asking -= 1
        if not self.asking:
            self.steps_back()

    def steps_aside(self) -> None:
        """What is behind it must not wait for it now: its answer may depend on that."""

    def steps_back(self) -> None:
        """It goes on."""


current_work: ContextVar[CurrentWork | None] = ContextVar("quiesce_wire_work", default=None)


def work_for(connection: Connection) -> CurrentWork | None:
    """The piece of this connection's work that the code at hand belongs to, if that is still going on."""
    work = current_work.get()
    return work if work is not None and work.connection is connection and not work.done else None
