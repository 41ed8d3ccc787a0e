"""What was seen after the audit stopped waiting for the outside, and may be seen for that reason alone.

The virtual clock jumps over a connection that is silent, and what was going to be an answer is a timeout. Nobody can tell that
from the run itself. So such a run is made once more, with `MORE_PATIENCE` times the patience: what it shows too is a finding,
what it does not show is unresolved.
"""

from __future__ import annotations

from dataclasses import replace

from ._findings import severity_of
from ._run import Run
from ._stops import Stop
from ._world import MORE_PATIENCE

_ADVICE = "if it needs longer, give it more patience (patience=, --patience SECONDS)"


class Doubts:
    """Of a sweep. What has been seen with more patience once is not doubted any more."""

    def __init__(self) -> None:
        self._sure: set[tuple[str, str]] = set()

    def of(self, run: Run, stop: Stop | None) -> set[tuple[str, str]]:
        """The kinds and names of what the run shows, would count, and may be there for want of patience."""
        if not run.passed_over:
            return set()
        counting = {(s.kind, s.what) for s in run.seen if severity_of(s, stop) == "error"}
        return counting - self._sure

    def resolve(self, run: Run, doubtful: set[tuple[str, str]], patient: Run | None) -> None:
        """Mark what the patient run does not show. There is none if it did not get to its point."""
        shown = {(s.kind, s.what) for s in patient.seen} if patient is not None else set()
        self._sure |= shown
        left = doubtful - shown
        doubt = (
            f"was seen after the audit stopped waiting for {run.passed_over}, and not with {MORE_PATIENCE} times "
            f"the patience; {_ADVICE}"
        )
        run.seen = [replace(s, doubt=doubt) if (s.kind, s.what) in left else s for s in run.seen]


def in_haste(run: Run) -> str:
    """What to add to the reason why a run went wrong, if it may be for want of patience."""
    return f", after the audit stopped waiting for {run.passed_over}; {_ADVICE}" if run.passed_over else ""


def needs_patience(hasty: Run, patient: Run) -> bool:
    """Whether a run without a stop goes well only with more patience."""
    if patient.outcome != "returned":
        return False
    return hasty.outcome != "returned" or bool(_shown(hasty) - _shown(patient))


def says_so(hasty: Run) -> str:
    return (
        f"every run had {MORE_PATIENCE} times the patience: the first one stopped waiting for {hasty.passed_over}, and "
        "went wrong (patience=, --patience SECONDS)"
    )


def _shown(run: Run) -> set[tuple[str, str]]:
    return {(sighting.kind, sighting.what) for sighting in run.seen}
