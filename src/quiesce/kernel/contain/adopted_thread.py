"""Work in a thread of other code, as a child of the containment that it was started from.

It cannot be stopped, only waited for: until the time for clean-up is over, as for a thread of ours. Its token
(`current_token()` in its context) was cancelled with the containment. Its end is not reported but polled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import Thread
from typing import Any
from weakref import WeakSet

from quiesce.kernel.base import Leftover, Rung, label_of, thread_stuck_at
from quiesce.kernel.process import LookInterval
from quiesce.kernel.scope import FINISHED, PENDING, RUNNING, Child, Node, ScopeCore

from .ancestry import descends, never_foreign
from .busy_threads import ThreadWork, all_work, still_at

UNKNOWN_PLACE = "an unknown place, while the block ran, perhaps not by it"


class AdoptedThread(Child):
    """The work of a thread of other code."""

    __slots__ = ("__weakref__", "_interval", "work")

    _kind = "thread"

    def __init__(self, core: ScopeCore, work: ThreadWork) -> None:
        super().__init__(core, work.label, None)
        self.state = RUNNING
        self.work = work
        self._interval = LookInterval()
        core.add(self)
        _adopted_threads.add(self)
        self._poll()

    def _climb(self, rung: Rung) -> None:
        """Nothing can be done to a thread but to note why."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)

    def _poll(self) -> None:
        core = self._core
        if still_at(self.work):
            seconds = self._interval.next(in_stop=core.rung < Rung.TERMINATE)
            core.backend.call_at(core.backend.now() + seconds, self._poll)
            return
        self.state, self._value = FINISHED, None
        self._ended()

    def _stuck_at(self) -> str:
        """The line where the thread is now."""
        return thread_stuck_at(self.work.thread.ident)


_adopted_threads: WeakSet[AdoptedThread] = WeakSet()  # of all containments
_NOTHING: frozenset[Any] = frozenset()
_reported_work: WeakSet[Any] = WeakSet()  # of pools: what a report has named as perhaps the block's


def at_work_for(core: ScopeCore) -> list[str]:
    """The work that threads of other code still do for `core`, though the task that awaited it has ended."""
    known = _adopted_items()
    return [
        f"the end of thread {label_of(work.label)!r}, which other code started: it is at "
        + thread_stuck_at(work.thread.ident)
        for work in all_work()
        if not (work.owned or work.item in known or _is_awaited(work.node))
        and descends(work.node, core, never_foreign)
    ]


def _adopted_items() -> list[object]:
    return [child.work.item for child in _adopted_threads if child.state == RUNNING]


def _is_awaited(node: Node | None) -> bool:
    return isinstance(node, Child) and node.state in (PENDING, RUNNING)


class BlockThreads:
    """The threads of one block."""

    __slots__ = ("_doubtful_work", "_reported_before", "_threads_before")

    def __init__(self) -> None:
        self._threads_before = frozenset(threading.enumerate())
        self._reported_before = frozenset(_reported_work) if _reported_work else _NOTHING
        self._doubtful_work: list[ThreadWork] = []

    def was_there_before(self, thread: Thread) -> bool:
        """Whether the thread is older than the block."""
        return thread in self._threads_before

    def adopt(self, core: ScopeCore, contains: Callable[[Node | None], bool]) -> list[AdoptedThread]:
        """Adopt the work that threads do for the block, and note the work that they may be doing for it."""
        self._doubtful_work = []
        busy = all_work()
        if not busy:
            return []
        found: list[AdoptedThread] = []
        known = _adopted_items()
        for work in busy:
            if work.owned or work.item in known:
                continue
            if work.context is None:
                if self._may_be_ours(work):
                    self._doubtful_work.append(work)
            elif contains(work.node):
                found.append(AdoptedThread(core, work))
        return found

    def _may_be_ours(self, work: ThreadWork) -> bool:
        # It has no context that says whose it is. It may be ours if its thread is new, or if the task that
        # awaited it was cancelled; but one that an earlier report has named is not ours.
        if work.thread not in self._threads_before:
            return True
        return work.abandoned and work.item not in self._reported_before

    def possible_leftovers(self) -> list[Leftover]:
        """The work that still goes on and may have been started by the block."""
        left = [work for work in self._doubtful_work if still_at(work)]
        _reported_work.update(work.item for work in left if work.pooled)
        return [
            Leftover("thread", label_of(work.label), UNKNOWN_PLACE, thread_stuck_at(work.thread.ident))
            for work in left
        ]
