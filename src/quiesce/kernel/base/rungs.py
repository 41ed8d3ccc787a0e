"""When each rung of a stop is over: arithmetic on the ends of the four steps of a `Grace`."""

from __future__ import annotations

from math import inf
from typing import TypeAlias

from .grace import Grace, Rung

Ends: TypeAlias = tuple[float, float, float, float]

NO_ENDS: Ends = (inf, inf, inf, inf)
STALLED = 0.1  # seconds by which an alarm is late only if the loop had no turn
TURN = 0.1  # the seconds, at most, that each step that is left has after that
TO_TERMINATE = 0.8  # the least share of what a nested ladder has for its last two steps


def halved(ends: Ends, now: float) -> Ends:
    """Half of what is left of each step."""
    first, second, third, fourth = ends
    return (first + now) / 2, (second + now) / 2, (third + now) / 2, (fourth + now) / 2


def entered_at(rung: Rung, ends: Ends, grace: Grace, now: float) -> Ends:
    """Another ladder, entered at the rung that we stand on."""
    steps = (grace.cooperate, grace.cancel, grace.terminate, grace.kill)
    changed, end = list(ends), now
    for step in range(rung, Rung.EXPIRED):
        end += steps[step]
        changed[step] = end
    first, second, third, fourth = changed
    return first, second, third, fourth


def after_a_stall(rung: Rung, ends: Ends, now: float) -> Ends:
    """Time in which the loop stood still was nobody's to clean up in: each step that is left has a turn, or all of its time if that is shorter."""
    changed, end = list(ends), now
    for step in range(rung, Rung.EXPIRED):
        length = ends[step] - ends[step - 1] if step else TURN
        end = max(ends[step], end + min(length, TURN))
        changed[step] = end
    first, second, third, fourth = changed
    return first, second, third, fourth


def earlier(one: Ends, other: Ends) -> Ends:
    """Whichever is earlier, step by step."""
    first, second, third, fourth = map(min, one, other)
    return first, second, third, fourth


def fitted(inner: Ends, outer: Ends, now: float) -> Ends:
    """A nested ladder inside another: the last step is left to those who wait for it.

    Its time to clean up is not shortened; what comes after is squeezed into what remains, most of it for a
    process to heed SIGTERM: one that is killed is gone at once, however deep it is nested.
    """
    limit = outer[2] if outer[2] > now else outer[3]
    if inner[3] <= limit:
        return inner
    cleaned_up = min(inner[1], outer[1])
    if not now < cleaned_up < limit:
        cleaned_up = now  # no time for it is left, or there is nothing else
    rest = inner[3] - cleaned_up
    share = max((inner[2] - cleaned_up) / rest, TO_TERMINATE) if 0 < rest < inf else TO_TERMINATE
    return min(inner[0], cleaned_up), cleaned_up, cleaned_up + (limit - cleaned_up) * share, limit
