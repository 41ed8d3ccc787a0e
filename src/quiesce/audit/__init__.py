"""Cancel async code at every point where it can be cancelled, and report what is left over.

`audit(scenario)` is the entry point; `quiesce audit` is the same as a command, and `--quiesce` as a pytest option. This
package imports nothing from the rest of quiesce, so that it can audit quiesce itself. The names below are loaded on
first use: pytest loads the plugin in every process that has quiesce installed, and a process that audits nothing must
not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .findings import AuditResult as AuditResult
    from .findings import Cell as Cell
    from .findings import Example as Example
    from .findings import Finding as Finding
    from .findings import Strip as Strip
    from .model import STOPS as STOPS
    from .model import BadScenario as BadScenario
    from .model import BadToken as BadToken
    from .model import Limits as Limits
    from .model import Point as Point
    from .model import Stop as Stop
    from .model import UnknownStop as UnknownStop
    from .model import scenario as scenario
    from .sweep import Progress as Progress
    from .sweep import audit as audit

offer()
