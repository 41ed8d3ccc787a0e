"""The points of a schedule, and the replay tokens that name them.

A *lane* is one task. It starts at number 0, before its first step, and each time it suspends its number goes up
by one. A *point* is a lane, a number and a phase:

- `unstarted`  number 0: the task exists and has not run yet;
- `early`      number n: the task has just suspended for the n-th time;
- `late`       number n: the task is about to resume from there, and the result it waited for has arrived.

`cancel/late/Pool.acquire#2:5@1f0c9a3e` is a stop at a point: the kind of stop, the phase, the lane, the number, and a
fingerprint of the code that was suspended there. Two points joined by `+` are two stops in one run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Phase: TypeAlias = Literal["unstarted", "early", "late"]
PHASES: tuple[Phase, ...] = get_args(Phase)

# The lane of the points at which a consumer holds a generator or a context manager: after its n-th item. The
# parentheses keep it apart from the name of any coroutine.
ITEM = "(item)"


@dataclass(frozen=True, slots=True)
class Point:
    """A moment in the schedule of a scenario: which lane, at which number, in which phase."""

    lane: str
    number: int
    phase: Phase

    def __str__(self) -> str:
        return f"{self.phase}/{self.lane}:{self.number}"


class BadToken(ValueError):
    """A replay token that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Token:
    """The value of `--at`: identifies one injected run."""

    stop: str
    points: tuple[Point, ...]
    #: Fingerprint of the code that was suspended at the first point.
    print: str

    def __str__(self) -> str:
        return f"{self.stop}/{'+'.join(str(point) for point in self.points)}@{self.print}"


_POINT = re.compile(r"(?P<phase>[a-z]+)/(?P<lane>.+):(?P<number>\d+)\Z")


def parse_token(text: str) -> Token:
    """Parse the output of `str(token)`; raises `BadToken`."""
    body, _, fingerprint = text.strip().rpartition("@")
    stop, slash, rest = body.partition("/")
    if not (fingerprint and slash and stop):
        raise BadToken(f"{text!r} is not a replay token; one looks like cancel/early/main:3@1f0c9a3e")
    found: list[Point] = []
    for part in rest.split("+"):
        match = _POINT.match(part)
        phase: Phase | None = next((p for p in PHASES if match and p == match["phase"]), None)
        if match is None or phase is None:
            raise BadToken(
                f"{part!r} in the replay token {text!r} is not a point; one looks like early/main:3, "
                f"with the phase one of {', '.join(PHASES)}"
            )
        found.append(Point(match["lane"], int(match["number"]), phase))
    return Token(stop, tuple(found), fingerprint)
