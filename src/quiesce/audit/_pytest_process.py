"""What a test leaves in the process: the audit's watch, told apart from what wider fixtures open.

A wider fixture is often made in the middle of a test's set-up. What it opens, starts or forks is excused. At the end
of the call only what the call itself has opened is looked at: the loop of the test is still open then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ._run import Sighting
from ._threads import busy_threads
from ._watch import Watch

PATIENCE = 0.5  # real seconds for threads, processes and descriptors that are on their way out

_LIBUVS_SPARE = ("descriptor", os.devnull)  # of each loop that ever listened, until it is closed


class ProcessWatch(Watch):
    """One a test: it ends where pytest's own recording of warnings ends."""

    def __init__(self, known: set[tuple[str, str]]) -> None:
        super().__init__(patience=PATIENCE)
        self._known = known
        self._told: set[tuple[str, str, str]] = set()
        self._call: tuple[set[threading.Thread], set[str], set[str]] | None = None

    @contextmanager
    def excused(self) -> Iterator[None]:
        """What comes into being meanwhile is not the test's."""
        threads, children, fds = self._now()
        try:
            yield
        finally:
            new_threads, new_children, new_fds = self._now()
            excused = new_threads - threads, new_children - children, new_fds - fds
            self._busy_before |= excused[0]
            self._children_before |= excused[1]
            self._fds_before |= excused[2]
            if self._call is not None:
                threads_before, children_before, fds_before = self._call
                threads_before |= excused[0]
                children_before |= excused[1]
                fds_before |= excused[2]

    def start_call(self) -> None:
        self._call = self._now()

    def look_at_call(self, *, has_libuv: bool) -> None:
        """See what the call has opened and left, without waiting for what the set-up has."""
        assert self._call is not None
        kept = self._busy_before, self._children_before, self._fds_before
        self._busy_before, self._children_before, self._fds_before = self._call
        try:
            self._tell(self._look_outside(), has_libuv)
        finally:
            self._busy_before, self._children_before, self._fds_before = kept

    def look_at_all(self, *, has_libuv: bool) -> None:
        self._tell(self._look_outside(), has_libuv)

    def _tell(self, found: list[Sighting], has_libuv: bool) -> None:
        for sighting in found:
            key = (sighting.kind, sighting.what, sighting.detail)
            if key in self._told or (has_libuv and key[:2] == _LIBUVS_SPARE):
                continue
            self._told.add(key)
            self.seen.append(sighting)

    def take(self) -> list[Sighting]:
        """What has been seen since this was last asked."""
        seen, self.seen = self.seen, []
        return seen

    def _now(self) -> tuple[set[threading.Thread], set[str], set[str]]:
        threads: set[threading.Thread] = {thread for thread, _ in busy_threads()}
        return threads, self._children.read(), self._fds.read()
