"""Worlds: each runs a scenario once per call, always from a fresh event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from .points import Point
from .run_record import Run
from .scenarios import Scenario
from .stops import Backend, Stop

# The names of all worlds: the values of `audit(backend=...)`.
WORLDS = ("asyncio", "asyncio-eager", "uvloop", "trio")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run may take before it counts as hung or endless, and its tasks as leaked."""

    #: Steps of one run before it counts as endless.
    steps: int = 100_000
    #: Steps after the end of the root before tasks that still run count as leaked.
    settle_steps: int = 2_000
    #: Virtual seconds after the end of the root before tasks that still run count as leaked.
    horizon: float = 3_600.0
    #: Real seconds of silence before the virtual clock jumps over a connection.
    patience: float = 0.05
    #: Real seconds of one run before it is interrupted (in the main thread only).
    run: float | None = 60.0
    #: Real seconds that a thread, process or file gets to end after a run before it counts as left over.
    linger: float = 0.2
    #: Real seconds without any event before a run with real I/O counts as hung.
    hang_after: float = 1.0
    #: Real seconds before the virtual clock jumps over a thread or process that keeps computing.
    work: float = 10.0

    def __post_init__(self) -> None:
        check_patience(self.patience)

    def longer(self, times: int) -> Limits:
        """Multiply every limit that is in real time by `times`, except `linger`."""
        return replace(
            self,
            patience=self.patience * times,
            hang_after=self.hang_after * times,
            work=self.work * times,
            run=None if self.run is None else self.run * times,
        )


# The factor for a run that is repeated to see whether a jump of the clock caused its findings.
MORE_PATIENCE = 10


def check_patience(seconds: object) -> None:
    """Raise `ValueError` unless this is a finite number of seconds above 0."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < inf:  # type: ignore[operator]
        raise ValueError(f"patience must be a number of seconds above 0, not {seconds!r}")


class World(Protocol):
    """asyncio, asyncio with eager tasks, uvloop or trio."""

    name: str
    backend: Backend
    is_deterministic: bool

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
        """Run the scenario once, stopped at `points`, with `patience` times the real-time limits."""
        ...
