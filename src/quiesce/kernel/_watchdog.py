"""A thread that tells when a stop cannot proceed because the event loop's own thread is blocked.

A child that blocks the thread of the event loop holds up every deadline: nothing inside the loop can notice.
One daemon thread for the whole program looks at the stops under way. It is started by the first stop,
polls while stops come and go, and sleeps on a lock when there has been none for a while: a stop costs
two dict operations and, after a quiet time, one wake-up.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from ._site import thread_stuck_at

if TYPE_CHECKING:
    from ._core import ScopeCore

logger = logging.getLogger("quiesce")

BLOCKED_AFTER = 0.5  # seconds without a sign of life from the loop before it is called blocked
POLL = 0.25
QUIET = 10.0  # seconds without a stop before the thread goes to sleep

_watched: dict[ScopeCore, int] = {}  # a stop under way → the thread of its loop
_bell = threading.Lock()  # held while the thread is awake; releasing it rings
_bell.acquire()
_asleep = True
_thread: threading.Thread | None = None


def watch(core: ScopeCore) -> None:
    """A stop has begun; called in the loop's thread."""
    _watched[core] = threading.get_ident()
    if _asleep:
        _wake_up()


def forget(core: ScopeCore) -> None:
    """A stop is over."""
    _watched.pop(core, None)


def _wake_up() -> None:
    global _asleep, _thread
    _asleep = False
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_look_on, name="quiesce-watchdog", daemon=True)
        try:
            _thread.start()
        except RuntimeError:  # interpreter shutting down, or no more threads: go on unwatched
            _thread = None
            _asleep = True
    elif _bell.locked():
        _bell.release()


def _look_on() -> None:
    global _asleep
    asked: dict[ScopeCore, list[float]] = {}  # a stop → when its loop was asked for a sign of life
    told: set[ScopeCore] = set()
    last_stop = time.monotonic()
    while True:
        time.sleep(POLL)
        now = time.monotonic()
        stops = list(_watched.items())
        told.intersection_update(core for core, _ in stops)
        asked = {core: asked[core] for core, _ in stops if core in asked}
        if stops:
            last_stop = now
        elif now - last_stop > QUIET:
            _asleep = True
            if not _watched:  # one that came in between has seen _asleep as False
                _bell.acquire()
            _asleep = False
            last_stop = time.monotonic()
            continue
        for core, ident in stops:
            pending = asked.get(core)
            if not pending:
                pending = asked[core] = [now]
                core.backend.run_from_anywhere(pending.clear)
            elif now - pending[0] >= BLOCKED_AFTER and core not in told:
                told.add(core)
                _tell(core, ident, now - pending[0])


def _tell(core: ScopeCore, ident: int, seconds: float) -> None:
    where = thread_stuck_at(ident)
    note = f"the event loop's thread was blocked for over {seconds:.1f} s at {where}"
    core.notes.append(note)
    logger.warning("stopping scope %r: %s", core.label, note)


def _forked() -> None:
    global _asleep, _thread
    _watched.clear()
    _asleep, _thread = True, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
