"""What a test leaves in the process: the audit's watch, told apart from what wider fixtures open.

One watch lasts for the whole session, and has none of the audit's own hooks: `complaints` hears what the interpreter says.

A wider fixture is often made in the middle of a test's set-up. What it opens, starts or forks is excused. At the end
of the call only what the call itself has opened is looked at: the loop of the test is still open then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, TypeAlias
from weakref import WeakSet

from quiesce.audit.model import Sighting, record_temporary_names
from quiesce.audit.watch import Watch, busy_threads

# Busy threads, children, descriptors. No thread is kept alive by being remembered: the sets made here are weak.
_There: TypeAlias = tuple[set[threading.Thread] | WeakSet[threading.Thread], set[str], set[str]]

PATIENCE = 0.5  # real seconds for threads, processes and descriptors that are on their way out

_LIBUVS_SPARE = ("descriptor", os.devnull)  # of each loop that ever listened, until it is closed


class ProcessWatch(Watch):
    """`begin()` before each test."""

    def __init__(self) -> None:
        super().__init__(patience=PATIENCE)
        self._told: set[tuple[str, str, str]] = set()
        self._call: _There | None = None
        self._is_seen = False  # everything that can be there now was looked at, and nothing is new
        self._names = record_temporary_names()

    def __enter__(self) -> Self:
        self._open()
        self._names.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._names.__exit__(None, None, None)
        self._close()

    def begin(self) -> None:
        """Note what is there. Not what was there at the last verdict: plugins run between two tests, and may open files."""
        self.sightings, self.is_muted = [], False
        self._busy_before, self._children_before, self._fds_before = self._now()
        self._told.clear()
        self._call = None
        self._is_seen = False

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

    def start_call(self, *, has_fixtures: bool) -> None:
        self._call = self._now() if has_fixtures else self._before

    def has_new(self, *, in_call: bool) -> bool:
        """Whether something is there that was not: a first look, without patience."""
        if self._is_seen:  # at the end of the call, and nothing was torn down since
            return False
        before = self._call if in_call and self._call is not None else self._before
        now = self._now()
        is_new = bool(now[0] - before[0] or now[1] - before[1] or now[2] - before[2])
        self._is_seen = in_call and not is_new and before == self._before
        return is_new

    @property
    def _before(self) -> _There:
        return self._busy_before, self._children_before, self._fds_before

    def look_at_call(self, *, has_libuv: bool) -> None:
        """See what the call has opened and left, without waiting for what the set-up has."""
        assert self._call is not None
        kept = self._before
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
            self.sightings.append(sighting)

    def take(self) -> list[Sighting]:
        """What has been seen since this was last asked."""
        seen, self.sightings = self.sightings, []
        return seen

    def _now(self) -> _There:
        return WeakSet(thread for thread, _ in busy_threads()), self._children.read(), self._fds.read()
