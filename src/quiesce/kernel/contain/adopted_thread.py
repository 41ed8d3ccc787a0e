"""Work of somebody else's thread, as a child of the containment that it was started from.

It cannot be stopped, only waited for: until the time for clean-up is over, as for a thread of ours. Its token
(`current_token()` in its context) has been cancelled with the containment. Nobody tells when it ends, so it is looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import Thread
from typing import Any
from weakref import WeakSet

from quiesce.kernel.base import Leftover, Rung, label_of, thread_stuck_at
from quiesce.kernel.scope import FINISHED, PENDING, RUNNING, Child, Node, ScopeCore

from .ancestry import descends, is_nobodys
from .busy_threads import ThreadWork, all_work, still_at

# Seconds between two looks at a thread: at first, while it is waited for, and when that was in vain.
_LOOK_SOON, _LOOK_AGAIN, _LOOK_SELDOM = 0.001, 0.02, 0.25

PERHAPS = "an unknown place, while the block ran, perhaps not by it"


class AdoptedThread(Child):
    """What a thread does, as its containment sees it."""

    __slots__ = ("__weakref__", "_pause", "work")

    _kind = "thread"

    def __init__(self, core: ScopeCore, work: ThreadWork) -> None:
        super().__init__(core, work.label, None)
        self.state = RUNNING
        self.work = work
        self._pause = _LOOK_SOON
        core.children[self] = None
        _watched.add(self)
        self._look()

    def _climb(self, rung: Rung) -> None:
        """There is nothing to be done to it."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)

    def _look(self) -> None:
        core = self._core
        if still_at(self.work):
            core.backend.call_at(core.backend.now() + self._pause, self._look)
            self._pause = min(self._pause * 2, _LOOK_AGAIN if core.rung < Rung.TERMINATE else _LOOK_SELDOM)
            return
        self.state, self._value = FINISHED, None
        self._ended()

    def _stuck_at(self) -> str:
        """Where the thread is now."""
        return thread_stuck_at(self.work.thread.ident)


_watched: WeakSet[AdoptedThread] = WeakSet()  # by whichever containment
_NOTHING: frozenset[Any] = frozenset()
_named: WeakSet[Any] = WeakSet()  # work of pools that a block has named, though perhaps not its own


def at_work_for(core: ScopeCore) -> list[str]:
    """What threads of others go on with for `core`, though who has started it there has ended: its await was cancelled."""
    known = [child.work.what for child in _watched if child.state == RUNNING]
    return [
        f"the end of thread {label_of(work.label)!r}, which others started: it is at {thread_stuck_at(work.thread.ident)}"
        for work in all_work()
        if not (work.owned or work.what in known or _is_awaited(work.node))
        and descends(work.node, core, is_nobodys)
    ]


def _is_awaited(node: Node | None) -> bool:
    return isinstance(node, Child) and node.state in (PENDING, RUNNING)


class BlockThreads:
    """The threads of one block."""

    __slots__ = ("_before", "_named_before", "_unsure")

    def __init__(self) -> None:
        self._before = frozenset(threading.enumerate())
        self._named_before = frozenset(_named) if _named else _NOTHING
        self._unsure: list[ThreadWork] = []

    def was_there_before(self, thread: Thread) -> bool:
        """Whether it is older than the block."""
        return thread in self._before

    def adopt(self, core: ScopeCore, contains: Callable[[Node | None], bool]) -> list[AdoptedThread]:
        """Take for children what threads do for the block, and note what they may be doing for it."""
        self._unsure = []
        at_work = all_work()
        if not at_work:
            return []
        found: list[AdoptedThread] = []
        known = [child.work.what for child in _watched if child.state == RUNNING]
        for work in at_work:
            if work.owned or work.what in known:
                continue
            if work.context is None:
                if self._may_be_ours(work):
                    self._unsure.append(work)
            elif contains(work.node):
                found.append(AdoptedThread(core, work))
        return found

    def _may_be_ours(self, work: ThreadWork) -> bool:
        """Nobody can say whose it is; but it is new, or was given up by whoever awaited it."""
        if work.thread not in self._before:
            return True
        return work.abandoned and work.what not in self._named_before

    def perhaps_left(self) -> list[Leftover]:
        """What is still busy and may have been started by the block."""
        left = [work for work in self._unsure if still_at(work)]
        _named.update(work.what for work in left if work.pooled)
        return [
            Leftover("thread", label_of(work.label), PERHAPS, thread_stuck_at(work.thread.ident))
            for work in left
        ]
