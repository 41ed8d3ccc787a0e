"""When each rung of a stop ends: arithmetic on the ends of the four steps of a `Grace`.

Pure functions: they know neither a clock nor a scope. `Ends` are times by the clock of the event loop, one
for each of the steps cooperate, cancel, terminate, kill.
"""

from __future__ import annotations

from math import inf
from typing import TypeAlias

from .grace import Grace, Rung

Ends: TypeAlias = tuple[float, float, float, float]

NO_ENDS: Ends = (inf, inf, inf, inf)
# Seconds. An alarm that is later than this means that the event loop was blocked.
STALLED = 0.1
# Seconds that each remaining step gets after the loop was blocked, unless it is shorter anyway.
TURN = 0.1
# The least share that "terminate" gets of the time that a nested ladder has for its last two steps.
TO_TERMINATE = 0.8


def halved(ends: Ends, now: float) -> Ends:
    """The same ladder with half of the time that is left for each step."""
    first, second, third, fourth = ends
    return (first + now) / 2, (second + now) / 2, (third + now) / 2, (fourth + now) / 2


def entered_at(rung: Rung, ends: Ends, grace: Grace, now: float) -> Ends:
    """The ladder of `grace`, entered now at `rung`; the rungs below keep their ends."""
    steps = (grace.cooperate, grace.cancel, grace.terminate, grace.kill)
    changed, end = list(ends), now
    for step in range(rung, Rung.EXPIRED):
        end += steps[step]
        changed[step] = end
    first, second, third, fourth = changed
    return first, second, third, fourth


def after_a_stall(rung: Rung, ends: Ends, now: float) -> Ends:
    """The ladder after the loop was blocked: each step that is left gets `TURN` seconds, or its own length.

    No child could use the time during which the loop was blocked. Without this, several steps could be due at
    once, and a child would be cancelled a second time before it ever ran its clean-up.
    """
    changed, end = list(ends), now
    for step in range(rung, Rung.EXPIRED):
        length = ends[step] - ends[step - 1] if step else TURN
        end = max(ends[step], end + min(length, TURN))
        changed[step] = end
    first, second, third, fourth = changed
    return first, second, third, fourth


def earlier(one: Ends, other: Ends) -> Ends:
    """The earlier end of each step."""
    first, second, third, fourth = map(min, one, other)
    return first, second, third, fourth


def fitted(inner: Ends, outer: Ends, now: float) -> Ends:
    """A nested ladder, made to end within `outer`.

    The time to clean up is kept; the steps after it are squeezed into what remains. Most of that goes to
    "terminate", in which a process responds to SIGTERM: SIGKILL takes effect at once, however deeply nested.
    """
    # It ends before the last step of `outer`, which the owner needs to see that it has ended and to report.
    limit = outer[2] if outer[2] > now else outer[3]
    if inner[3] <= limit:
        return inner
    cleaned_up = min(inner[1], outer[1])
    if not now < cleaned_up < limit:
        cleaned_up = now  # the time to clean up is over, or would leave none for the steps after it
    rest = inner[3] - cleaned_up
    share = max((inner[2] - cleaned_up) / rest, TO_TERMINATE) if 0 < rest < inf else TO_TERMINATE
    # Not later than the limit: the sum may be rounded up, if all of the rest is for SIGTERM.
    terminated = min(cleaned_up + (limit - cleaned_up) * share, limit)
    return min(inner[0], cleaned_up), cleaned_up, terminated, limit
