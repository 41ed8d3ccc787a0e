"""One program, from its start to its exit, on whichever event loop.

Rules
- `main` is a child of the root scope, and the only task there is while it runs. When it has ended, or a signal came, the
  root scope is closed by one ladder. Everything is over when that ladder is, or a `Grace.kill` later.
- A signal handler may run between any two bytecodes, also while sync code blocks the loop: it notes the signal, sees to
  it that the process ends in time even if the loop never hears of it, and pokes the loop. All else is done there.
- First signal: the grace as given. Second: what is left of it is shortened to a ladder of `terminate + kill` seconds.
  Third: the process ends there and then. A hang-up is nobody's haste, and one closed terminal may send it several times: it can only
  be the first.
- The program may ask for its own stop (`stop_program`): that is like a first signal, and its time counts from there.
- What a stop before the program's own has left over has had its grace, counted from when that stop began: it gets no second one.
- Only the main thread has signals, and only from there may the process be ended: in another thread this is not the
  program, but a part of it.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from quiesce._safe.printed import logger
from quiesce.kernel.base import (
    DEFAULT_GRACE,
    EXPIRED,
    LEAVES_PROGRAM,
    Grace,
    Kind,
    Leftover,
    Reason,
    Site,
    StopReport,
    thread_stuck_at,
)
from quiesce.kernel.scope import BLOCKED_AFTER, FAILED, FINISHED, current_backend, root_core

from .force_exit import ForcedExit, bound_exit, end_process, say

if TYPE_CHECKING:
    from quiesce.kernel.scope import Backend, Handle, ScopeCore

HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # the terminal has gone; not on Windows
KINDS: dict[signal.Signals, Kind] = {signal.SIGINT: "user", signal.SIGTERM: "shutdown"}
if HANG_UP is not None:
    KINDS[HANG_UP] = "disconnect"


class Stopped(SystemExit):
    """Raised by `run` when a signal has stopped the program.

    As a `SystemExit` it ends the process with the conventional status: `code` is 130 after SIGINT, 143 after
    SIGTERM, 129 after SIGHUP. `reason` and `report` say why and with what outcome, for those who catch it.
    (A command of quiesce's own that stops itself, such as `quiesce acp` when its client disconnects, raises it with `code` 0.)
    """

    def __init__(self, code: int, reason: Reason, report: StopReport) -> None:
        super().__init__(code)
        self.reason = reason
        self.report = report


class Program(ABC):
    """What `run` does on every backend."""

    settles_the_rest = True  # when the scopes are over, there are `kill` seconds for what is in none

    def __init__(self, main: Callable[..., Any], args: tuple[Any, ...], grace: Grace, site: Site) -> None:
        self._main = main
        self._args = args
        self._site = site
        self.grace = grace
        self.signals: list[int] = []
        self.interrupt: BaseException | None = None  # came out of the event loop, past every task
        self.root: ScopeCore | None = None
        self.handle: Handle | None = None
        self.report: StopReport | None = None
        self._handlers_before: dict[signal.Signals, Any] = {}
        self._asked: Reason | None = None  # why the program has stopped itself
        self._waits_for_main = True
        self._is_hung_up = False
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._is_entry_point = threading.current_thread() is threading.main_thread()
        self._started: float | None = None  # the stop; on the monotonic clock, which every thread can read
        self.ends_at = math.inf
        self.root_over_at = 0.0
        self._last_resort = ForcedExit(self._status, self._describe_refusal)

    @abstractmethod
    def drive(self) -> None:
        """Run the event loop to its end."""

    @abstractmethod
    def poke(self, fn: Callable[[], object]) -> None:
        """Have the loop call `fn()` soon; for a signal handler in the loop's own thread."""

    @abstractmethod
    def leave_main(self) -> None:
        """Wait for main no longer."""

    def execute(self) -> Any:
        """All of it; returns what main returned, or raises."""
        known = threading.enumerate()
        if self._is_entry_point:
            self._take_signals()
        try:
            self.drive()
        finally:
            if self.root is not None:
                _running.pop(self.root.backend, None)
            self._last_resort.call_off()
            self.give_signals_back()
            if self._is_entry_point:
                bound_exit(self._status(), self._seconds_to_exit, known)
        return self._conclude()

    def _conclude(self) -> Any:
        handle, report = self.handle, self.report
        if handle is None or report is None:  # main could not even be started
            raise self.interrupt or RuntimeError("the event loop ended before main began")
        if report.left:
            say(str(report))
        if self._is_hung_up:
            _drop_output_to_lost_terminal()
        if self.signals:
            raise Stopped(self._status(), self.reason(), report) from handle.error
        if self.interrupt is not None:
            raise self.interrupt
        if self._asked is not None and handle.state not in (FINISHED, FAILED):
            raise Stopped(0 if handle.done else 1, self._asked, report)
        return handle.result()

    # In the loop

    def start_main(self) -> None:
        """Spawn main."""
        backend = current_backend()
        root = self.root = root_core(backend)
        _running[backend] = self
        root.grace = self.grace
        root.on_child_error = self._child_failed
        self.handle = root.spawn(self._main, self._args, None, self._site)
        if self.handle.done:  # in its eager first step
            self.wake()
        else:
            self.handle._on_end(self.wake)  # nobody awaits it: the loop itself is what waits
        if self.signals:
            self._heed()

    def wake(self) -> None:
        """Main has ended, or is waited for no longer."""
        if self._waits_for_main:
            self._waits_for_main = False
            self.leave_main()

    def _child_failed(self, child: Handle, error: BaseException) -> None:
        if child is self.handle and not self.signals:
            return  # main's error is raised
        if isinstance(error, LEAVES_PROGRAM) and self.interrupt is None and not self.signals:
            self.interrupt = error
            self.wake()
        else:
            logger.error("%s in scope 'root' failed", child.name, exc_info=error)

    def begin_stop(self) -> None:
        """Close the root scope."""
        root = self.root
        assert root is not None
        grace = self._grace_for(root)
        self._end_in_time(grace)
        if root.state is EXPIRED:
            root.resume(grace)
        else:
            root.stop(self.reason(), grace)

    def _grace_for(self, root: ScopeCore) -> Grace:
        """The grace, or what remains of it if there is only what earlier stops have left over."""
        began = [
            scope.started for scope in root.nested if scope.state is EXPIRED and scope.started is not None
        ]
        if root.children or not began or len(began) < len(root.nested):
            return self.grace
        remains = max(began) + self.grace.total - root.backend.now()
        return self.grace.within(max(remains, 0.0)) if remains < self.grace.total else self.grace

    def stop(self, reason: Reason) -> None:
        """Stop, as a signal does: main is cancelled, and waited for no longer than the grace."""
        self._asked = self._asked or reason
        self.begin_stop()
        self.wake()

    def reason(self) -> Reason:
        """Why the program ends."""
        if self.signals:
            first = signal.Signals(self.signals[0])
            return Reason(KINDS[first], first.name)
        if self._asked is not None:
            return self._asked
        if self.interrupt is not None:
            return Reason("error", f"{type(self.interrupt).__name__} ended the event loop", self.interrupt)
        if self.handle is not None and self.handle.done:
            return Reason("shutdown", "main has ended")
        return Reason("shutdown", "the event loop was stopped")

    # Signals

    def _take_signals(self) -> None:
        for number in KINDS:
            handler = signal.getsignal(number)
            # Ignored on purpose, as under nohup; or not Python's, and could not be given back.
            is_ours = handler is not signal.SIG_IGN and handler is not None
            if number is HANG_UP:  # somebody's own handler means something else: to read settings again
                is_ours = handler is signal.SIG_DFL
            if is_ours:
                self._handlers_before[number] = handler
                signal.signal(number, self._on_signal)
        _signalled.add(self)

    def give_signals_back(self) -> None:
        """As they were before, unless somebody else has taken them meanwhile."""
        _signalled.discard(self)
        for number, handler in self._handlers_before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child, so young that it still has our handlers
            self.give_signals_back()
            signal.raise_signal(number)
            return
        if number == HANG_UP:
            self._is_hung_up = True
            if self.signals:
                return
        self.signals.append(number)
        count, name = len(self.signals), signal.Signals(number).name
        if count > 2:
            end_process(128 + number, f"ending now ({name})\n{self._describe_refusal()}")
        if count == 2:
            self.grace = _hurried(self.grace)
        self._end_in_time(self.grace)
        if count == 1:
            _announce(f"stopping ({name})", "" if number == HANG_UP else "press again to hurry")
        else:
            _announce(f"stopping within {self.grace.total:.1f} s ({name})", "press again to end now")
        self.poke(self._heed)

    def _heed(self) -> None:
        if self.root is not None:  # else `start_main` will see to it
            self.begin_stop()
            self.wake()

    # Time

    def _end_in_time(self, grace: Grace) -> None:
        now = time.monotonic()
        if self._started is None:
            self._started = now
        self.ends_at = min(self.ends_at, now + grace.total)
        if self._is_entry_point:
            kill = self.grace.kill
            more = kill + BLOCKED_AFTER if self.settles_the_rest else max(kill, BLOCKED_AFTER)
            self._last_resort.end_by(self.ends_at + more)

    def time_left(self) -> float:
        """For what is in no scope: all that remains of the grace, and `kill` seconds in any case. A second signal shortens it."""
        return max(self.ends_at, self.root_over_at + self.grace.kill) - time.monotonic()

    def _seconds_to_exit(self) -> float:
        """How long threads may keep the interpreter from ending."""
        if self.signals:
            return max(self.ends_at - time.monotonic(), self.grace.kill)
        if self._asked is not None:  # what is left over had this time, and no code comes after `run`
            return max(self.time_left(), 0.0)
        return self.grace.total

    def _status(self) -> int:
        return 128 + self.signals[0] if self.signals else 1

    # What is left

    def add_leftovers(self, left: list[Leftover]) -> None:
        """Name these in the report too."""
        assert self.report is not None
        self.report = replace(self.report, left=[*self.report.left, *left])

    def _describe_refusal(self) -> str:
        """What is left, as far as can be seen from outside the loop."""
        root, left, ended, notes = self.root, list[Leftover](), 0, list[str]()
        if root is not None:
            ended, notes = root.ended, list(root.notes)
            for _ in range(10):
                try:
                    left = root._leftovers() if root.children or root.nested else []
                    break
                except RuntimeError:  # changed while we looked
                    continue
        if self.report is None:  # else the loop had turns to the end of the grace: it is not what is stuck
            notes.append(f"the event loop's thread is at {thread_stuck_at(self._thread)}")
        elapsed = time.monotonic() - self._started if self._started is not None else 0.0
        lines = [str(StopReport("root", self.reason(), elapsed, left, ended, notes))]
        handle = self.handle
        if handle is not None and handle.state == FAILED and not self.signals:
            lines[:0] = ["".join(traceback.format_exception(handle._value)).rstrip()]
        return "\n".join(lines)


_signalled: set[Program] = set()
_running: dict[Backend, Program] = {}


def stop_program(reason: Reason) -> None:
    """Stop the program whose event loop this is, as a first signal does; `run` then raises `Stopped` with code 0. Nothing happens without `run`."""
    program = _running.get(current_backend())
    if program is not None:
        program.stop(reason)


def _forked() -> None:
    """The program is the parent's: a SIGTERM to the child means the child."""
    for program in list(_signalled):
        program.give_signals_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _hurried(grace: Grace) -> Grace:
    seconds = grace.terminate + grace.kill
    if math.isinf(seconds):
        seconds = DEFAULT_GRACE.terminate + DEFAULT_GRACE.kill
    return grace.within(min(seconds, grace.total))


def _drop_output_to_lost_terminal() -> None:
    """From 3.14 on the interpreter exits with 120 if it cannot write, at its end, what is still buffered."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError as error:
            if error.errno == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
        except ValueError:  # closed
            pass


def _announce(what: str, hint: str) -> None:
    try:
        by_hand = sys.stderr is not None and sys.stderr.isatty()
    except Exception:  # closed
        by_hand = False
    say(f"{what}; {hint}" if by_hand and hint else what)
