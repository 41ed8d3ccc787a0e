"""What a stop did, and what it left running."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, TypeAlias, cast

from quiesce._safe.printed import Printed, printed_line

from .plain_data import Record, plain_text
from .reason import Reason
from .remote_error import error_from_dict, error_to_dict, repr_of, type_and_text
from .source_places import label_of

State: TypeAlias = Literal["finished", "failed", "cancelled", "still running", "closing"]
Row: TypeAlias = tuple[object, State, BaseException | None]

# Of `StopReport.to_dict`. Within a version, members are added, and none is removed or gets another meaning.
DATA_VERSION: Final = 1


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

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {name: plain_text(getattr(self, name)) for name in ("kind", "name", "made_at", "stuck_at")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the leftover that `to_dict` made data of."""
        return cls._read(data, "Leftover")

    @classmethod
    def _read(cls, data: object, where: str) -> Self:
        record = Record(data, where)
        kind, name = record.text("kind"), record.text("name")
        return cls(kind, name, record.text("made_at", "?"), record.text("stuck_at", "?"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one child ended."""

    name: str
    state: State
    error: BaseException | None = None

    def __str__(self) -> str:
        if self.error is None:
            return printed_line(f"{self.name}: {self.state}")
        return printed_line(f"{self.name}: {self.state}, {type_and_text(self.error)}")

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON. Of `error`, the type and the text are kept."""
        error = None if self.error is None else error_to_dict(self.error)
        return {"name": plain_text(self.name), "state": self.state, "error": error}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the outcome that `to_dict` made data of; its `error` is a `RemoteError`.

        A state that only a newer version of quiesce knows is kept as it is.
        """
        return cls._read(data, "Outcome")

    @classmethod
    def _read(cls, data: object, where: str) -> Self:
        record = Record(data, where)
        name, state, error = record.text("name"), record.text("state"), record.inner("error")
        return cls(name, cast("State", state), None if error is None else error_from_dict(*error))


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

    `to_dict()` and `from_dict()` make plain data of it, for JSON, and a report of such data. A pickle holds the same
    data. In a report that was made of data, each error is a `RemoteError`: its type and its text. A copy
    (`copy.copy`, `copy.deepcopy`) has the errors themselves.

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
        lines += [f"  failed: {name}: {repr_of(error)}" for name, error in self._failures]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(map(printed_line, lines))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON: dicts, lists, texts, numbers, booleans and None.

        Of each error, the type and the text are kept. Secrets of known shapes are hidden, as in what `str()` returns,
        and very long texts are cut.
        """
        outcomes = self.outcomes
        # Reversed, so that the first of several outcomes with the same error is the one that stays.
        places = {id(outcomes[index].error): index for index in reversed(range(len(outcomes)))}
        return {
            "version": DATA_VERSION,
            "name": plain_text(self.name),
            "clean": self.clean,
            "reason": None if self.reason is None else self.reason.to_dict(),
            "elapsed": float(self.elapsed) if math.isfinite(self.elapsed) else None,
            "ended": self.ended,
            "left": [leftover.to_dict() for leftover in self.left],
            "unseen": [plain_text(unseen) for unseen in self.unseen],
            "outcomes": [outcome.to_dict() for outcome in outcomes],
            # By the place of their outcome: an error that is in both is one error.
            "failures": [
                {"name": plain_text(name), "outcome": places[id(error)]} for name, error in self._failures
            ],
            "failed_while_stopping": self._failed_while_stopping,
            "notes": [plain_text(note) for note in self.notes],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the report that `to_dict` made data of; its errors are `RemoteError`s.

        It prints the same, and is `clean` if the first one was. What a newer version has added is ignored; data of
        another version of the format raises ValueError, and so does a missing member; a wrong type raises TypeError.
        """
        record = Record(data, cls.__name__)
        if (version := record.count("version", DATA_VERSION)) != DATA_VERSION:
            raise ValueError(
                f"{cls.__name__}.version is {version}, and this version of quiesce reads {DATA_VERSION}: "
                "update quiesce, or send the report from the version that is installed here"
            )
        reason = record.inner("reason")
        outcomes = [Outcome._read(*each) for each in record.each("outcomes")]
        report = cls(
            record.text("name"),
            None if reason is None else Reason._read(*reason),
            record.seconds("elapsed", 0.0, infinite=math.inf),
            tuple(Leftover._read(*each) for each in record.each("left")),
            record.count("ended", 0),
            record.texts("notes"),
            record.texts("unseen"),
            tuple((outcome.name, outcome.state, outcome.error) for outcome in outcomes),
            tuple(_read_failure(outcomes, *each) for each in record.each("failures")),
            record.count("failed_while_stopping", 0),
        )
        if record.get("clean") is False and report.clean:
            report.unseen = (_NOT_CLEAN,)
        return report

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return type(self).from_dict, (self.to_dict(),)

    def __copy__(self) -> Self:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Everything in it is a value, except for the errors, and those are shared: few of them can be copied.
        return replace(self, left=tuple(self.left), notes=tuple(self.notes))


_NOT_CLEAN: Final = "what made it unclean: only a newer version of quiesce knows"


def _read_failure(outcomes: Sequence[Outcome], data: object, where: str) -> tuple[str, BaseException]:
    record = Record(data, where)
    name, place = record.text("name"), record.count("outcome")
    error = outcomes[place].error if place < len(outcomes) else None
    if error is None:
        raise ValueError(f"{where}.outcome is {place}, but there is no outcome with an error in that place")
    return name, error


def failures_of(report: StopReport) -> Sequence[tuple[str, BaseException]]:
    """The name and the error of each child that failed."""
    return report._failures


def add_failures(report: StopReport, failures: Iterable[tuple[str, BaseException]]) -> None:
    """Add failures from elsewhere that belong in this report, except errors that it has already."""
    known = {id(error) for error in report.errors}
    report._failures = (*report._failures, *(failure for failure in failures if id(failure[1]) not in known))
