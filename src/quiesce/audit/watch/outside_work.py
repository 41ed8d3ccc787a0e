"""Work outside the event loop in a run with real I/O, and how long the loop waits for it before the clock jumps.

Nothing tells the loop that an answer is on its way. This is what can be known, and how long the loop waits:

- *At work*: a thread that the run started, unless it is idle in its pool or waits for another thread (which may be this
  one); a call in an executor; a child process that the run started. The clock keeps pace with real time for these: it
  jumps once as much real time has passed as the jump would skip. Work that rests (it uses no processor and does not
  want one) may be waiting for this very loop, so the loop waits `hang_after` seconds of rest for it. Work that does not
  rest may never end, so the loop waits `Limits.work` seconds for it. For a resting process that the program neither
  awaits nor reads from, the loop waits `patience` seconds.
- *Connected*: a socket or a pipe in use, or a thread that waits. Whether the other end is working on an answer or has
  nothing to send cannot be known. The loop waits `patience` seconds.
- A socket that only listens, and a thread that looks idle: the loop waits `patience` seconds as well, but a jump over
  them is not reported, because no answer is expected from them.

A jump that skips more time than the loop waited is recorded in `OutsideWork.passed_over`, because it may be the cause
of whatever the run shows afterwards.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterable

from quiesce.audit.model import Limits

from .processes import children_of, command_if_alive, guardian, work_of, work_of_thread
from .silence import SLICE, OwnSilence, PeerSilence
from .threads import busy_threads, is_surely_idle, waits_for_another


class OutsideWork:
    """Everything that could still wake the loop of one run.

    Create it when the run begins: threads and processes that exist by that time do not belong to the run. `descriptors`
    returns those that the loop waits for, and `has_calls` whether a call that it made in a thread is still open.
    """

    def __init__(self, descriptors: Callable[[], Iterable[int]], has_calls: Callable[[], bool]) -> None:
        # The first thing that the clock jumped over, and how long it had been silent.
        self.passed_over = ""
        self._descriptors = descriptors
        self._has_calls = has_calls
        self._threads_before = set(threading.enumerate())
        self._busy_before = {thread for thread, _ in busy_threads()}
        self._children_before = children_of("self")

    def at_work(self) -> str:
        """Describe something that is known to be at work; "" if nothing is."""
        for pid in self.children():
            if name := command_if_alive(pid):
                return f"the process {name}"
        busy = busy_threads(self._busy_before)
        for thread, stack in busy:
            if not waits_for_another(stack):
                return f"the thread {thread.name}"
        return "a call in a thread" if self._has_calls() and not busy else ""

    def work_done(self) -> int:
        """A number that grows while any of the work computes or waits for a processor."""
        threads = [thread.native_id for thread, _ in busy_threads(self._busy_before)]
        return sum(work_of_thread(f"self/task/{thread}") for thread in threads) + sum(
            map(work_of, self.children())
        )

    def is_awaited(self) -> bool:
        """Whether the loop could notice that the work has ended."""
        return (
            self._has_calls()
            or bool(busy_threads(self._busy_before))
            or any(True for _ in self._descriptors())
        )

    def connected(self) -> str:
        """Describe a connection, a pipe or a thread that may still send something; "" if there is none."""
        for thread, _ in busy_threads(self._busy_before):
            return f"the thread {thread.name}"
        return next(filter(None, map(_connection, self._descriptors())), "")

    def may_come(self) -> bool:
        """Whether anything at all could wake the loop."""
        if any(True for _ in self._descriptors()):
            return True
        # A new thread that looks idle may have been handed work a moment ago.
        return any(
            thread not in self._threads_before and not is_surely_idle(thread)
            for thread in threading.enumerate()
        )

    def children(self) -> list[str]:
        """The processes that the run has started, without quiesce's guardian, which never answers."""
        return sorted(children_of("self") - self._children_before - {str(guardian()[0])})


class Pause:
    """The real time that outside work gets before the clock jumps, or, if it cannot jump, before the run is hung."""

    def __init__(self, outside: OutsideWork, jump: float | None, limits: Limits) -> None:
        self._outside = outside
        self._jump = jump
        self._patience = limits.patience
        self._work_limit = limits.work
        self._rest_limit = max(limits.patience, limits.hang_after)
        self._peer_silence = PeerSilence()
        self._own_silence = OwnSilence(outside.children)
        # The point in `_own_silence` since which no work has been seen.
        self._resting_since = 0.0
        self._work_done = -1

    def seconds_to_wait(self) -> float:
        """How long to wait before calling this again; 0 once the pause has ended."""
        how = "silent"
        if what := self._outside.at_work():
            silent = self._own_silence.look()
            has_ended, waited, how = self._pause_for_work_has_ended(silent)
        else:
            silent = self._peer_silence.look()
            what = self._outside.connected()
            if not what and not self._outside.may_come():
                return 0.0
            waited = self._rest_limit if self._jump is None else self._patience
            has_ended = silent >= waited
        if not has_ended:
            return SLICE
        if what and not self._has_kept_pace(silent):
            # The first jump is the one to blame: later ones may be its consequence.
            self._outside.passed_over = self._outside.passed_over or f"{what}, {how} for {waited:g} s"
        return 0.0

    def _pause_for_work_has_ended(self, silent: float) -> tuple[bool, float, str]:
        """Whether the pause has ended, after how many seconds, and what the work did in them."""
        before, self._work_done = self._work_done, self._outside.work_done()
        if self._work_done != before:
            self._resting_since = silent
        if self._has_kept_pace(silent) and silent >= self._patience:
            return True, self._patience, "silent"
        rest = self._rest_limit if self._jump is None or self._outside.is_awaited() else self._patience
        if silent - self._resting_since >= rest:
            return True, rest, "silent"
        work_limit = max(self._work_limit, self._rest_limit)
        return silent >= work_limit, work_limit, "at work"

    def _has_kept_pace(self, silent: float) -> bool:
        """Whether as much real time has passed as the jump would skip."""
        return self._jump is not None and silent >= self._jump


def open_descriptors() -> set[int]:
    """The open descriptors of this process; empty on systems without /proc."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            # The list contains the descriptor that listed it, which is closed by the time of this check.
            with contextlib.suppress(OSError):
                os.fstat(int(name))
                found.add(int(name))
    return found


def _connection(descriptor: int) -> str:
    """Describe a pipe or a socket; "" for a socket that listens, and for any other kind of descriptor."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return ""
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if not stat.S_ISSOCK(mode):
        return ""
    try:
        # A copy, because closing the socket object closes its descriptor.
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return ""
            with contextlib.suppress(OSError):
                return f"a socket connected to {_address(copy.getpeername())}"
    except OSError:
        pass
    return "a socket"


def _address(name: object) -> str:
    if isinstance(name, tuple):
        return f"{name[0]}:{name[1]}"
    return str(name) or "a process here"
