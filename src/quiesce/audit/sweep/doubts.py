"""Sightings that may be due to the audit's own impatience.

When the virtual clock jumps over a silent connection, what would have been an answer becomes a timeout. The run itself
does not show the difference. So the sweep repeats such a run with `MORE_PATIENCE` times the patience: a sighting that
comes back is a finding, and one that does not is unresolved.
"""

from __future__ import annotations

from dataclasses import replace

from quiesce.audit.findings import severity_of
from quiesce.audit.model import MORE_PATIENCE, Chain, Phase, Place, Run, Stop

_ADVICE = "if it needs longer, allow more patience (patience=, --patience SECONDS)"

# The kind and the name of a sighting.
_Identity = tuple[str, str]
# How, when and where a run was stopped.
Spot = tuple[Stop, Phase, tuple[Place, ...]]


class Doubts:
    """The doubtful sightings of one sweep.

    A sighting that came back with more patience is not doubted again when the same stop shows it at the same place.
    """

    def __init__(self) -> None:
        self._confirmed: set[tuple[Spot, _Identity, Chain]] = set()

    def doubtful(self, run: Run, spot: Spot) -> set[_Identity]:
        """The sightings of a run that would count as errors and may be due to a lack of patience."""
        if not run.passed_over:
            return set()
        counting = [s for s in run.sightings if severity_of(s, spot[0]) == "error"]
        return {
            (s.kind, s.what) for s in counting if (spot, (s.kind, s.what), s.stuck_at) not in self._confirmed
        }

    def resolve(self, run: Run, spot: Spot, doubtful: set[_Identity], patient: Run | None) -> None:
        """Mark the doubtful sightings that the patient run does not show; None if that run did not reach its point."""
        seen = patient.sightings if patient is not None else []
        self._confirmed |= {(spot, (s.kind, s.what), s.stuck_at) for s in seen}
        unconfirmed = doubtful - {(s.kind, s.what) for s in seen}
        doubt = (
            f"was seen after the audit stopped waiting for {run.passed_over}, and not with {MORE_PATIENCE} times "
            f"the patience; {_ADVICE}"
        )
        run.sightings = [
            replace(s, doubt=doubt) if (s.kind, s.what) in unconfirmed else s for s in run.sightings
        ]


def impatience_hint(run: Run) -> str:
    """An addition to the reason why a run failed, if a lack of patience may be the cause; otherwise ""."""
    return f", after the audit stopped waiting for {run.passed_over}; {_ADVICE}" if run.passed_over else ""


def needs_patience(hasty: Run, patient: Run) -> bool:
    """Whether a run without a stop succeeds only with more patience."""
    if patient.outcome != "returned":
        return False
    return hasty.outcome != "returned" or bool(_identities(hasty) - _identities(patient))


def patience_note(hasty: Run, times: int) -> str:
    """The note of a result whose every run needed more patience than the limits say."""
    return (
        f"every run had {times} times the patience, because one without a stop failed after the audit stopped waiting "
        f"for {hasty.passed_over} (patience=, --patience SECONDS)"
    )


def _identities(run: Run) -> set[_Identity]:
    return {(sighting.kind, sighting.what) for sighting in run.sightings}
