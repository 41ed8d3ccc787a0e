"""A thread that tells when a stop cannot proceed because the event loop's own thread is blocked.

A child that blocks the thread of the event loop holds up every deadline: nothing inside the loop can notice.
One daemon thread for the whole program looks at the stops under way. It is started by the first stop,
polls while stops come and go, and sleeps on a lock when there has been none for a while: a stop costs
one look at a flag and, after a quiet time, one wake-up.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from quiesce._safe.printed import logger
from quiesce.kernel.base import thread_stuck_at

if TYPE_CHECKING:
    from .backend import Backend


BLOCKED_AFTER = 0.5  # seconds without a sign of life from the loop before it is called blocked
POLL = 0.25
QUIET = 10.0  # seconds without a stop before the thread goes to sleep

_backends: weakref.WeakSet[Backend] = weakref.WeakSet()
_bell = threading.Lock()  # held while the thread is awake; releasing it rings
_bell.acquire()
asleep = True
_thread: threading.Thread | None = None


def attend(backend: Backend) -> None:
    """There is another event loop to look at."""
    _backends.add(backend)


def wake_up() -> None:
    """A stop has begun somewhere, and the thread is asleep or was never started."""
    global asleep, _thread
    asleep = False
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_look_on, name="quiesce-watchdog", daemon=True)
        try:
            _thread.start()
        except RuntimeError:  # interpreter shutting down, or no more threads: go on unwatched
            _thread = None
            asleep = True
    elif _bell.locked():
        _bell.release()


def _look_on() -> None:
    global asleep
    asked: dict[Backend, list[float]] = {}  # a loop → when it was asked for a sign of life
    told: set[Backend] = set()
    last_stop = time.monotonic()
    while True:
        time.sleep(POLL)
        now = time.monotonic()
        if _look_once(asked, told, now):
            last_stop = now
        elif now - last_stop > QUIET:
            asleep = True
            if not _loops_with_stops():  # one that came in between has rung already
                _bell.acquire()
            asleep = False
            last_stop = time.monotonic()


def _look_once(asked: dict[Backend, list[float]], told: set[Backend], now: float) -> bool:
    loops = _loops_with_stops()
    told.intersection_update(loops)
    for gone in asked.keys() - loops:
        del asked[gone]
    for backend in loops:
        pending = asked.get(backend)
        if not pending:
            pending = asked[backend] = [now]
            told.discard(backend)
            backend.run_from_anywhere(pending.clear)
        elif now - pending[0] >= BLOCKED_AFTER and backend not in told:
            told.add(backend)
            _tell(backend, now - pending[0])
    return bool(loops)


def _loops_with_stops() -> list[Backend]:
    # One that does not run cannot be blocked: it has ended in the middle of a stop, and its thread does something else.
    return [backend for backend in list(_backends) if backend.stopping and backend.is_running()]


def _tell(backend: Backend, seconds: float) -> None:
    where = thread_stuck_at(backend.thread)
    note = f"the event loop's thread was blocked for over {seconds:.1f} s at {where}"
    while True:
        try:
            stops = list(backend.stopping)
            break
        except RuntimeError:  # changed while we looked
            continue
    for core in stops:
        core.notes = [*core.notes, note]
    names = ", ".join(repr(core.label) for core in stops[:3])
    logger.warning("stopping scope %s: %s", names if len(stops) < 4 else f"{names} and others", note)


def _forked() -> None:
    global asleep, _thread
    asleep, _thread = True, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
