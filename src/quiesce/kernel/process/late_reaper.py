"""Reaping process trees that were still dying when the event loop that watched them ended.

A process takes as long to die as the system needs to take its memory back: seconds, for one that has many gigabytes. If its event
loop ends before that, nothing in the program would learn of its exit, and it would stay a zombie for as long as the
program lives. A daemon thread waits for such trees instead. It runs only while there are some.

It sends no signals: the SIGKILL was sent, and what it could not end is ended when the program ends.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .process_tree import Tree

_SOON, _SELDOM = 0.01, 1.0  # seconds between two looks, at first and after a while

_dying: dict[Tree, None] = {}
_lock = threading.RLock()  # `__del__` may come here from inside


def reap_later(tree: Tree) -> None:
    """Reap it when nobody of it is left alive. From any thread, and at any time."""
    if tree.reap_if_gone():
        return
    with _lock:
        is_waited_for = bool(_dying)
        _dying[tree] = None
        if not is_waited_for:
            try:
                threading.Thread(target=_wait, name="quiesce-watchdog-reaps", daemon=True).start()
            except RuntimeError:  # the interpreter is ending, and reaps them itself
                _dying.clear()


def _wait() -> None:
    pause = _SOON
    while True:
        time.sleep(pause)
        pause = min(2 * pause, _SELDOM)
        for tree in list(_dying):
            if tree.reap_if_gone():
                with _lock:
                    del _dying[tree]
                    if not _dying:
                        return


def _forked() -> None:
    global _lock
    _lock = threading.RLock()
    _dying.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
