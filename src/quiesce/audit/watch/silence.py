"""Measures how long nothing has happened, with clocks that run slower on a busy machine.

A second of wall-clock time says little on an overloaded machine: the thread that is expected to act may not have got a
processor. How much of it counts depends on what is being waited for.

- Threads of this process, and processes that the run started: Linux reports how long each of them wanted a processor
  and had none. That time does not count. Work that merely sleeps takes the same time on any machine, and so gets the
  same verdict.
- The other end of a connection: all that is known is how many threads on the whole machine want a processor. A moment
  counts in proportion to the share of a processor that each of them gets.

At least a tenth of each moment counts, so that a wait ends on any machine. Without /proc, and where a container limits
processor time below what its processors could give, none of this is visible and the wall clock counts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from time import monotonic  # the real one, even while `Clocks` replaces it for a scenario

from .processes import waits_for_processor

# Real seconds between two looks at how busy the machine is.
SLICE = 0.02
# The most that one look may count. A look that comes later was delayed, and so perhaps was everything else.
_MOST_AT_ONCE = 2 * SLICE
# The share of each moment that always counts.
_LEAST = 0.1
_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Silence:
    """A silence that begins with its creation. `look()` returns how many seconds of it count so far."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked = monotonic()

    def look(self) -> float:
        """Add the time since the last look, as far as it counts, and return the total."""
        now = monotonic()
        if now > self._looked:
            moment = min(now - self._looked, _MOST_AT_ONCE)
            self.seconds += max(_LEAST * moment, self._counted(moment))
        self._looked = now
        return self.seconds

    def _counted(self, moment: float) -> float:
        """How many seconds of this moment count; depends on what is being waited for."""
        raise NotImplementedError  # abstract: each kind of silence counts in its own way


class OwnSilence(Silence):
    """The silence of this process, and of these children with their descendants."""

    def __init__(self, children: Callable[[], Iterable[str]]) -> None:
        super().__init__()
        self._children = children
        self._waits: Mapping[str, int] = waits_for_processor(children())

    def _counted(self, moment: float) -> float:
        before, self._waits = self._waits, waits_for_processor(self._children())
        held_up = max((wait - before.get(thread, wait) for thread, wait in self._waits.items()), default=0)
        return moment - held_up / 1e9


class PeerSilence(Silence):
    """The silence of the other end of a connection."""

    def _counted(self, moment: float) -> float:
        return moment * share_of_processors()


def share_of_processors() -> float:
    """The share of a processor that each runnable thread on this machine gets; 1 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/loadavg", "rb") as file:
        wanting = int(file.read().split()[3].partition(b"/")[0])
        return min(1.0, max(_LEAST, _PROCESSORS / max(1, wanting)))
    return 1.0
