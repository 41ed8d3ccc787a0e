"""A thread that tells when a stop cannot proceed because the event loop's own thread is blocked.

A child that blocks the thread of the event loop holds up every deadline: nothing inside the loop can notice.
One daemon thread for the whole program looks at the stops under way. It is started by the first stop,
polls while stops come and go, and sleeps on a lock when there has been none for a while: a stop costs
one look at a flag and, after a quiet time, one wake-up.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from ._site import thread_stuck_at

if TYPE_CHECKING:
    from ._backend import Backend
    from ._core import ScopeCore

logger = logging.getLogger("quiesce")

BLOCKED_AFTER = 0.5  # seconds without a sign of life from the loop before it is called blocked
POLL = 0.25
QUIET = 10.0  # seconds without a stop before the thread goes to sleep

_backends: weakref.WeakSet[Backend] = weakref.WeakSet()
_bell = threading.Lock()  # held while the thread is awake; releasing it rings
_bell.acquire()
_asleep = True
_thread: threading.Thread | None = None


def attend(backend: Backend) -> None:
    """There is another event loop to look at."""
    _backends.add(backend)


def stay_awake() -> None:
    """A stop has begun somewhere."""
    if _asleep:
        _wake_up()


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
        stops = _stops_under_way()
        told.intersection_update(stops)
        asked = {core: asked[core] for core in stops if core in asked}
        if stops:
            last_stop = now
        elif now - last_stop > QUIET:
            _asleep = True
            if not _stops_under_way():  # one that came in between has rung already
                _bell.acquire()
            _asleep = False
            last_stop = time.monotonic()
            continue
        for core in stops:
            pending = asked.get(core)
            if not pending:
                pending = asked[core] = [now]
                core.backend.run_from_anywhere(pending.clear)
            elif now - pending[0] >= BLOCKED_AFTER and core not in told:
                told.add(core)
                _tell(core, now - pending[0])
        del stops


def _stops_under_way() -> list[ScopeCore]:
    while True:
        try:
            return [core for backend in list(_backends) for core in list(backend.stopping)]
        except RuntimeError:  # changed while we looked
            continue


def _tell(core: ScopeCore, seconds: float) -> None:
    where = thread_stuck_at(core.backend.thread)
    note = f"the event loop's thread was blocked for over {seconds:.1f} s at {where}"
    core.notes = [*core.notes, note]
    logger.warning("stopping scope %r: %s", core.label, note)


def _forked() -> None:
    global _asleep, _thread
    _asleep, _thread = True, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
