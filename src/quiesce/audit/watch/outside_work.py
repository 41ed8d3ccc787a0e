"""What is beyond the event loop of a run with real I/O, and how long it is waited for before the virtual clock jumps.

Nothing tells the loop that an answer is on its way. What can be known, and what is made of it:

- *At work*: a thread that the run has started, unless it is idle in its pool or waits for another thread, which may be this
  one; a call in an executor; a child process that the run has started. The clock keeps the real pace for these: it jumps when
  as much real time has gone by as it would skip. Work that rests for `hang_after` seconds (it takes no processor and does not
  want one) may be waiting for this very loop, and work that does not rest may never end. So the first is waited for that
  long, the second for `Limits.work` seconds. A process that rests, and that nobody awaits or reads from, is waited for `patience`
  seconds.
- *Connected*: a socket or a pipe in use, a thread that waits. Whether the other end works on an answer or has nothing to say
  cannot be known. It is waited for `patience` seconds.
- A socket that only listens, and a thread that looks idle, are waited for as long, but nobody waits for them: a jump over
  these is not worth a word.

A jump that skips more time than was waited for is kept in `Outside.passed_over`. What a run shows after it may be its doing.
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
from .silence import SLICE, SilenceOfOthers, SilenceOfOurs
from .threads import busy_threads, is_surely_idle, waits_for_another


class OutsideWork:
    """What could still wake the loop of one run. Made when the run begins: what was there before is not the run's.

    `descriptors` are those that the loop waits for, `has_calls` says whether it has called something in a thread.
    """

    def __init__(self, descriptors: Callable[[], Iterable[int]], has_calls: Callable[[], bool]) -> None:
        self.passed_over = ""  # what was not waited for any longer, and for how long it had been
        self._descriptors = descriptors
        self._has_calls = has_calls
        self._threads_before = set(threading.enumerate())
        self._busy_before = {thread for thread, _ in busy_threads()}
        self._children_before = children_of("self")

    def at_work(self) -> str:
        """What is known to be at work, in words; "" if nothing is."""
        for pid in self.children():
            if name := command_if_alive(pid):
                return f"the process {name}"
        busy = busy_threads(self._busy_before)
        for thread, stack in busy:
            if not waits_for_another(stack):
                return f"the thread {thread.name}"
        return "a call in a thread" if self._has_calls() and not busy else ""

    def work_done(self) -> int:
        """A number that grows while what is at work computes or waits for a processor."""
        threads = [thread.native_id for thread, _ in busy_threads(self._busy_before)]
        return sum(work_of_thread(f"self/task/{thread}") for thread in threads) + sum(
            map(work_of, self.children())
        )

    def is_awaited(self) -> bool:
        """Whether what is at work could tell the loop of its end."""
        return (
            self._has_calls()
            or bool(busy_threads(self._busy_before))
            or any(True for _ in self._descriptors())
        )

    def connected(self) -> str:
        """A connection, a pipe or a thread that may say something, in words; "" if there is none."""
        for thread, _ in busy_threads(self._busy_before):
            return f"the thread {thread.name}"
        return next(filter(None, map(_connection, self._descriptors())), "")

    def may_come(self) -> bool:
        """Whether anything at all could wake the loop."""
        if any(True for _ in self._descriptors()):
            return True
        # A new thread that looks idle may have been given work a moment ago.
        return any(
            thread not in self._threads_before and not is_surely_idle(thread)
            for thread in threading.enumerate()
        )

    def children(self) -> list[str]:
        """The processes that the run has started; quiesce's guardian has nothing to say to it."""
        return sorted(children_of("self") - self._children_before - {str(guardian()[0])})


class Pause:
    """The real time that the outside gets before the clock jumps so far; or, without a jump, before the run is hung."""

    def __init__(self, outside: OutsideWork, jump: float | None, limits: Limits) -> None:
        self._outside = outside
        self._jump = jump
        self._patience = limits.patience
        self._most = limits.work
        self._longest = max(limits.patience, limits.hang_after)
        self._of_others = SilenceOfOthers()
        self._of_ours = SilenceOfOurs(outside.children)
        self._rested_from = 0.0  # the moment of it from which on nothing has been seen to work
        self._work_done = -1

    def left(self) -> float:
        """How long to wait until this is asked again; 0 if the pause is over."""
        how = "silent"
        if what := self._outside.at_work():
            silent = self._of_ours.look()
            is_over, waited, how = self._is_over_for_work(silent)
        else:
            silent = self._of_others.look()
            what = self._outside.connected()
            if not what and not self._outside.may_come():
                return 0.0
            waited = self._longest if self._jump is None else self._patience
            is_over = silent >= waited
        if not is_over:
            return SLICE
        if what and not self._has_kept_pace(silent):
            self._outside.passed_over = self._outside.passed_over or f"{what}, {how} for {waited:g} s"
        return 0.0

    def _is_over_for_work(self, silent: float) -> tuple[bool, float, str]:
        """Whether the pause is over, after how many seconds, and what the work did in them."""
        before, self._work_done = self._work_done, self._outside.work_done()
        if self._work_done != before:
            self._rested_from = silent
        if self._has_kept_pace(silent) and silent >= self._patience:
            return True, self._patience, "silent"
        rest = self._longest if self._jump is None or self._outside.is_awaited() else self._patience
        if silent - self._rested_from >= rest:
            return True, rest, "silent"
        most = max(self._most, self._longest)
        return silent >= most, most, "at work"

    def _has_kept_pace(self, silent: float) -> bool:
        """Whether as much real time has gone by as the jump would skip."""
        return self._jump is not None and silent >= self._jump


def open_descriptors() -> set[int]:
    """Those of this process; none where there is no /proc."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the one that listed them
                os.fstat(int(name))
                found.add(int(name))
    return found


def _connection(descriptor: int) -> str:
    """What it is, in words; "" for a socket that listens, and for what is neither a socket nor a pipe."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return ""
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if not stat.S_ISSOCK(mode):
        return ""
    try:
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
