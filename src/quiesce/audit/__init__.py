"""Cancel any async code at every point where it can be cancelled, and show what is left.

`audit(scenario)` is the whole of it; `quiesce audit` is the command, `--quiesce` the pytest option. This package imports
nothing of the rest of quiesce, so that it can judge it.
"""

from __future__ import annotations

from ._audit import audit
from ._findings import Example, Finding
from ._points import BadToken, Point
from ._result import AuditResult, Cell, Strip
from ._scenario import BadScenario, scenario
from ._stops import STOPS, Stop, UnknownStop
from ._sweep import Progress
from ._world import Limits

__all__ = [
    "STOPS",
    "AuditResult",
    "BadScenario",
    "BadToken",
    "Cell",
    "Example",
    "Finding",
    "Limits",
    "Point",
    "Progress",
    "Stop",
    "Strip",
    "UnknownStop",
    "audit",
    "scenario",
]
