"""How long nothing has come from outside, by a clock that a busy machine slows down.

A second of the wall clock says little on a machine with more to do than it has processors for: whoever is to answer may
not have had a turn. So a moment counts for as much of it as there was a processor for everybody who wanted one, and at
least for a tenth, so that a wait ends on any machine.
"""

from __future__ import annotations

import contextlib
import os
from time import monotonic  # the real one, also while a scenario reads another

SLICE = 0.02  # real seconds between two looks at how busy the machine is
_LEAST = 0.1
_PROCESSORS = os.cpu_count() or 1


class Silence:
    """Begins when it is made. `look()` says how many seconds of it count by now; `real` is what the wall clock says."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.real = 0.0
        self._began = self._looked = monotonic()

    def look(self) -> float:
        now = monotonic()
        if now > self._looked:
            self.seconds += (now - self._looked) * share_of_processors()
        self._looked, self.real = now, now - self._began
        return self.seconds


def share_of_processors() -> float:
    """How much of a processor each of those has that want one now, as far as that is known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/loadavg", "rb") as file:
        wanting = int(file.read().split()[3].partition(b"/")[0])
        return min(1.0, max(_LEAST, _PROCESSORS / max(1, wanting)))
    return 1.0
