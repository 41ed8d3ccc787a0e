"""Ending a process that does not end by itself.

A program can refuse to end in ways that nothing inside its event loop can change: the loop's own thread is
blocked, a trio task swallows every cancellation, a thread that is not a daemon keeps the interpreter waiting.
Then a daemon thread prints what is left, kills the process trees and calls `os._exit`. It must cope with

- being started by a signal handler, between any two bytecodes of any code: so there is no lock, only
  attributes that are written in one step, and a thread that polls them;
- a full pipe behind stderr, or a lock on it that a stuck thread holds: so another thread does the printing,
  and is waited for only so long;
- being called off at any moment: so only its own thread ends the process, and checks once more before it
  does.
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

from quiesce.kernel.base import KernelThread, Leftover, thread_stuck_at
from quiesce.kernel.scope import BLOCKED_AFTER

POLL_SECONDS = 0.05


def print_to_stderr(text: str) -> None:
    """Print to stderr without ever raising."""
    try:
        stream = sys.stderr
        if stream is not None:
            stream.write(f"{text}\n")
            stream.flush()
    except Exception:  # it is closed, or a signal handler has interrupted a write of this very thread
        try:
            os.write(2, f"{text}\n".encode(errors="replace"))
        except OSError:
            pass


def end_process(status: int, text: str) -> None:
    """Print `text`, kill the process trees, and end the process; all in bounded time."""
    _call_within(BLOCKED_AFTER, lambda: _flush_and_print(text))
    guardian = sys.modules.get("quiesce.kernel.process.guardian")
    if guardian is not None:
        _call_within(2 * BLOCKED_AFTER, guardian.kill_all_now)
    os._exit(status)


def _flush_and_print(text: str) -> None:
    try:
        sys.stdout.flush()
    except Exception:  # there may be no stdout, or its reader has exited
        pass
    print_to_stderr(text)


def _call_within(seconds: float, fn: Callable[[], object]) -> None:
    """Call `fn()` and return after `seconds` at the latest."""
    thread = KernelThread("quiesce-watchdog-says", fn)
    try:
        thread.start()
    except RuntimeError:
        # The interpreter is shutting down and starts no more threads of Python's. `faulthandler` has one of
        # its own in C: used as a timer, it ends the process if `fn` does not return.
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            fn()
            faulthandler.cancel_dump_traceback_later()
        return
    thread.join(seconds)


class ForcedExit:
    """Ends the process at a given time, unless it is called off before."""

    def __init__(self, status: Callable[[], int], describe: Callable[[], str]) -> None:
        self._status = status
        self._describe = describe
        self._due = math.inf
        self._called_off = False
        self._has_thread = False

    def end_by(self, due: float) -> None:
        """End the process at `due` (monotonic clock), or at an earlier time set before; from anywhere."""
        self._due = min(self._due, due)
        if self._has_thread or math.isinf(self._due):
            return
        self._has_thread = True
        try:
            KernelThread("quiesce-watchdog-run", self._watch).start()
        except RuntimeError:  # the system has no more threads: go on without
            self._has_thread = False

    def call_off(self) -> None:
        """Do not end the process: the program has ended by itself."""
        self._called_off = True

    def _watch(self) -> None:
        while not self._called_off:
            left = self._due - time.monotonic()
            if left <= 0:
                end_process(self._status(), self._describe())
            time.sleep(min(left, POLL_SECONDS))


# The end of the interpreter
#
# Python waits for every thread that is not a daemon even before it runs its `atexit` functions. The only
# earlier hook is the one by which `concurrent.futures` ends its own threads. Some versions do not start
# threads any more at that point, so ours is started earlier, and waits at a gate that the hook opens.

_blocking_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_exit_status = 1
_exit_seconds: Callable[[], float] = lambda: math.inf  # noqa: E731
_gate: threading.Lock | None = None


def bound_exit(status: int, seconds: Callable[[], float], before: Iterable[threading.Thread]) -> None:
    """When the interpreter exits, wait only `seconds()` for the threads that are not in `before`."""
    global _exit_status, _exit_seconds
    _exit_status, _exit_seconds = status, seconds
    older = set(before)
    for thread in threading.enumerate():
        if not thread.daemon and thread not in older:
            _blocking_threads.add(thread)
    if _blocking_threads and _gate is None:
        _start_exit_thread()


def _start_exit_thread() -> None:
    global _gate
    register = getattr(threading, "_register_atexit", None)
    if register is None:
        return
    gate = threading.Lock()
    gate.acquire()
    try:
        KernelThread("quiesce-watchdog-exit", _end_blocked_exit, gate).start()
        register(gate.release)
    except RuntimeError:  # the interpreter is shutting down already
        return
    _gate = gate


def _end_blocked_exit(gate: threading.Lock) -> None:
    gate.acquire()
    seconds = _exit_seconds()
    due = time.monotonic() + seconds
    while left := [thread for thread in list(_blocking_threads) if thread.is_alive()]:
        if time.monotonic() >= due:
            waited = f" for {seconds:.1f} s" if seconds else ""
            lines = [f"threads have kept the program from exiting{waited}: it is ended now"]
            lines += [
                f"  left: {Leftover('thread', thread.name, 'unknown', thread_stuck_at(thread.ident))}"
                for thread in left
            ]
            end_process(_exit_status, "\n".join(lines))
        time.sleep(POLL_SECONDS)


def _forked() -> None:
    global _gate
    _blocking_threads.clear()
    _gate = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
