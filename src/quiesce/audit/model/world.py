"""Where a scenario is run: a world makes one run after another, each from nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from .points import Point
from .run_record import Run
from .scenarios import Scenario
from .stops import Backend, Stop


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run may take before it is called hung, endless or leaked."""

    steps: int = 100_000  # of one run, before it is called endless
    settle_steps: int = 2_000  # after its end, before what still runs is called leaked
    horizon: float = 3_600.0  # virtual seconds after its end, likewise
    patience: float = 0.05  # real seconds of silence, before the virtual clock jumps over a connection
    run: float | None = 60.0  # real seconds of one run, before it is cut off (in the main thread)
    linger: float = (
        0.2  # real seconds for a thread, process or file to go after a run, before it is called left
    )
    hang_after: float = 1.0  # real seconds without any event before a run with real I/O is called hung
    work: float = 10.0  # real seconds for a thread or process that does not rest, before the virtual clock jumps over it

    def __post_init__(self) -> None:
        check_patience(self.patience)

    def longer(self, times: int) -> Limits:
        """The same, with so many times the patience."""
        return replace(
            self,
            patience=self.patience * times,
            hang_after=self.hang_after * times,
            work=self.work * times,
            run=None if self.run is None else self.run * times,
        )


MORE_PATIENCE = 10  # times, for a run that is to show whether a jump of the clock was what went wrong


def check_patience(seconds: object) -> None:
    """Refuse what is no time to wait."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < inf:  # type: ignore[operator]
        raise ValueError(f"patience is a number of seconds above 0, not {seconds!r}")


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
        """Run it once, stopped at `points`, with so many times the patience of the limits."""
        ...
