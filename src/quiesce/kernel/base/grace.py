"""The ladder of a stop: one object holds all of its deadlines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Self


class Rung(IntEnum):
    """The step that a stop has reached."""

    COOPERATE = 0
    CANCEL = 1
    TERMINATE = 2
    KILL = 3
    EXPIRED = 4


# Looked up once: on 3.11 the members of an enum are slow to reach.
COOPERATE, CANCEL, TERMINATE = Rung.COOPERATE, Rung.CANCEL, Rung.TERMINATE


def check_seconds(name: str, value: float) -> float:
    """`value` as seconds; an error that names the parameter if it is not a number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} must be 0 or more seconds, not {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """How long each step of a stop may take, in seconds.

    | step | tasks | threads | processes |
    |---|---|---|---|
    | `cooperate` | token cancelled, nothing else yet | token cancelled | – |
    | `cancel` | cancelled once, clean-up runs | still waited for | stdin closed |
    | `terminate` | cancelled once more | waited for no longer | SIGTERM to the tree |
    | `kill` | – | – | SIGKILL to the tree |

    What is still running after the last step is named in the `StopReport` and stays owned. Every wait of
    quiesce during a stop is bounded by these steps; with the defaults, a stop takes five seconds at most.

    ```python
    patient = Grace(cancel=30)            # a slow flush may take half a minute
    await scope.close(grace=patient)
    await scope.close(deadline=0.1)       # the same ladder, squeezed into 0.1 s
    ```
    """

    cooperate: float = 0.0
    cancel: float = 3.0
    terminate: float = 1.0
    kill: float = 1.0
    _offsets: tuple[float, float, float, float] = field(init=False, repr=False, compare=False)

    def __new__(cls, *steps: float, **named: float) -> Self:
        """Raise an error that says how to name the steps, if there are positional arguments."""
        # `kw_only` alone would raise "takes 1 positional argument but 2 were given". The number most likely
        # meant the time to clean up, `cancel`; the first field is `cooperate`.
        if steps:
            raise TypeError(
                f"Grace takes its steps by name: Grace(cancel={steps[0]!r}), for example, not Grace({steps[0]!r})"
            )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        offsets, end = [], 0.0
        for name in ("cooperate", "cancel", "terminate", "kill"):
            end += check_seconds(f"Grace.{name}", getattr(self, name))
            offsets.append(end)
        object.__setattr__(self, "_offsets", tuple(offsets))

    @property
    def total(self) -> float:
        """Seconds from the first signal to the end of the last step."""
        return self.cooperate + self.cancel + self.terminate + self.kill

    def within(self, seconds: float) -> Grace:
        """The same ladder, scaled so that it ends after `seconds`."""
        check_seconds("deadline", seconds)
        total = self.total
        if math.isinf(seconds):
            return replace(self, cancel=math.inf)
        if math.isinf(total):
            # An endless step cannot be scaled. The default's proportions are as good as any.
            return Grace(cancel=3.0, terminate=1.0, kill=1.0).within(seconds)
        if total == 0:
            return Grace(cancel=seconds, terminate=0.0, kill=0.0)
        scale = seconds / total
        return Grace(
            cooperate=self.cooperate * scale,
            cancel=self.cancel * scale,
            terminate=self.terminate * scale,
            kill=self.kill * scale,
        )

    def ends(self, start: float) -> tuple[float, float, float, float]:
        """When each step ends, for a stop that starts at `start`."""
        first, second, third, fourth = self._offsets
        return start + first, start + second, start + third, start + fourth


def check_grace(grace: Grace | None) -> Grace | None:
    """`grace` itself; a `TypeError` that says what to write if it is a number, for example."""
    if grace is not None and not isinstance(grace, Grace):
        raise TypeError(
            f"grace must be a Grace, not {type(grace).__name__}: for example Grace(cancel=10), or pass deadline="
        )
    return grace


DEFAULT_GRACE = Grace()
