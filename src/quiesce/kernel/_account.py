"""The account of a stop: how each child ended, and what is left."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from ._child import FAILED, PENDING, RUNNING, Child
from ._report import Leftover, Row, State, StopReport
from ._site import describe
from ._states import SETTLED

if TYPE_CHECKING:
    from ._core import ScopeCore


def report_of(core: ScopeCore, closing: Collection[Child | ScopeCore]) -> StopReport:
    """What the stop of `core` has done so far."""
    left: list[Leftover] = []
    if core.state is SETTLED:
        elapsed = core.took if core.started is not None else 0.0
        if core.stopped:
            ended = [
                (child.label, child.state, child.value if child.state is FAILED else None)
                for child in core.stopped
                if child.label is not None
            ]
            core.rows = cast("list[Row]", ended)  # all of them have, so their states are those of rows
            core.stopped = ()  # they lead back to the scope
        rows = core.rows
    else:
        elapsed = core.backend.now() - core.started if core.started is not None else 0.0
        rows = [_row(child, closing) for child in core.stopped if child.label is not None]
        left = [found for item in _contents(core) if item not in closing for found in item.leftovers()]
    core.told = True
    notes, failures = core.notes, tuple(core.failures) if core.failures else ()
    if core.failed > len(failures):
        notes = [*notes, f"{core.failed - len(failures)} earlier failures are not listed"]
    return StopReport(core.label, core.reason, elapsed, left, core.ended, notes, rows, failures)


def leftovers_of(core: ScopeCore) -> list[Leftover]:
    """Everything that is still there in `core`, all the way down."""
    left = [found for item in _contents(core) for found in item.leftovers()]
    return left or [Leftover("scope", core.label, describe(core.site), "nothing runs in it")]


def _contents(core: ScopeCore) -> list[Child | ScopeCore]:
    return [*core.children, *core.nested]


def _row(child: Child, closing: Collection[Child | ScopeCore]) -> Row:
    state: State
    if child.state == PENDING or child.state == RUNNING:
        state = "closing" if child in closing else "still running"
    else:
        state = child.state
    return child.label, state, child.value if state == "failed" else None
