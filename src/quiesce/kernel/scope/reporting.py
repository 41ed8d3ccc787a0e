"""The report of a stop: how each child ended, and what is left over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from quiesce.kernel.base import SETTLED, Leftover, Row, State, StopReport, are_there_others, describe

from .child import FAILED, PENDING, RUNNING, Child
from .failures import Failure
from .unseen import unseen_of

if TYPE_CHECKING:
    from .lifecycle import ScopeCore

UNNAMED = "unnamed"


def report_of(core: ScopeCore, closing: Collection[Child | ScopeCore]) -> StopReport:
    """What the stop of `core` has done so far. `closing`: children and scopes that themselves wait for it."""
    left: list[Leftover] = []
    rows: Sequence[Row] = ()
    elapsed = 0.0
    stop = core.stop_state
    if core.state is SETTLED:
        if stop is not None:
            if stop.children:
                stop.rows = _rows_of_the_ended(stop.children)
                stop.children = ()
            rows, elapsed = stop.rows, stop.took
    else:
        if stop is not None:
            elapsed = core.backend.now() - stop.started
            rows = [_row(child, closing) for child in stop.children if child._label is not None]
        left = [found for item in _contents(core) if item not in closing for found in item._leftovers()]
    notes, while_stopping = core.notes, 0
    failures: Sequence[Failure] = ()
    if core.failures is not None:
        failures, while_stopping = core.failures.report(), core.failures.while_stopping
        if core.failures.count > len(failures):
            notes = [*notes, f"{core.failures.count - len(failures)} earlier failures are not listed"]
    unseen = unseen_of(core) if are_there_others() else core.unseen
    return StopReport(
        core.name or UNNAMED,
        core.reason,
        elapsed,
        left,
        core.ended,
        notes,
        unseen,
        rows,
        failures,
        while_stopping,
    )


def leftovers_of(core: ScopeCore) -> list[Leftover]:
    """Everything that is still running in `core` and in its nested scopes; never empty."""
    left = [found for item in _contents(core) for found in item._leftovers()]
    return left or [Leftover("scope", core.label, describe(core._site), "nothing runs in it")]


def _contents(core: ScopeCore) -> list[Child | ScopeCore]:
    return [*core.children, *core.nested]


def _rows_of_the_ended(children: Sequence[Child]) -> list[Row]:
    rows: list[Row] = []
    for child in children:
        if child._label is not None:
            state: State = child.state  # type: ignore[assignment]  # neither pending nor running
            rows.append((child._label, state, child._value if state is FAILED else None))
    return rows


def _row(child: Child, closing: Collection[Child | ScopeCore]) -> Row:
    state: State
    if child.state == PENDING or child.state == RUNNING:
        state = "closing" if child in closing else "still running"
    else:
        state = child.state
    return child._label, state, child._value if state == "failed" else None
