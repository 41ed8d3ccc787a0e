"""Cancel any async code at every point where it can be cancelled, and show what is left.

`audit(scenario)` is the whole of it; `quiesce audit` is the command, `--quiesce` the pytest option. This package imports
nothing of the rest of quiesce, so that it can judge it. The names below are loaded on first use: pytest loads the
plugin in every process that has quiesce installed, and must not pay for an audit that nobody asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._audit import audit as audit
    from ._findings import Example as Example
    from ._findings import Finding as Finding
    from ._points import BadToken as BadToken
    from ._points import Point as Point
    from ._result import AuditResult as AuditResult
    from ._result import Cell as Cell
    from ._result import Strip as Strip
    from ._scenario import BadScenario as BadScenario
    from ._scenario import scenario as scenario
    from ._stops import STOPS as STOPS
    from ._stops import Stop as Stop
    from ._stops import UnknownStop as UnknownStop
    from ._sweep import Progress as Progress
    from ._world import Limits as Limits

_HOME = {
    "STOPS": "_stops",
    "AuditResult": "_result",
    "BadScenario": "_scenario",
    "BadToken": "_points",
    "Cell": "_result",
    "Example": "_findings",
    "Finding": "_findings",
    "Limits": "_world",
    "Point": "_points",
    "Progress": "_sweep",
    "Stop": "_stops",
    "Strip": "_result",
    "UnknownStop": "_stops",
    "audit": "_audit",
    "scenario": "_scenario",
}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
