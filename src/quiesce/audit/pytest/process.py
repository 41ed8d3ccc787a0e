"""Finds what a test leaves over in the process, as opposed to what wider fixtures open.

One watch serves the whole session. It does not install the audit's own hooks: `complaints` listens to the interpreter.

A wider fixture is often created in the middle of a test's set-up. What it opens, starts or forks is excused. At the end
of the call only what the call itself has opened is examined, because the loop of the test is still open then.
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

# Busy threads, children and descriptors. The sets of threads are weak, so that the watch keeps no thread alive.
_State: TypeAlias = tuple[set[threading.Thread] | WeakSet[threading.Thread], set[str], set[str]]

# Real seconds for threads, processes and descriptors that are about to end.
PATIENCE = 0.5

# libuv keeps this spare descriptor open for each loop that ever listened, until the loop is closed.
_LIBUVS_SPARE = ("descriptor", os.devnull)


class ProcessWatch(Watch):
    """The watch for a pytest session. Call `begin()` before each test."""

    def __init__(self) -> None:
        super().__init__(patience=PATIENCE)
        # Kind, name and detail of what has been reported for the current test.
        self._reported: set[tuple[str, str, str]] = set()
        # The state when the call of the test began.
        self._call: _State | None = None
        # Everything has been examined at the end of the call, and nothing was new.
        self._is_examined = False
        self._names = record_temporary_names()

    def __enter__(self) -> Self:
        self._open()
        self._names.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._names.__exit__(None, None, None)
        self._close()

    def begin(self) -> None:
        """Record the current state of the process as the starting point of a test."""
        # The state at the last verdict would not do: plugins run between two tests, and may open files.
        self.sightings, self.is_muted = [], False
        self._busy_before, self._children_before, self._fds_before = self._now()
        self._reported.clear()
        self._call = None
        self._is_examined = False

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Do not attribute to the test what is opened or started inside the block."""
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
        """Record the state at the start of the call; without fixtures it is that at the start of the test."""
        self._call = self._now() if has_fixtures else self._before

    def has_new(self, *, in_call: bool) -> bool:
        """Whether anything is new: a first look, without patience."""
        # It is examined at the end of the call only if no tear-down of the test's own follows.
        if self._is_examined:
            return False
        before = self._call if in_call and self._call is not None else self._before
        now = self._now()
        is_new = bool(now[0] - before[0] or now[1] - before[1] or now[2] - before[2])
        self._is_examined = in_call and not is_new and before == self._before
        return is_new

    @property
    def _before(self) -> _State:
        return self._busy_before, self._children_before, self._fds_before

    def look_at_call(self, *, has_libuv: bool) -> None:
        """Report what the call itself has left over, without waiting for what the set-up has opened."""
        assert self._call is not None
        before = self._before
        self._busy_before, self._children_before, self._fds_before = self._call
        try:
            self._report(self._look_outside(), has_libuv)
        finally:
            self._busy_before, self._children_before, self._fds_before = before

    def look_at_all(self, *, has_libuv: bool) -> None:
        """Report what the test has left over."""
        self._report(self._look_outside(), has_libuv)

    def _report(self, found: list[Sighting], has_libuv: bool) -> None:
        for sighting in found:
            key = (sighting.kind, sighting.what, sighting.detail)
            if key in self._reported or (has_libuv and key[:2] == _LIBUVS_SPARE):
                continue
            self._reported.add(key)
            self.sightings.append(sighting)

    def take(self) -> list[Sighting]:
        """Return the sightings since the last call of this method."""
        seen, self.sightings = self.sightings, []
        return seen

    def _now(self) -> _State:
        return WeakSet(thread for thread, _ in busy_threads()), self._children.read(), self._fds.read()
