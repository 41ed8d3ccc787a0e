"""Decides when the garbage collector runs for a verdict, at little cost and without changing what a test can observe.

A full collection visits every object of the process, which takes longer than most tests. So each test is followed by a
collection of young objects only: objects of a test are young, unless the interpreter itself has collected in the
meantime. A full collection is made where it is worth its cost: if something seems to be left over, in order to tell
garbage from objects that are still referenced; and after a test in which the interpreter moved objects out of the young
generations, if full collections have taken less than a twentieth of the session so far.

If a full collection has to wait, objects of an earlier test may be destroyed while a later one runs. `is_sure` is then
False, and the later test is not blamed for what the interpreter reports. The same is true after a failed test, whose
objects pytest keeps alive with the traceback.

What these collections bring up would have come up later anyway, in whichever test is running then. An error that would
make a test fail is passed on at the end of the session instead (see `complaints`), so that no test fails because the
collector ran after it. Nothing is frozen or disabled, because a frozen object is missing from `gc.get_objects` and
`gc.get_referrers`, and nothing is collected while a test runs. Only while there may be garbage of earlier tests,
`gc.callbacks` contains a function that notes whether the interpreter is collecting: an object that is destroyed outside
of a collection was dropped in that moment, by the running test.
"""

from __future__ import annotations

import gc
from time import process_time

# The share of the session's CPU time that full collections may take.
_SHARE = 0.05
# The oldest generation that objects of a short test can be in.
_YOUNG = 1


class Collector:
    """Runs the garbage collector for one session."""

    def __init__(self) -> None:
        # Garbage of earlier tests may be among the old objects (see `expect_older`).
        self._has_older = False
        # The interpreter is collecting; maintained only while `_has_older` is set.
        self._is_at_work = False
        self._moves = _moves()
        self._began = process_time()
        self._spent = self._longest = 0.0
        # A collection of young objects runs.
        self._is_young = False
        # A collection of this class runs.
        self.is_collecting = False

    def start(self) -> None:
        """Collect the garbage from before the first test, and start to count the time."""
        self._full()
        self._began, self._spent = process_time(), 0.0

    def begin(self, *, follows_a_verdict: bool) -> None:
        """Collect the garbage of earlier tests before a test begins, as far as the time allows."""
        if _moves() != self._moves:
            self.expect_older()
        if self._has_older and self._may_spend():
            self._full()
        elif not follows_a_verdict:
            self._young()

    def end(self) -> None:
        """Collect the garbage of the test that has ended, as far as the time allows."""
        if _moves() == self._moves:
            self._young()
        elif self._may_spend():
            self._full()
        else:
            self.expect_older()
            self._young()

    def expect_older(self) -> None:
        """Note that garbage of earlier tests may come up from now on, for example of a failed test."""
        if not self._has_older:
            self._has_older, self._is_at_work = True, False
            gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Note that there is no garbage of earlier tests, and remove the callback."""
        self._has_older = False
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: object) -> None:
        self._is_at_work = phase == "start"

    def collect_everything(self) -> None:
        """Make a full collection, no matter how long it takes."""
        self._full()

    def is_sure(self) -> bool:
        """Whether an object that is being destroyed now certainly belongs to the running test."""
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
    """How often objects have been moved out of the young generations."""
    _, *older = gc.get_stats()
    return sum(generation["collections"] for generation in older)
