"""Where a scenario is run: a world makes one run after another, each from nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ._points import Point
from ._run import Run
from ._scenario import Scenario
from ._stops import Backend, Stop


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run may take before it is called hung, endless or leaked."""

    steps: int = 100_000  # of one run, before it is called endless
    settle_steps: int = 2_000  # after its end, before what still runs is called leaked
    horizon: float = 3_600.0  # virtual seconds after its end, likewise
    patience: float = 0.05  # real seconds to wait for the outside before the virtual clock moves
    run: float | None = 60.0  # real seconds of one run, before it is cut off (in the main thread)
    linger: float = (
        0.2  # real seconds for a thread, process or file to go after a run, before it is called left
    )
    hang_after: float = 1.0  # real seconds without any event before a run with real I/O is called hung


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
    ) -> Run: ...
