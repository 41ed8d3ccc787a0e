"""When the garbage collector runs for a verdict, so that this costs little and changes nothing that a test can ask for.

A full collection looks at every object of the process, which takes longer than most tests. So each test is followed by a
collection of young objects only: what a test makes is young, unless the interpreter itself has collected meanwhile. A full
one is made where it is worth it: where something seems to be left behind, so that what is merely garbage is told apart from
what is held; and after a test in which the interpreter moved objects out of the young, if such collections have taken less
than a twentieth of the session so far.

Where that has to wait, the objects of an earlier test may be found while a later one runs. `is_sure` then says no, and
what the interpreter says about them is not held against the later test. What a failed test leaves is such a case: pytest holds it
with the traceback.

What these collections bring to light would have come to light some time later, in whatever test runs then. It is shown as a
warning, also where filters make warnings errors: no test fails because the collector ran after it. Nothing is frozen, disabled or hooked: a frozen
object is missing from `gc.get_objects` and from `gc.get_referrers`.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any

_SHARE = 0.05  # of the session's CPU time
_YOUNG = 1  # the generation up to which a short test's objects are


class Collector:
    def __init__(self) -> None:
        self._has_older = False  # garbage of earlier tests may be among the old objects
        self._moves = _moves()
        self._began = process_time()
        self._spent = self._longest = 0.0
        self._is_young = False  # what is being destroyed now is young
        self.is_collecting = False  # one of these collections runs

    def start(self) -> None:
        """Leave behind what exists before the first test."""
        self._full()
        self._began, self._spent = process_time(), 0.0

    def begin(self, *, follows_a_verdict: bool) -> None:
        """What earlier tests have dropped is theirs."""
        self._has_older = self._has_older or _moves() != self._moves
        if self._has_older and self._may_spend():
            self._full()
        elif not follows_a_verdict:
            self._young()

    def end(self) -> None:
        """Find what the test has dropped."""
        if _moves() == self._moves:
            self._young()
        elif self._may_spend():
            self._full()
        else:
            self._has_older = True
            self._young()

    def expect_older(self) -> None:
        """A test has failed, and what its traceback holds is garbage later."""
        self._has_older = True

    def end_where_something_is_left(self) -> None:
        """Find all of it, whatever it takes."""
        self._full()

    def is_sure(self) -> bool:
        """Whether an object that is being destroyed now is surely the running test's."""
        return not self._has_older or self._is_young or not _is_collecting()

    def _may_spend(self) -> bool:
        return self._spent + self._longest < _SHARE * (process_time() - self._began)

    def _young(self) -> None:
        self._is_young = True
        with self._errors_as_warnings():
            gc.collect(_YOUNG)
        self._is_young = False
        self._moves = _moves()

    def _full(self) -> None:
        start = process_time()
        with self._errors_as_warnings():
            gc.collect()
        took = process_time() - start
        self._spent += took
        self._longest = max(self._longest, took)
        self._has_older = False
        self._moves = _moves()

    @contextmanager
    def _errors_as_warnings(self) -> Iterator[None]:
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        kept = filters[:]
        filters[:] = [("always" if action == "error" else action, *rest) for action, *rest in kept]
        self.is_collecting = True
        try:
            yield
        finally:
            self.is_collecting = False
            filters[:] = kept


def _moves() -> int:
    """How often objects have left the young generations."""
    _, *older = gc.get_stats()
    return sum(generation["collections"] for generation in older)


def _is_collecting() -> bool:
    """Whether a collection is under way: a second one does nothing then, and is not counted."""
    before = gc.get_stats()[0]["collections"]
    gc.collect(0)
    return bool(gc.get_stats()[0]["collections"] == before)
