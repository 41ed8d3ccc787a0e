"""What a stop did, and what it left running."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from quiesce._safe.printed import Printed, printed_line

from .reason import Reason
from .source_places import label_of

State: TypeAlias = Literal["finished", "failed", "cancelled", "still running", "closing"]
Row: TypeAlias = tuple[object, State, BaseException | None]


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that a stop could not end: what it is, where it was made, and where it is stuck.

    It stays owned by its scope: closing the scope again waits for it again.

    ```python
    report = await scope.close(deadline=0.1)
    for left in report.left:
        print(left.kind, left.name, left.stuck_at)    # task  worker  app.py:12 in worker
    ```
    """

    kind: str
    name: str
    made_at: str
    stuck_at: str

    def __str__(self) -> str:
        return printed_line(f"{self.kind} {self.name!r}, stuck at {self.stuck_at}, made at {self.made_at}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one child ended."""

    name: str
    state: State
    error: BaseException | None = None

    def __str__(self) -> str:
        if self.error is None:
            return printed_line(f"{self.name}: {self.state}")
        return printed_line(f"{self.name}: {self.state}, {type(self.error).__name__}: {self.error}")


@dataclass(slots=True, eq=False)
class StopReport(Printed):
    """What a stop did.

    - `reason`: why it was stopped; None if nothing stopped it and its block just ended.
    - `elapsed`: seconds from the first signal to this report.
    - `outcomes`: one `Outcome` for each child that was running when the stop began, and for each child that
      had failed before. Children that had finished before are only counted, in `ended`.
    - `left`: a `Leftover` for everything that is still running.
    - `unseen`: what may be left but could not be checked: processes that the system does not show to us, or
      threads that a library started.
    - `clean`: nothing is left, nothing is unseen, and no child failed while it was being stopped.
    - `errors`: what the children raised. `close()` never raises them.
    - `notes`: what else happened, such as a child that blocked the event loop's thread.

    ```python
    report = await scope.close(reason=Reason("user", "Esc pressed"))
    assert report.clean
    print(report)    # scope 'crawl' stopped (user: Esc pressed) in 0.002 s: 3 cancelled, nothing left
    ```
    """

    name: str
    reason: Reason | None
    elapsed: float
    left: Sequence[Leftover]
    ended: int
    notes: Sequence[str] = ()
    unseen: tuple[str, ...] = ()
    # Rows of (function or name, state, error); `Outcome`s are made when they are read, as most reports of a
    # clean stop never are. Handles would be the obvious thing to keep, but they refer to the scope, which
    # refers to its last report: a cycle that only the garbage collector could free.
    _rows: Sequence[Row] = field(default=(), repr=False)
    _failures: Sequence[tuple[str, BaseException]] = field(default=(), repr=False)
    _failed_while_stopping: int = field(default=0, repr=False)

    @property
    def clean(self) -> bool:
        """Whether nothing is left, nothing is unseen, and no clean-up failed."""
        return not (self.left or self.unseen or self._failed_while_stopping)

    @property
    def errors(self) -> list[BaseException]:
        """What the children raised, in the order in which they failed."""
        return [error for _, error in self._failures]

    @property
    def outcomes(self) -> list[Outcome]:
        """How each child ended: first those that failed before the stop, then those that it stopped."""
        listed = [Outcome(label_of(label), state, error) for label, state, error in self._rows]
        known = {id(outcome.error) for outcome in listed}
        earlier = [Outcome(name, "failed", error) for name, error in self._failures if id(error) not in known]
        return earlier + listed

    def __str__(self) -> str:
        how = f"stopped ({self.reason}) in {self.elapsed:.3f} s"
        counts: dict[str, int] = {}
        for outcome in self.outcomes:
            counts[outcome.state] = counts.get(outcome.state, 0) + 1
        if self.reason is None:
            how, counts = "ended", {"children": self.ended, **counts}
        elif self.ended and not counts:
            counts["ended before"] = self.ended
        totals = ", ".join(f"{count} {state}" for state, count in counts.items())
        totals = f"{totals}, " if totals else ""
        left = f"{len(self.left)} left" if self.left else "nothing left"
        if self.unseen:
            left += ", as far as can be seen"
        lines = [f"scope {self.name!r} {how}: {totals}{left}"]
        lines += [f"  left: {leftover}" for leftover in self.left]
        lines += [f"  unseen: {unseen}" for unseen in self.unseen]
        lines += [f"  failed: {name}: {error!r}" for name, error in self._failures]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(map(printed_line, lines))


def failures_of(report: StopReport) -> Sequence[tuple[str, BaseException]]:
    """The name and the error of each child that failed."""
    return report._failures


def add_failures(report: StopReport, failures: Iterable[tuple[str, BaseException]]) -> None:
    """Add failures from elsewhere that belong in this report, except errors that it has already."""
    known = {id(error) for error in report.errors}
    report._failures = (*report._failures, *(failure for failure in failures if id(failure[1]) not in known))
