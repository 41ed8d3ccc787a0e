"""Replaces the clocks of the `time` module for a scenario that runs under the virtual clock.

A program that polls with `asyncio.sleep` until `time.time()` has reached some moment would never get there: its sleeps
take no real time. So the thread that runs the scenario reads clocks that move together with the virtual clock.

- In a closed world nothing takes real time, and the clocks stand still between two jumps, so that two runs read the
  same times. Besides the jumps only `time.sleep` moves them, and each reading by a microsecond, so that a busy loop
  which waits for a clock ends.
- With real I/O other threads and processes live in real time, and the scenario may pass them a moment to wait for.
  There only `time.time` and `time.time_ns` run ahead, by as much as the virtual clock has jumped.

Not replaced: `datetime.now()`, and functions that a module imported earlier (`from time import time`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Nanoseconds by which each reading moves the clock.
_TICK = 1_000

_real: dict[str, Any] = {name: getattr(time, name) for name in ("time_ns", "monotonic_ns", "sleep")}


class Clocks:
    """The clocks of one sweep. In a closed world every run of the sweep begins at the same moment."""

    def __init__(self, *, is_real: bool) -> None:
        self._is_real = is_real
        self._began = {name: _real[name]() for name in ("time_ns", "monotonic_ns")}

    @contextmanager
    def following(self, elapsed: Callable[[], float]) -> Iterator[None]:
        """Replace the clocks inside the block; `elapsed()` returns the seconds that the virtual clock has moved."""
        stand_ins = self._stand_ins(elapsed)
        originals = {name: getattr(time, name) for name in stand_ins}
        for name, stand_in in stand_ins.items():
            setattr(time, name, stand_in)
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(time, name, original)

    def _stand_ins(self, elapsed: Callable[[], float]) -> dict[str, Callable[..., Any]]:
        owner, began = threading.get_ident(), self._began
        # Nanoseconds that the scenario itself added, by readings and by `time.sleep`.
        added = 0

        def now(name: str) -> int:
            nonlocal added
            if threading.get_ident() != owner:
                return int(_real[name]())
            moved = int(elapsed() * 1e9)
            if self._is_real:
                return int(_real[name]()) + moved
            added += _TICK
            return int(began[name]) + moved + added

        def sleep(seconds: float) -> None:
            nonlocal added
            # A real sleep, although the clock could just move: code that blocks the event loop is to run into the
            # limit on real time, not to finish in no time.
            _real["sleep"](seconds)
            if threading.get_ident() == owner:
                added += int(seconds * 1e9)

        stand_ins: dict[str, Callable[..., Any]] = {
            "time": lambda: now("time_ns") / 1e9,
            "time_ns": lambda: now("time_ns"),
        }
        if not self._is_real:
            stand_ins |= {
                "monotonic": lambda: now("monotonic_ns") / 1e9,
                "monotonic_ns": lambda: now("monotonic_ns"),
                "sleep": sleep,
            }
        return stand_ins
