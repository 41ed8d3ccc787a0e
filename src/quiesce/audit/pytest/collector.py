"""When the garbage collector runs for a verdict, so that this costs little and changes nothing that a test can ask for.

A full collection looks at every object of the process, which takes longer than most tests. So each test is followed by a
collection of young objects only: what a test makes is young, unless the interpreter itself has collected meanwhile. A full
one is made where it is worth it: where something seems to be left behind, so that what is merely garbage is told apart from
what is held; and after a test in which the interpreter moved objects out of the young, if such collections have taken less
than a twentieth of the session so far.

Where that has to wait, the objects of an earlier test may be found while a later one runs. `is_sure` then says no, and what
the interpreter says is not held against the later test. What a failed test leaves is such a case: pytest holds it with the
traceback.

What these collections bring to light would have come to light some time later, in whatever test runs then. What would make a
test fail is handed on at the end of the session instead (see `complaints`): no test fails because the collector ran
after it. Nothing is frozen or disabled, and nothing is collected while a test runs: a frozen object is missing from
`gc.get_objects` and from `gc.get_referrers`. Only while there may be garbage of earlier tests does `gc.callbacks` hold a function
that notes whether the interpreter collects just now: what is destroyed otherwise was dropped just now, by the running test.
"""

from __future__ import annotations

import gc
from time import process_time

_SHARE = 0.05  # of the session's CPU time
_YOUNG = 1  # the generation up to which a short test's objects are


class Collector:
    def __init__(self) -> None:
        self._has_older = False  # garbage of earlier tests may be among the old objects: see `expect_older`
        self._is_at_work = False  # the interpreter's own collector, while it is listened to
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
        if _moves() != self._moves:
            self.expect_older()
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
            self.expect_older()
            self._young()

    def expect_older(self) -> None:
        """From now on garbage of earlier tests may be found: that of a test that has failed, for one, whose traceback pytest holds."""
        if not self._has_older:
            self._has_older, self._is_at_work = True, False
            gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Listen no more."""
        self._has_older = False
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: object) -> None:
        self._is_at_work = phase == "start"

    def end_where_something_is_left(self) -> None:
        """Find all of it, whatever it takes."""
        self._full()

    def is_sure(self) -> bool:
        """Whether an object that is being destroyed now is surely the running test's."""
        return not self._has_older or self._is_young or not self._is_at_work

    def _may_spend(self) -> bool:
        return self._spent + self._longest < _SHARE * (process_time() - self._began)

    def _young(self) -> None:
        self._is_young = self.is_collecting = True
        gc.collect(_YOUNG)
        self._is_young = self.is_collecting = False
        self._moves = _moves()

    def _full(self) -> None:
        start = process_time()
        self.is_collecting = True
        gc.collect()
        self.is_collecting = False
        took = process_time() - start
        self._spent += took
        self._longest = max(self._longest, took)
        self.stop()
        self._moves = _moves()


def _moves() -> int:
    """How often objects have left the young generations."""
    _, *older = gc.get_stats()
    return sum(generation["collections"] for generation in older)
