"""What may end a run from outside: the clock on the wall, Ctrl-C, and a scenario that wants to end the process.

A step that blocks (`time.sleep`, an endless loop without an await) is beyond an event loop: only a signal gets in. The
alarm is a KeyboardInterrupt because that is the one exception which asyncio lets through its tasks and callbacks to
whoever runs the loop; code that swallows it is interrupted again a second later. How the world's `run` comes back from
that does not matter: the guard knows that it rang the bell, and where the main thread stood.

With a handler of the guard's own, a Ctrl-C can be told from a scenario that raises KeyboardInterrupt itself. The first
ends the sweep, with what it has; the second is how the scenario ended. A second Ctrl-C ends the process.

Signals reach Python in the main thread only. Elsewhere, and where somebody else uses the same signal, there is no
limit. A guard also puts the working directory back, so that each run starts where the first did.
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
    is_ours,
    traceback_chain,
)
from quiesce.audit.watch import Clocks, Watch

if TYPE_CHECKING:
    from quiesce.audit.findings import AuditResult

_AGAIN = 1.0  # seconds until code that swallowed the alarm gets it again
_DEEPEST = 40  # frames of a blocked step


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during an audit. `result` is what it had by then."""

    result: AuditResult | None = None


class _TooLong(KeyboardInterrupt):
    """The run's real time is up."""


class GuardedWorld:
    """A world whose runs end, whatever the scenario does. Use as a context manager round a sweep."""

    def __init__(self, world: World, watch: Watch, limit: float | None) -> None:
        self.name = world.name
        self.backend: Backend = world.backend
        self.is_deterministic = world.is_deterministic
        self.left_directory = False
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
        self._forget_alarm()
        ended: BaseException | None = None
        run = None
        if self._limit is not None:
            signal.setitimer(signal.ITIMER_REAL, self._limit, _AGAIN)
        self._is_armed = True
        try:
            run = self._world.run(scenario, stop, points, check=check, record=record, patience=patience)
            self._is_armed = False
        except BaseException as error:
            self._is_armed = False
            ended = error
        if self._limit is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._go_back()
        if self._is_interrupted:
            run = ended = None  # it holds the frames of the wreck
            self._wreck(Run("blocked"))
            raise Interrupted
        if self._blocked_at is not None:
            ended = None
            came_back = run  # with whatever its world made of the alarm
            run = self._wreck(Run("blocked"))
            if came_back is not None:
                run.fired, run.steps = came_back.fired, came_back.steps
            detail = f"it was cut off after {self._limit:g} s of real time"
            run.seen = [Sighting("hang", scenario.name, stuck_at=self._blocked_at, detail=detail)]
        elif isinstance(ended, SystemExit | KeyboardInterrupt):
            text = f"{type(ended).__name__}: {ended}".removesuffix(": ")
            run = Run("raised", error=text, error_at=_where_raised(ended))
            ended = None
            run = self._wreck(run)
            detail = f"it was told to stop, and raised {text}"
            run.seen = [Sighting("replaced", scenario.name, stuck_at=run.error_at, detail=detail)]
        elif ended is not None:
            raise ended
        assert run is not None
        return run

    def _wreck(self, run: Run) -> Run:
        """Fill in a run that was cut off, and collect what is left of it, lest the next one be blamed."""
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

    def _go_back(self) -> None:
        if self._directory and _working_directory() != self._directory:
            self.left_directory = True
            os.chdir(self._directory)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _where(frame: FrameType | None) -> Chain:
    """The frames of what was interrupted, outermost first, up to the audit's own."""
    if frame is not None and frame.f_globals.get("__name__") == Clocks.__module__:
        frame = frame.f_back  # a `time.sleep` that goes with the virtual clock
    chain: list[Spot] = []
    while frame is not None and len(chain) < _DEEPEST and not is_ours(frame.f_code):
        chain.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(chain[::-1])


def _where_raised(error: BaseException) -> Chain:
    """The scenario's own part of the traceback: what is below the audit's last frame."""
    chain = traceback_chain(error.__traceback__)
    ours = [i for i, (code, _) in enumerate(chain) if is_ours(code)]
    return chain[ours[-1] + 1 :] if ours else chain
