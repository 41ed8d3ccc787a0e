"""Reaping process trees that were still dying when the event loop that watched them ended.

A killed process dies only when the system has freed its memory: that takes seconds for many gigabytes. If its
event loop ends before that, nothing in the program would learn of its exit, and it would stay a zombie as
long as the program lives. A daemon thread waits for such trees instead. It runs only while there are any.

It sends no signals: SIGKILL was sent already, and what survives it is ended when the program ends.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from quiesce.kernel.base import KernelThread

if TYPE_CHECKING:
    from .process_tree import Tree

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0  # seconds between two looks

_dying_trees: dict[Tree, None] = {}
# Re-entrant: the garbage collector may run a `__del__` that calls `reap_later` while this thread holds it.
_lock = threading.RLock()


def reap_later(tree: Tree) -> None:
    """Reap the tree's leader when all of the tree has exited. From any thread, at any time."""
    if tree.reap_if_gone():
        return
    with _lock:
        thread_runs = bool(_dying_trees)
        _dying_trees[tree] = None
        if not thread_runs:
            try:
                KernelThread("quiesce-watchdog-reaps", _reap_all).start()
            except RuntimeError:  # the interpreter is shutting down; our exit hands the zombies to init
                _dying_trees.clear()


def _reap_all() -> None:
    pause = _FIRST_PAUSE
    while True:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        for tree in list(_dying_trees):
            if tree.reap_if_gone():
                with _lock:
                    del _dying_trees[tree]
                    # Decided under the lock: or `reap_later` could add a tree to an ending thread.
                    if not _dying_trees:
                        return


def _forked() -> None:
    global _lock
    _lock = threading.RLock()
    _dying_trees.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
