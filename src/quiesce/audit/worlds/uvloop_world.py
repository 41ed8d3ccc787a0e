"""The uvloop world: the asyncio world on a loop with a real clock and real I/O, where runs may differ."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from quiesce.audit.model import Limits
from quiesce.audit.watch import Watch

from .asyncio_world import AsyncioWorld
from .uvloop_loop import UvLoop


class UvloopWorld(AsyncioWorld):
    """asyncio on uvloop."""

    def __init__(self, watch: Watch, *, seed: int | None, limits: Limits) -> None:
        super().__init__(watch, eager=False, real_io=True, seed=seed, limits=limits)
        self.name = "uvloop"
        self._persistent: set[str] = set()

    def _time_of(self, loop: object) -> AbstractContextManager[None]:
        return nullcontext()  # uvloop uses the real clock, so there is nothing to follow

    def _new_loop(self, limits: Limits) -> Any:
        # Not a `SteppingLoop`, which derives from asyncio's loops, but it has the same methods.
        return UvLoop(limits, self._persistent)
