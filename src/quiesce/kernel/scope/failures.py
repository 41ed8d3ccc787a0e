"""The errors of a scope's children: the kept ones, their number, and whether a report has named them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

Failure: TypeAlias = tuple[str, BaseException]

KEPT_FAILURES = 100


class Failures:
    """The errors of a scope's children, in the order in which they came.

    A supervisor that runs for months keeps the last hundred and counts the rest (`only_latest`). A scope that
    stops at its first failure keeps all of them, because each belongs in the group that it raises.
    """

    __slots__ = ("count", "kept", "was_reported", "while_stopping")

    def __init__(self, *, only_latest: bool) -> None:
        self.kept: deque[Failure] = deque(maxlen=KEPT_FAILURES if only_latest else None)
        self.count = 0
        self.while_stopping = 0  # how many of them in a clean-up; these make a report unclean
        self.was_reported = False  # if it is still False when the scope is dropped, they are logged

    def add(self, name: str, error: BaseException, *, while_stopping: bool) -> None:
        """Add the error of the child called `name`."""
        self.kept.append((name, error))
        self.count += 1
        self.while_stopping += while_stopping

    def take_over(self, other: Failures) -> None:
        """Add the errors of a scope whose report ours replaces. All of them are kept, however many."""
        self.kept = deque([*self.kept, *other.kept])
        self.count += other.count
        self.while_stopping += other.while_stopping

    def hand_on(self, owner: Failures, name: str) -> None:
        """Add them to the failures of the owner of the scope `name`: they were not reported here."""
        self.was_reported = True
        for child, error in self.kept:
            owner.add(f"{name}: {child}", error, while_stopping=False)
        owner.while_stopping += self.while_stopping

    @property
    def errors(self) -> list[BaseException]:
        """The errors alone."""
        return [error for _, error in self.kept]

    def report(self) -> Sequence[Failure]:
        """The kept errors, for a report. From now on they count as reported."""
        self.was_reported = True
        return tuple(self.kept)
