"""When the garbage collector runs for a verdict, so that this costs little and changes nothing that a test can ask for.

A full collection looks at every object of the process, which takes longer than most tests. So each test is followed by a
collection of young objects only: what a test makes is young, unless the interpreter itself has collected meanwhile. A full
one is made where it is worth it: where something seems to be left behind, so that what is merely garbage is told apart from
what is held; and after a test in which the interpreter moved objects out of the young, if such collections have taken less
than a twentieth of the session so far.

Where that has to wait, the objects of an earlier test may be found while a later one runs. `is_sure` then says no, and
what the interpreter says about them is not held against the later test. Nothing is frozen, disabled or hooked: a frozen
object is missing from `gc.get_objects` and from `gc.get_referrers`.
"""

from __future__ import annotations

import gc
from time import process_time

_SHARE = 0.05  # of the session's CPU time
_YOUNG = 1  # the generation up to which a short test's objects are


class Collector:
    def __init__(self) -> None:
        self._has_older = False  # garbage of earlier tests may be among the old objects
        self._moves = _moves()
        self._began = process_time()
        self._spent = self._longest = 0.0

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
            gc.collect(_YOUNG)
            self._moves = _moves()

    def end(self) -> None:
        """Find what the test has dropped."""
        if _moves() == self._moves:
            gc.collect(_YOUNG)
            self._moves = _moves()
        elif self._may_spend():
            self._full()
        else:
            self._has_older = True
            gc.collect(_YOUNG)
            self._moves = _moves()

    def end_where_something_is_left(self) -> None:
        """Find all of it, whatever it takes."""
        self._full()

    def is_sure(self) -> bool:
        """Whether an object that is being destroyed now is surely the running test's."""
        return not self._has_older or not _is_collecting()

    def _may_spend(self) -> bool:
        return self._spent + self._longest < _SHARE * (process_time() - self._began)

    def _full(self) -> None:
        start = process_time()
        gc.collect()
        took = process_time() - start
        self._spent += took
        self._longest = max(self._longest, took)
        self._has_older = False
        self._moves = _moves()


def _moves() -> int:
    """How often objects have left the young generations."""
    _, *older = gc.get_stats()
    return sum(generation["collections"] for generation in older)


def _is_collecting() -> bool:
    """Whether a collection is under way: a second one does nothing then, and is not counted."""
    before = gc.get_stats()[0]["collections"]
    gc.collect(0)
    return bool(gc.get_stats()[0]["collections"] == before)
