"""One program, from its start to its exit, on either event loop.

Rules
- `main` is a child of the root scope, and the only task of ours while it runs. When it has ended, or a signal
  came, the root scope is closed by one ladder. Everything has ended when that ladder has, or `Grace.kill`
  seconds later.
- A signal handler may run between any two bytecodes, also while sync code blocks the loop. So it only notes
  the signal, makes sure that the process ends in time even if the loop never runs again, and wakes the loop.
  The loop does the rest.
- First signal: the grace as given. Second: the rest of it is shortened to a ladder of `terminate + kill`
  seconds. Third: the process ends at once. A hang-up does not mean haste, and one closed terminal may send
  several: it only counts if it is the first signal.
- The program may stop itself (`stop_program`): that is like a first signal, and its time counts from there.
- Leftovers of a stop before the program's own have had their grace, counted from the beginning of that stop:
  they do not get a second one.
- Only the main thread gets signals, and only from there may the process be ended: in another thread, `run` is
  not the program but a part of it.
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

from .force_exit import ForcedExit, bound_exit, end_process, print_to_stderr

if TYPE_CHECKING:
    from quiesce.kernel.scope import Backend, Handle, ScopeCore

HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # the terminal was closed; not on Windows
KINDS: dict[signal.Signals, Kind] = {signal.SIGINT: "user", signal.SIGTERM: "shutdown"}
if HANG_UP is not None:
    KINDS[HANG_UP] = "disconnect"


class Stopped(SystemExit):
    """Raised by `run` when a signal has stopped the program.

    As a `SystemExit` it ends the process with the conventional status: `code` is 130 after SIGINT, 143 after
    SIGTERM, 129 after SIGHUP. If you catch it, `reason` and `report` say why the program stopped and what is
    left. (A command of quiesce's own that stops itself, such as `quiesce acp` when its client disconnects,
    raises it with `code` 0.)
    """

    def __init__(self, code: int, reason: Reason, report: StopReport) -> None:
        super().__init__(code)
        self.reason = reason
        self.report = report


class Program(ABC):
    """What `run` does on both event loops."""

    settles_the_rest = True  # after the scopes, `kill` seconds are for what is in no scope

    def __init__(self, main: Callable[..., Any], args: tuple[Any, ...], grace: Grace, site: Site) -> None:
        self._main = main
        self._args = args
        self._site = site
        self.grace = grace
        self.signals: list[int] = []
        self.interrupt: BaseException | None = None  # KeyboardInterrupt or SystemExit, out of the loop
        self.root: ScopeCore | None = None
        self.handle: Handle | None = None
        self.report: StopReport | None = None
        self._handlers_before: dict[signal.Signals, Any] = {}
        self._own_reason: Reason | None = None  # why the program has stopped itself
        self._waits_for_main = True
        self._is_hung_up = False
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._is_entry_point = threading.current_thread() is threading.main_thread()
        # Times on the monotonic clock, which every thread can read; a loop's own clock belongs to its thread.
        self._stop_began: float | None = None
        self.ends_at = math.inf
        self.root_ended_at = 0.0
        self._forced_exit = ForcedExit(self._status, self._describe_refusal)

    @abstractmethod
    def drive(self) -> None:
        """Run the event loop to its end."""

    @abstractmethod
    def call_soon(self, fn: Callable[[], object]) -> None:
        """Have the loop call `fn()` soon; for a signal handler, which runs in the loop's own thread."""

    @abstractmethod
    def leave_main(self) -> None:
        """Stop waiting for main."""

    def execute(self) -> Any:
        """Run the program to its end; returns what main returned, or raises."""
        threads_before = threading.enumerate()
        if self._is_entry_point:
            self._take_signals()
        try:
            self.drive()
        finally:
            if self.root is not None:
                _running.pop(self.root.backend, None)
            self._forced_exit.call_off()
            self.give_signals_back()
            if self._is_entry_point:
                bound_exit(self._status(), self._seconds_to_exit, threads_before)
        return self._conclude()

    def _conclude(self) -> Any:
        handle, report = self.handle, self.report
        if handle is None or report is None:  # main could not even be started
            raise self.interrupt or RuntimeError("the event loop ended before main began")
        if report.left:
            print_to_stderr(str(report))
        if self._is_hung_up:
            _drop_output_to_lost_terminal()
        if self.signals:
            raise Stopped(self._status(), self.reason(), report) from handle.error
        if self.interrupt is not None:
            raise self.interrupt
        if self._own_reason is not None and handle.state not in (FINISHED, FAILED):
            raise Stopped(0 if handle.done else 1, self._own_reason, report)
        return handle.result()

    # In the loop

    def start_main(self) -> None:
        """Spawn main in the root scope."""
        backend = current_backend()
        root = self.root = root_core(backend)
        _running[backend] = self
        root.when_child_fails(self._child_failed)
        root.allow(self.grace)
        self.handle = root.spawn(self._main, self._args, None, self._site)
        if self.handle.done:  # with an eager task factory, in its first step
            self.wake()
        else:
            self.handle._on_end(self.wake)
        if self.signals:
            self._obey_signal()

    def wake(self) -> None:
        """Stop waiting for main: it has ended, or the program is being stopped."""
        if self._waits_for_main:
            self._waits_for_main = False
            self.leave_main()

    def _child_failed(self, child: Handle, error: BaseException) -> None:
        if child is self.handle and not self.signals:
            return  # `run` raises main's error
        if isinstance(error, LEAVES_PROGRAM) and self.interrupt is None and not self.signals:
            self.interrupt = error
            self.wake()
        else:
            logger.error("%s in scope 'root' failed", child.name, exc_info=error)

    def begin_stop(self) -> None:
        """Begin to close the root scope; again, with less time, after a second signal."""
        root = self.root
        assert root is not None
        grace = self._grace_for(root)
        self._end_in_time(grace)
        if root.state is EXPIRED:
            root.resume(grace)
        else:
            root.stop(self.reason(), grace)

    def _grace_for(self, root: ScopeCore) -> Grace:
        """The grace; if only leftovers of earlier stops are in the root scope, what remains of theirs."""
        expired = [scope.stop_state for scope in root.nested if scope.state is EXPIRED]
        began = [stop.started for stop in expired if stop is not None]
        if root.children or not began or len(began) < len(root.nested):
            return self.grace
        remains = max(began) + self.grace.total - root.backend.now()
        return self.grace.within(max(remains, 0.0)) if remains < self.grace.total else self.grace

    def stop(self, reason: Reason) -> None:
        """Stop the program as a first signal does: cancel main, and wait for it during the grace."""
        self._own_reason = self._own_reason or reason
        self.begin_stop()
        self.wake()

    def reason(self) -> Reason:
        """Why the program ends."""
        if self.signals:
            first = signal.Signals(self.signals[0])
            return Reason(KINDS[first], first.name)
        if self._own_reason is not None:
            return self._own_reason
        if self.interrupt is not None:
            return Reason("error", f"{type(self.interrupt).__name__} ended the event loop", self.interrupt)
        if self.handle is not None and self.handle.done:
            return Reason("shutdown", "main has ended")
        return Reason("shutdown", "the event loop was stopped")

    # Signals

    def _take_signals(self) -> None:
        for number in KINDS:
            handler = signal.getsignal(number)
            # Leave a signal alone that is ignored on purpose, as under nohup, or whose handler was not
            # installed from Python (None): that one could not be restored.
            may_take = handler is not signal.SIG_IGN and handler is not None
            # A program's own handler for a hang-up means something else: servers reload their settings.
            if number is HANG_UP:
                may_take = handler is signal.SIG_DFL
            if may_take:
                self._handlers_before[number] = handler
                signal.signal(number, self._on_signal)
        _with_handlers.add(self)

    def give_signals_back(self) -> None:
        """Restore the handlers from before, except where other code has installed its own meanwhile."""
        _with_handlers.discard(self)
        for number, handler in self._handlers_before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # In a forked child that has not run its fork hook yet and has our handlers: it is for that child.
        if os.getpid() != self._pid:
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
            end_process(128 + number, f"exiting now ({name})\n{self._describe_refusal()}")
        if count == 2:
            self.grace = _shortened(self.grace)
        self._end_in_time(self.grace)
        if count == 1:
            _announce(f"stopping ({name})", "" if number == HANG_UP else "press again to stop faster")
        else:
            _announce(f"stopping within {self.grace.total:.1f} s ({name})", "press again to exit now")
        self.call_soon(self._obey_signal)

    def _obey_signal(self) -> None:
        if self.root is not None:  # otherwise it came before main began: `start_main` will call this again
            self.begin_stop()
            self.wake()

    # Time

    def _end_in_time(self, grace: Grace) -> None:
        now = time.monotonic()
        if self._stop_began is None:
            self._stop_began = now
        self.ends_at = min(self.ends_at, now + grace.total)
        if self._is_entry_point:
            kill = self.grace.kill
            # Late enough that a loop which still runs ends first, and names what is left by itself.
            more = kill + BLOCKED_AFTER if self.settles_the_rest else max(kill, BLOCKED_AFTER)
            self._forced_exit.end_by(self.ends_at + more)

    def time_left(self) -> float:
        """The seconds left for what is in no scope: those of the grace, and at least `kill`."""
        return max(self.ends_at, self.root_ended_at + self.grace.kill) - time.monotonic()

    def _seconds_to_exit(self) -> float:
        """How long threads may keep the interpreter from exiting."""
        if self.signals:
            return max(self.ends_at - time.monotonic(), self.grace.kill)
        # A program that stops itself has no code after `run`, and its threads have had this time already.
        if self._own_reason is not None:
            return max(self.time_left(), 0.0)
        return self.grace.total

    def _status(self) -> int:
        return 128 + self.signals[0] if self.signals else 1

    # What is left

    def add_leftovers(self, left: list[Leftover]) -> None:
        """Add these to the report."""
        assert self.report is not None
        self.report = replace(self.report, left=[*self.report.left, *left])

    def _describe_refusal(self) -> str:
        """What is left, as far as another thread, or a signal handler, can see it."""
        root, left, ended, notes = self.root, list[Leftover](), 0, list[str]()
        if root is not None:
            ended, notes = root.ended, list(root.notes)
            for _ in range(10):
                try:
                    left = root._leftovers() if root.children or root.nested else []
                    break
                except RuntimeError:  # the loop changed them while we looked
                    continue
        # With a report the loop has run to the end of the grace: then its thread is not what is stuck.
        if self.report is None:
            notes.append(f"the event loop's thread is at {thread_stuck_at(self._thread)}")
        elapsed = time.monotonic() - self._stop_began if self._stop_began is not None else 0.0
        lines = [str(StopReport("root", self.reason(), elapsed, left, ended, notes))]
        handle = self.handle
        if handle is not None and handle.state == FAILED and not self.signals:
            lines[:0] = ["".join(traceback.format_exception(handle._value)).rstrip()]
        return "\n".join(lines)


_with_handlers: set[Program] = set()
_running: dict[Backend, Program] = {}


def stop_program(reason: Reason) -> None:
    """Stop the program whose event loop this is, as a signal does; `run` then raises `Stopped` with code 0.

    Does nothing in a loop that `run` did not start.
    """
    program = _running.get(current_backend())
    if program is not None:
        program.stop(reason)


def _forked() -> None:
    # The program is the parent's: a SIGTERM to the child is meant for the child alone.
    for program in list(_with_handlers):
        program.give_signals_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _shortened(grace: Grace) -> Grace:
    seconds = grace.terminate + grace.kill
    if math.isinf(seconds):
        seconds = DEFAULT_GRACE.terminate + DEFAULT_GRACE.kill
    return grace.within(min(seconds, grace.total))


def _drop_output_to_lost_terminal() -> None:
    # From 3.14 on the interpreter exits with status 120 if it cannot write at its end what is still buffered.
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
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    except Exception:  # closed
        is_terminal = False
    print_to_stderr(f"{what}; {hint}" if is_terminal and hint else what)
