"""How far the stop of a scope has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quiesce.kernel.base import COOPERATE, Ends, Row, Rung

if TYPE_CHECKING:
    from .child import Child


class StopState:
    """The stop of a scope: made when it begins, kept when it has settled.

    - `started` is when it began, by the clock of the event loop, and `took` how many seconds it needed.
    - `rung` is the rung of the ladder that it has reached, `ends` when each rung ends.
    - `expiries` counts how often its time ran out: closing again gives it more time.
    - `children` are those that the report lists: all that were running when the stop began, and what was
      found since.
    - `rows` is what the report says of them, once all have ended. It replaces `children`, which would keep
      the scope alive.
    """

    __slots__ = ("children", "ends", "expiries", "rows", "rung", "started", "took")

    took: float  # set when the scope settles

    def __init__(self, started: float, ends: Ends, children: Sequence[Child]) -> None:
        self.started = started
        self.rung: Rung = COOPERATE
        self.ends = ends
        self.expiries = 0
        self.children = children
        self.rows: Sequence[Row] = ()
