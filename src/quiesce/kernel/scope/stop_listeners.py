"""How stops are observed in production: structured log records, and listeners.

- A report without a caller to return it to is logged: as text for people, and in fields for machines.
- Listeners are called when a stop begins, in the context of the code that requested it, and when it has
  settled or expired. They are called once more if what was left over then ends after all.
- Each stop is reported to them once. A scope that was stopped because its owner was is part of the owner's
  report. A block that ended normally and left nothing is not reported.
- Without listeners, a stop pays for one check of an empty list.
- A listener cannot harm a stop: what it raises is logged.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from quiesce._safe.printed import logger, printed_line
from quiesce.kernel.base import SETTLED

from .reporting import report_of

if TYPE_CHECKING:
    from quiesce.kernel.base import StopReport

    from .lifecycle import ScopeCore


class Listener(Protocol):
    """Is called about stops, in the thread of their event loop."""

    def began(self, core: ScopeCore) -> None:
        """A stop has begun. Whether there is anything to report is known only at its end."""

    def ended(self, core: ScopeCore, report: StopReport | None, *, late: bool) -> None:
        """The stop has settled or expired, or has settled `late`, after it had expired.

        `report` is None if there is nothing to report.
        """


# Of the whole process. Never replaced, so that other modules may keep a reference to the list.
listeners: list[Listener] = []


def notify_began(core: ScopeCore) -> None:
    """Call the listeners: `core` begins to stop. Only needed if there are any."""
    for listener in tuple(listeners):
        try:
            listener.began(core)
        except Exception:
            logger.exception("a listener failed when scope %r began to stop", core.label)


def notify_ended(core: ScopeCore) -> None:
    """Call the listeners: the stop of `core` has settled or expired. Only needed if there are any."""
    expiries = core.stop_state.expiries if core.stop_state is not None else 0
    late = core.state is SETTLED and expiries > 0
    if expiries > 1 and not late:
        return  # closed again, and expired again: nothing new
    owner, report = core.parent, None
    if owner is None or not owner.closed or owner.reason is not core.reason:
        report = _report_for_listeners(core)
    if report is not None and not late and report.clean and core.reason is not None:
        report = None if core.reason.kind == "parent" else report
    for listener in tuple(listeners):
        try:
            listener.ended(core, report, late=late)
        except Exception:
            logger.exception("a listener failed when scope %r had stopped", core.label)


def _report_for_listeners(core: ScopeCore) -> StopReport:
    failures = core.failures
    if failures is None:
        return report_of(core, ())
    was_reported = failures.was_reported
    report = report_of(core, ())
    # A report for a listener does not count: the program itself has not seen these errors yet.
    failures.was_reported = was_reported
    return report


def is_trouble(report: StopReport) -> bool:
    """Whether a report deserves a warning: something is left over, or a clean-up failed."""
    # Not what is only unseen: `note_unseen` has warned of that once, for the whole program.
    return not (report.clean or replace(report, unseen=()).clean)


def log_report(report: StopReport, level: int = logging.WARNING) -> None:
    """Log a report that has no caller to be returned to. The record has the fields of `fields_of`."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", report, extra=fields_of(report), stacklevel=2)


def fields_of(report: StopReport) -> dict[str, object]:
    """A report as plain values, under names that a log record does not use itself."""
    reason = report.reason
    return {
        "quiesce_scope": printed_line(report.name),
        "quiesce_reason": reason.kind if reason is not None else None,
        "quiesce_message": printed_line(reason.message) if reason is not None else None,
        "quiesce_elapsed": report.elapsed,
        "quiesce_outcomes": counts_of(report),
        "quiesce_left": [
            {name: printed_line(getattr(left, name)) for name in ("kind", "name", "made_at", "stuck_at")}
            for left in report.left
        ],
        "quiesce_notes": [printed_line(note) for note in report.notes],
        "quiesce_unseen": [printed_line(unseen) for unseen in report.unseen],
    }


def counts_of(report: StopReport) -> dict[str, int]:
    """How many children ended in which way."""
    counts: dict[str, int] = {}
    for outcome in report.outcomes:
        counts[outcome.state] = counts.get(outcome.state, 0) + 1
    return counts
