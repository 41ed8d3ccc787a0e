"""A watchdog thread that warns when a stop cannot proceed because the event loop's thread is blocked.

A child that blocks the thread of the event loop holds up every deadline, and nothing inside the loop can
notice. So one daemon thread for the whole program watches the stops that are under way. The first stop starts
it. It polls while there are stops, and waits for a lock when there has been none for a while: a stop costs
one check of a flag and, after a quiet time, one release of that lock.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from quiesce._safe.printed import logger
from quiesce.kernel.base import KernelThread, thread_stuck_at

if TYPE_CHECKING:
    from .backend import Backend


# Seconds after which a loop that has not answered a ping counts as blocked.
BLOCKED_AFTER = 0.5
POLL = 0.25
# Seconds without a stop after which the thread goes to sleep.
QUIET = 10.0

_backends: weakref.WeakSet[Backend] = weakref.WeakSet()
# Locked while the thread is awake. A sleeping thread waits to lock it once more, so a release wakes it.
_bell = threading.Lock()
_bell.acquire()
asleep = True
_thread: threading.Thread | None = None


def watch(backend: Backend) -> None:
    """Watch another event loop."""
    _backends.add(backend)


def wake_up() -> None:
    """Start or wake the thread: a stop has begun, and `asleep` is true."""
    global asleep, _thread
    asleep = False
    if _thread is None or not _thread.is_alive():
        _thread = KernelThread("quiesce-watchdog", _look_on)
        try:
            _thread.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads: do without
            _thread = None
            asleep = True
    elif _bell.locked():
        _bell.release()


def _look_on() -> None:
    global asleep
    pings: dict[Backend, list[float]] = {}
    warned: set[Backend] = set()
    last_stop = time.monotonic()
    while True:
        time.sleep(POLL)
        now = time.monotonic()
        if _check_loops(pings, warned, now):
            last_stop = now
        elif now - last_stop > QUIET:
            # First `asleep`, then a last look: a stop that begins between the two either sees `asleep` and
            # releases the lock, or is seen here. In the other order it could be missed.
            asleep = True
            if not _loops_with_stops():
                _bell.acquire()
            asleep = False
            last_stop = time.monotonic()


def _check_loops(pings: dict[Backend, list[float]], warned: set[Backend], now: float) -> bool:
    """Ping each loop with a stop under way, and warn once of each that does not answer. False without any.

    A ping is a list with the time at which it was sent. The loop empties the list as soon as it runs.
    """
    loops = _loops_with_stops()
    warned.intersection_update(loops)
    for settled in pings.keys() - loops:
        del pings[settled]
    for backend in loops:
        ping = pings.get(backend)
        if not ping:
            ping = pings[backend] = [now]
            warned.discard(backend)
            backend.run_from_anywhere(ping.clear)
        elif now - ping[0] >= BLOCKED_AFTER and backend not in warned:
            warned.add(backend)
            _warn(backend, now - ping[0])
    return bool(loops)


def _loops_with_stops() -> list[Backend]:
    # A loop that does not run is not blocked: it has ended in the middle of a stop, and its thread does
    # something else now.
    return [backend for backend in list(_backends) if backend.stopping and backend.is_running()]


def _warn(backend: Backend, seconds: float) -> None:
    where = thread_stuck_at(backend.thread)
    note = f"the event loop's thread was blocked for over {seconds:.1f} s at {where}"
    while True:
        try:
            stops = list(backend.stopping)
            break
        except RuntimeError:  # the loop has changed the dict meanwhile
            continue
    for core in stops:
        core.add_notes([note])
    names = ", ".join(repr(core.label) for core in stops[:3])
    logger.warning("stopping scope %s: %s", names if len(stops) < 4 else f"{names} and others", note)


def _reset_after_fork() -> None:
    global asleep, _thread
    asleep, _thread = True, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
