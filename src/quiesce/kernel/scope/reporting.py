"""The account of a stop: how each child ended, and what is left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from quiesce.kernel.base import SETTLED, Leftover, Row, State, StopReport, describe

from .child import FAILED, PENDING, RUNNING, Child
from .unseen import unseen_of

if TYPE_CHECKING:
    from .lifecycle import ScopeCore

UNNAMED = "unnamed"


def report_of(core: ScopeCore, closing: Collection[Child | ScopeCore]) -> StopReport:
    """What the stop of `core` has done so far."""
    left: list[Leftover] = []
    elapsed = 0.0
    if core.state is SETTLED:
        if core.stopped:
            core.rows = _rows_of_the_ended(core.stopped)
            core.stopped = ()  # they lead back to the scope
        rows = core.rows
        if core.started is not None:
            elapsed = core.took
    else:
        if core.started is not None:
            elapsed = core.backend.now() - core.started
        rows = [_row(child, closing) for child in core.stopped if child._label is not None]
        left = [found for item in _contents(core) if item not in closing for found in item._leftovers()]
    core.told = True
    notes = core.notes
    failures: Sequence[tuple[str, BaseException]] = ()
    if core.failures:
        failures = tuple(core.failures)
        if core.failed > len(failures):
            notes = [*notes, f"{core.failed - len(failures)} earlier failures are not listed"]
    name, unseen = core.name or UNNAMED, unseen_of(core)
    return StopReport(
        name, core.reason, elapsed, left, core.ended, notes, unseen, rows, failures, core.failed_late
    )


def leftovers_of(core: ScopeCore) -> list[Leftover]:
    """Everything that is still there in `core`, all the way down."""
    left = [found for item in _contents(core) for found in item._leftovers()]
    return left or [Leftover("scope", core.label, describe(core._site), "nothing runs in it")]


def _contents(core: ScopeCore) -> list[Child | ScopeCore]:
    return [*core.children, *core.nested]


def _rows_of_the_ended(children: Sequence[Child]) -> list[Row]:
    rows: list[Row] = []
    for child in children:
        if child._label is not None:
            state: State = child.state  # type: ignore[assignment]  # all of them have, so these are states of rows
            rows.append((child._label, state, child._value if state is FAILED else None))
    return rows


def _row(child: Child, closing: Collection[Child | ScopeCore]) -> Row:
    state: State
    if child.state == PENDING or child.state == RUNNING:
        state = "closing" if child in closing else "still running"
    else:
        state = child.state
    return child._label, state, child._value if state == "failed" else None
