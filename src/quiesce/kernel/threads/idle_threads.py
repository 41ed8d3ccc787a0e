"""A small store of idle threads for `to_thread`.

A new thread a call costs about five times the CPU of handing the call to one that waits (180 µs
against 40), so finished threads wait a few seconds for another call before they leave.

Invariants
- A thread in `_idle` belongs to nobody. Whoever takes it out, by one atomic dict operation, has it: a caller
  who will open its gate, or the thread itself, which then leaves.
- A thread offers itself again *before* the outcome is delivered, so that a caller who goes on at once with
  another call finds it.
- While idle a thread holds on to nothing of the last call.
- All are daemons: at interpreter exit nobody waits for them. A forked child starts with an empty store, since
  the threads stayed in the parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeAlias

Delivery: TypeAlias = Callable[[], object]

IDLE_SECONDS = 5.0
IDLE_NAME = "quiesce-idle"

_idle: dict[_IdleThread, None] = {}


def run_in_thread(name: str, work: Callable[[], Delivery]) -> None:
    """Call `work()` in a thread called `name`, then what it returned. Neither may raise."""
    try:
        taken, _ = _idle.popitem()
    except KeyError:
        taken = _IdleThread()
    taken.give(name, work)


class _IdleThread:
    __slots__ = ("_gate", "_thread", "_work")

    def __init__(self) -> None:
        self._work: Callable[[], Delivery] | None = None
        self._gate = threading.Lock()
        self._gate.acquire()
        self._thread = threading.Thread(target=self._live, name=IDLE_NAME, daemon=True)
        self._thread.start()

    def give(self, name: str, work: Callable[[], Delivery]) -> None:
        self._thread.name = name
        self._work = work
        self._gate.release()

    def _live(self) -> None:
        while True:
            if self._gate.acquire(timeout=IDLE_SECONDS):
                self._work_once()
            elif _take_out(self):
                return

    def _work_once(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        deliver = work()
        del work
        self._thread.name = IDLE_NAME
        _idle[self] = None
        deliver()
        del deliver  # an error's traceback may keep this frame alive, and with it the error


def _take_out(thread: _IdleThread) -> bool:
    try:
        del _idle[thread]
    except KeyError:  # taken at this very moment: its gate is about to open
        return False
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)
