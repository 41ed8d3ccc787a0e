"""Ends runs that do not end by themselves, and survives scenarios that try to end the process.

A step that blocks (`time.sleep`, an endless loop without an await) is out of reach for an event loop: only a signal can
interrupt it. The alarm raises a KeyboardInterrupt, because that is the only exception which asyncio passes through
tasks and callbacks to the caller of the loop. Code that swallows it is interrupted again a second later. How the
world's `run` returns after an alarm does not matter: the guard remembers that the alarm went off, and where the main
thread was.

The guard installs its own handler for Ctrl-C, and so can tell it from a scenario that raises KeyboardInterrupt itself.
Ctrl-C ends the sweep and keeps its result so far; a KeyboardInterrupt of the scenario is the outcome of that run. A
second Ctrl-C ends the process.

Python handles signals in the main thread only. In other threads, and where another handler is installed for the signal,
there is no limit. The guard also restores the working directory, so that each run starts where the first one did.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from quiesce.audit.model import (
    Backend,
    Chain,
    Point,
    Run,
    Scenario,
    Sighting,
    Spot,
    Stop,
    World,
    is_audit_code,
    traceback_chain,
)
from quiesce.audit.watch import Clocks, Watch

if TYPE_CHECKING:
    from quiesce.audit.findings import AuditResult

# Seconds until code that swallowed the alarm gets it again.
_AGAIN = 1.0
# The most frames to report of a blocked step.
_DEEPEST = 40


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during an audit. `result` is the result so far."""

    result: AuditResult | None = None


class _TooLong(KeyboardInterrupt):
    """The run has used up its real time."""


class GuardedWorld:
    """A world whose runs end, no matter what the scenario does. Use it as a context manager around a sweep."""

    def __init__(self, world: World, watch: Watch, limit: float | None) -> None:
        self.name = world.name
        self.backend: Backend = world.backend
        self.is_deterministic = world.is_deterministic
        self.changed_directory = False
        self._world = world
        self._watch = watch
        self._limit = limit
        self._blocked_at: Chain | None = None
        self._is_armed = False
        self._is_interrupted = False
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        self._directory = _working_directory()
        if threading.current_thread() is not threading.main_thread():
            self._limit = None
            return self
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_ctrl_c)
            self._undo.append(lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        if self._limit is not None and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            signal.signal(signal.SIGALRM, self._on_alarm)
            self._undo.append(lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))
        else:
            self._limit = None
        return self

    def __exit__(self, *exc: object) -> None:
        while self._undo:
            self._undo.pop()()

    def run(
        self,
        scenario: Scenario,
        stop: Stop | None,
        points: Sequence[Point] = (),
        *,
        check: Callable[[], Any] | None = None,
        record: bool = False,
        patience: int = 1,
    ) -> Run:
        """Run the scenario once; raises `Interrupted` after Ctrl-C."""
        self._forget_alarm()
        error: BaseException | None = None
        run = None
        if self._limit is not None:
            signal.setitimer(signal.ITIMER_REAL, self._limit, _AGAIN)
        self._is_armed = True
        try:
            run = self._world.run(scenario, stop, points, check=check, record=record, patience=patience)
            # Disarmed inside the `try`, in both branches: an alarm after it would escape from here.
            self._is_armed = False
        except BaseException as raised:
            self._is_armed = False
            error = raised
        if self._limit is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._restore_directory()
        if self._is_interrupted:
            # The error holds the frames of the run, which are to be collected now.
            run = error = None
            self._complete(Run("blocked"))
            raise Interrupted
        if self._blocked_at is not None:
            error = None
            # The world may have turned the alarm into an ordinary outcome, which says nothing about the scenario.
            returned = run
            run = self._complete(Run("blocked"))
            if returned is not None:
                run.fired, run.steps = returned.fired, returned.steps
            detail = f"it was cut off after {self._limit:g} s of real time"
            run.sightings = [Sighting("hang", scenario.name, stuck_at=self._blocked_at, detail=detail)]
        elif isinstance(error, SystemExit | KeyboardInterrupt):
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
            run = Run("raised", error=text, error_at=_where_raised(error))
            error = None
            run = self._complete(run)
            detail = f"it was cancelled, and raised {text}"
            run.sightings = [Sighting("replaced", scenario.name, stuck_at=run.error_at, detail=detail)]
        elif error is not None:
            raise error
        assert run is not None
        return run

    def _complete(self, run: Run) -> Run:
        """Complete the record of an interrupted run, and collect its garbage before the next run is blamed for it."""
        schedule = self._watch.schedule
        if schedule is not None:
            run.fired = tuple((lane.label, step, chain) for lane, step, chain in schedule.fired)
            run.steps = run.ended_at = schedule.steps
        del schedule
        self._watch.schedule = None
        self._watch.is_muted = True
        gc.collect()
        return run

    def _forget_alarm(self) -> None:
        # Not inlined: a type checker would conclude that it is still None after the run.
        self._blocked_at = None

    def _on_alarm(self, signum: int, frame: FrameType | None) -> None:
        if not self._is_armed:
            return
        if self._blocked_at is None:
            self._blocked_at = _where(frame)
        raise _TooLong

    def _on_ctrl_c(self, signum: int, frame: FrameType | None) -> None:
        self._is_interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise Interrupted

    def _restore_directory(self) -> None:
        if self._directory and _working_directory() != self._directory:
            self.changed_directory = True
            os.chdir(self._directory)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _where(frame: FrameType | None) -> Chain:
    """The frames of the interrupted step, outermost first, without the audit's own."""
    if frame is not None and frame.f_globals.get("__name__") == Clocks.__module__:
        frame = frame.f_back  # the audit's replacement of `time.sleep`
    chain: list[Spot] = []
    while frame is not None and len(chain) < _DEEPEST and not is_audit_code(frame.f_code):
        chain.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(chain[::-1])


def _where_raised(error: BaseException) -> Chain:
    """The part of the traceback inside the scenario: the frames after the last one of the audit's."""
    chain = traceback_chain(error.__traceback__)
    ours = [i for i, (code, _) in enumerate(chain) if is_audit_code(code)]
    return chain[ours[-1] + 1 :] if ours else chain
