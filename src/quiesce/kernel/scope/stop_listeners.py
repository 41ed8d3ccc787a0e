"""What is seen of stops in production: structured log records, and listeners.

- A report that nobody is handed goes to the log: as text for people, and in fields for machines.
- A listener is told of each stop that somebody asked for: when it begins, in the context of who asked, and when it
  is over: settled, or out of time. It is told once more if what was left then ends after all.
- One stop is told once. A scope that was stopped because its owner was, is in the owner's report. A block that came to
  its ordinary end, which left nothing, is nobody's news.
- While nobody listens, a stop pays for one look at an empty list.
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
    """Told of stops, in the thread of their event loop."""

    def began(self, core: ScopeCore) -> None:
        """A stop was asked for. Whether it is worth telling is known at its end."""

    def ended(self, core: ScopeCore, report: StopReport | None, *, late: bool) -> None:
        """It is over; `report` is None if there is nothing to tell. `late`: what was left has ended as well."""


listeners: list[Listener] = []  # of the process; never replaced, so that others may hold it


def notify_began(core: ScopeCore) -> None:
    """Call where there are listeners and `core` begins to stop."""
    for listener in tuple(listeners):
        try:
            listener.began(core)
        except Exception:
            logger.exception("a listener failed when scope %r began to stop", core.label)


def notify_ended(core: ScopeCore) -> None:
    """Call where there are listeners and the stop of `core` has settled, or is out of time."""
    late = core.state is SETTLED and core.expiries > 0
    if core.expiries > 1 and not late:
        return  # somebody waited again, in vain
    told, owner = core.told, core.parent
    report = None
    if owner is None or not owner.closed or owner.reason is not core.reason:
        report = report_of(core, ())
        core.told = told  # a listener is nobody who has asked for the errors
    if report is not None and not late and report.clean and core.reason is not None:
        report = None if core.reason.kind == "parent" else report
    for listener in tuple(listeners):
        try:
            listener.ended(core, report, late=late)
        except Exception:
            logger.exception("a listener failed when scope %r had stopped", core.label)


def is_trouble(report: StopReport) -> bool:
    """Whether it is worth a warning: something is left, or a clean-up failed. What merely cannot be seen is warned of once for all."""
    return not (report.clean or replace(report, unseen=()).clean)


def log_report(report: StopReport, level: int = logging.WARNING) -> None:
    """Log a report that nobody is handed. The fields of the record are those of `fields_of`."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", report, extra=fields_of(report), stacklevel=2)


def fields_of(report: StopReport) -> dict[str, object]:
    """A report in plain values, under names that clash with nothing in a log record."""
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
