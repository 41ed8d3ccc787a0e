"""The clocks of the `time` module, for a scenario that runs under the virtual clock.

A program that waits by `asyncio.sleep` and looks at `time.time()` to see how long it has waited would never get there: its
sleeps take no time. So the thread that runs the scenario reads clocks that go with the virtual one.

- In a closed world nothing takes real time, and the clocks stand still between two jumps: two runs read the same. Only
  `time.sleep` moves them, and each reading does by a microsecond, so that a loop which waits for them ends.
- With real I/O other threads and processes have the real time, and may be given a moment of it to wait for. There only
  `time.time` is ahead, by what the virtual clock has jumped.

What was imported before as `from time import time` is the real thing, and so is `datetime.now()`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_TICK = 1_000  # nanoseconds that a reading takes

_real: dict[str, Any] = {name: getattr(time, name) for name in ("time_ns", "monotonic_ns", "sleep")}


class Clocks:
    """Those of a sweep: in a closed world, each of its runs begins at the same moment."""

    def __init__(self, *, is_real: bool) -> None:
        self._is_real = is_real
        self._began = {name: _real[name]() for name in ("time_ns", "monotonic_ns")}

    @contextmanager
    def following(self, elapsed: Callable[[], float]) -> Iterator[None]:
        """Let the clocks go with the virtual one: `elapsed` says how many seconds it has moved in this run."""
        stand_ins = self._stand_ins(elapsed)
        kept = {name: getattr(time, name) for name in stand_ins}
        for name, stand_in in stand_ins.items():
            setattr(time, name, stand_in)
        try:
            yield
        finally:
            for name, original in kept.items():
                setattr(time, name, original)

    def _stand_ins(self, elapsed: Callable[[], float]) -> dict[str, Callable[..., Any]]:
        owner, began = threading.get_ident(), self._began
        own = 0  # nanoseconds by which the scenario itself has moved them

        def now(name: str) -> int:
            nonlocal own
            if threading.get_ident() != owner:
                return int(_real[name]())
            moved = int(elapsed() * 1e9)
            if self._is_real:
                return int(_real[name]()) + moved
            own += _TICK
            return int(began[name]) + moved + own

        def sleep(seconds: float) -> None:
            nonlocal own
            _real["sleep"](seconds)
            if threading.get_ident() == owner:
                own += int(seconds * 1e9)

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
