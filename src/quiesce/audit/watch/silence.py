"""How long nothing has happened, by clocks that a busy machine slows down.

A second of the wall clock says little on a machine with more to do than it has processors for: whoever is to act may not
have had a turn. How much of it counts depends on who is waited for.

- Threads of this process, and the processes that the run has started: the system says how long each of them wanted a
  processor and had none. That time does not count. What merely sleeps has the same time on any machine, and so the same
  verdict.
- Whoever is at the other end of a connection: nothing is known of them but how many threads of the whole machine want a
  processor. A moment counts for as much as there was a processor for each.

A moment counts for a tenth at least, so that a wait ends on any machine. Without /proc, and where a group of processes is
allowed less than its processors could give (a limit of a container), nothing of this is seen, and the wall clock counts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from time import monotonic  # the real one, also while a scenario reads another

from .processes import waits_for_processor

SLICE = 0.02  # real seconds between two looks at how busy the machine is
_MOST_AT_ONCE = 2 * SLICE  # who looks later than that was held up, and so was everybody else, perhaps
_LEAST = 0.1
_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Silence:
    """Begins when it is made. `look()` says how many seconds of it count by now."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked = monotonic()

    def look(self) -> float:
        now = monotonic()
        if now > self._looked:
            moment = min(now - self._looked, _MOST_AT_ONCE)
            self.seconds += max(_LEAST * moment, self._counted(moment))
        self._looked = now
        return self.seconds

    def _counted(self, moment: float) -> float:
        raise NotImplementedError  # abstract: it depends on who is waited for


class SilenceOfOurs(Silence):
    """Of this process, and of these children with what is below them."""

    def __init__(self, children: Callable[[], Iterable[str]]) -> None:
        super().__init__()
        self._children = children
        self._waits: Mapping[str, int] = waits_for_processor(children())

    def _counted(self, moment: float) -> float:
        before, self._waits = self._waits, waits_for_processor(self._children())
        held_up = max((wait - before.get(thread, wait) for thread, wait in self._waits.items()), default=0)
        return moment - held_up / 1e9


class SilenceOfOthers(Silence):
    """Of whoever is at the other end of a connection."""

    def _counted(self, moment: float) -> float:
        return moment * share_of_processors()


def share_of_processors() -> float:
    """How much of a processor each of those has that want one now, as far as that is known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/loadavg", "rb") as file:
        wanting = int(file.read().split()[3].partition(b"/")[0])
        return min(1.0, max(_LEAST, _PROCESSORS / max(1, wanting)))
    return 1.0
