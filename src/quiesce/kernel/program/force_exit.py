"""Ending a process that does not end by itself.

A program can refuse to end in ways that nothing inside its event loop can help: the loop's own thread is blocked, a
trio task swallows every cancellation, a thread that is not a daemon keeps the interpreter waiting. A
daemon thread then says what is left, kills the process trees and calls `os._exit`. It has to get along with

- being set off by a signal handler, between any two bytecodes of any code: so there is no lock, only
  attributes that are written whole, and a thread that looks at them a few times a second;
- a full pipe behind stderr, or a lock that a stuck thread holds on it: so what is printed is printed by yet another
  thread, which is waited for only so long;
- being called off while it looks: so only its own thread ends the process, and looks once more before it does.
"""

from __future__ import annotations

import faulthandler
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable

from quiesce.kernel.base import Leftover, thread_stuck_at
from quiesce.kernel.scope import BLOCKED_AFTER

GLANCE = 0.05  # seconds between two looks


def say(text: str) -> None:
    """One line, or a few, on stderr; never raises."""
    try:
        stream = sys.stderr
        if stream is not None:
            stream.write(f"{text}\n")
            stream.flush()
    except Exception:  # closed, or in the middle of a write that this very thread has interrupted
        try:
            os.write(2, f"{text}\n".encode(errors="replace"))
        except OSError:
            pass


def end_process(status: int, text: str) -> None:
    """Say what is left, kill the process trees, and be gone; all in bounded time."""
    _within(BLOCKED_AFTER, lambda: _flush_and_say(text))
    guardian = sys.modules.get("quiesce.kernel.process.guardian")
    if guardian is not None:
        _within(2 * BLOCKED_AFTER, guardian.kill_all_now)
    os._exit(status)


def _flush_and_say(text: str) -> None:
    try:
        sys.stdout.flush()
    except Exception:  # there may be no stdout, or nobody who reads it
        pass
    say(text)


def _within(seconds: float, fn: Callable[[], object]) -> None:
    thread = threading.Thread(target=fn, name="quiesce-watchdog-says", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending, and starts no more threads of Python's
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            fn()
            faulthandler.cancel_dump_traceback_later()
        return
    thread.join(seconds)


class ForcedExit:
    """Ends the process at a certain time, unless it is called off before."""

    def __init__(self, status: Callable[[], int], describe: Callable[[], str]) -> None:
        self._status = status
        self._describe = describe
        self._due = math.inf
        self._called_off = False
        self._watched = False

    def end_by(self, due: float) -> None:
        """At `due` on the monotonic clock, or earlier if that was said before. From anywhere."""
        self._due = min(self._due, due)
        if self._watched or math.isinf(self._due):
            return
        self._watched = True
        try:
            threading.Thread(target=self._watch, name="quiesce-watchdog-run", daemon=True).start()
        except RuntimeError:  # no more threads: go on unwatched
            self._watched = False

    def call_off(self) -> None:
        """The program has come to its end by itself."""
        self._called_off = True

    def _watch(self) -> None:
        while not self._called_off:
            left = self._due - time.monotonic()
            if left <= 0:
                end_process(self._status(), self._describe())
            time.sleep(min(left, GLANCE))


# The end of the interpreter -------------------------------------------------------------------------------------
#
# Python waits for every thread that is not a daemon before it runs even its `atexit` functions. The one hook that
# comes earlier is the one that `concurrent.futures` uses to end its own threads. Some versions start no threads any
# more at that point, so ours is there before; it waits at a gate that the hook opens.

_left_running: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_exit_status = 1
_exit_seconds: Callable[[], float] = lambda: math.inf  # noqa: E731
_gate: threading.Lock | None = None


def bound_exit(status: int, seconds: Callable[[], float], known: Iterable[threading.Thread]) -> None:
    """When the interpreter ends, wait only `seconds()` for threads that were started since `known`."""
    global _exit_status, _exit_seconds
    _exit_status, _exit_seconds = status, seconds
    before = set(known)
    for thread in threading.enumerate():
        if not thread.daemon and thread not in before:
            _left_running.add(thread)
    if _left_running and _gate is None:
        _stand_by()


def _stand_by() -> None:
    global _gate
    register = getattr(threading, "_register_atexit", None)
    if register is None:
        return
    gate = threading.Lock()
    gate.acquire()
    try:
        threading.Thread(target=_outlast, args=(gate,), name="quiesce-watchdog-exit", daemon=True).start()
        register(gate.release)
    except RuntimeError:  # the interpreter is ending already
        return
    _gate = gate


def _outlast(gate: threading.Lock) -> None:
    gate.acquire()
    seconds = _exit_seconds()
    due = time.monotonic() + seconds
    while left := [thread for thread in list(_left_running) if thread.is_alive()]:
        if time.monotonic() >= due:
            waited = f" for {seconds:.1f} s" if seconds else ""
            lines = [f"threads have kept the program from exiting{waited}: it is ended now"]
            lines += [
                f"  left: {Leftover('thread', thread.name, 'unknown', thread_stuck_at(thread.ident))}"
                for thread in left
            ]
            end_process(_exit_status, "\n".join(lines))
        time.sleep(GLANCE)


def _forked() -> None:
    global _gate
    _left_running.clear()
    _gate = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
