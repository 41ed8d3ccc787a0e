"""What was seen after the audit stopped waiting for the outside, and may be seen for that reason alone.

The virtual clock jumps over a connection that is silent, and what was going to be an answer is a timeout. Nobody can tell that
from the run itself. So such a run is made once more, with `MORE_PATIENCE` times the patience: what it shows too is a finding,
what it does not show is unresolved.
"""

from __future__ import annotations

from dataclasses import replace

from quiesce.audit.findings import severity_of
from quiesce.audit.model import MORE_PATIENCE, Chain, Phase, Place, Run, Stop

_ADVICE = "if it needs longer, give it more patience (patience=, --patience SECONDS)"


_Shown = tuple[str, str]  # kind and name
Spot = tuple[Stop, Phase, tuple[Place, ...]]  # how, when and where a run was stopped


class Doubts:
    """Of a sweep. What a stop has shown with more patience is not doubted again when the same stop shows it at the same place."""

    def __init__(self) -> None:
        self._sure: set[tuple[Spot, _Shown, Chain]] = set()

    def of(self, run: Run, spot: Spot) -> set[_Shown]:
        """What the run shows, would count, and may be there for want of patience."""
        if not run.passed_over:
            return set()
        counting = [s for s in run.sightings if severity_of(s, spot[0]) == "error"]
        return {(s.kind, s.what) for s in counting if (spot, (s.kind, s.what), s.stuck_at) not in self._sure}

    def resolve(self, run: Run, spot: Spot, doubtful: set[_Shown], patient: Run | None) -> None:
        """Mark what the patient run does not show. There is none if it did not get to its point."""
        seen = patient.sightings if patient is not None else []
        self._sure |= {(spot, (s.kind, s.what), s.stuck_at) for s in seen}
        left = doubtful - {(s.kind, s.what) for s in seen}
        doubt = (
            f"was seen after the audit stopped waiting for {run.passed_over}, and not with {MORE_PATIENCE} times "
            f"the patience; {_ADVICE}"
        )
        run.sightings = [replace(s, doubt=doubt) if (s.kind, s.what) in left else s for s in run.sightings]


def in_haste(run: Run) -> str:
    """What to add to the reason why a run went wrong, if it may be for want of patience."""
    return f", after the audit stopped waiting for {run.passed_over}; {_ADVICE}" if run.passed_over else ""


def needs_patience(hasty: Run, patient: Run) -> bool:
    """Whether a run without a stop goes well only with more patience."""
    if patient.outcome != "returned":
        return False
    return hasty.outcome != "returned" or bool(_shown(hasty) - _shown(patient))


def says_so(hasty: Run, times: int) -> str:
    return (
        f"every run had {times} times the patience, because one without a stop went wrong after the audit stopped waiting "
        f"for {hasty.passed_over} (patience=, --patience SECONDS)"
    )


def _shown(run: Run) -> set[_Shown]:
    return {(sighting.kind, sighting.what) for sighting in run.sightings}
