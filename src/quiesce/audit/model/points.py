"""The points of a schedule, and how one is written down so that it can be found again.

A *lane* is one task. It starts at number 0, before its first step, and each time it suspends its number goes up
by one. A *point* is a lane, a number and a phase:

- `unstarted`  number 0: the task was made and has not run;
- `early`      number n: it has just suspended for the n-th time;
- `late`       number n: it is about to resume from there, and the result it waited for is already in.

`cancel/late/Pool.acquire#2:5@1f0c9a3e` is a stop at a point: the kind of stop, the phase, the lane, the number, and a
fingerprint of the code that was suspended there. Two points joined by `+` are two stops in one run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Phase: TypeAlias = Literal["unstarted", "early", "late"]
PHASES: tuple[Phase, ...] = get_args(Phase)

# A generator or a context manager has points of its own, where the consumer holds it: after its n-th item.
ITEM = "(item)"  # no coroutine can be called that


@dataclass(frozen=True, slots=True)
class Point:
    lane: str
    number: int
    phase: Phase

    def __str__(self) -> str:
        return f"{self.phase}/{self.lane}:{self.number}"


class BadToken(ValueError):
    """A replay token that cannot be read."""


@dataclass(frozen=True, slots=True)
class Token:
    """Exactly one injected run: what `--at` takes."""

    stop: str
    points: tuple[Point, ...]
    print: str  # the fingerprint of the code suspended at the first point

    def __str__(self) -> str:
        return f"{self.stop}/{'+'.join(str(point) for point in self.points)}@{self.print}"


_POINT = re.compile(r"(?P<phase>[a-z]+)/(?P<lane>.+):(?P<number>\d+)\Z")


def parse_token(text: str) -> Token:
    """Read what `str(token)` wrote."""
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
